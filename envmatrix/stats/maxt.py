"""The null distribution of the largest |t| of several comparisons that share one reference."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from envmatrix.stats.moderated_variance import is_moderated, moderated

Floats = NDArray[np.float64]
DRAWS = 100_000
_SEED = 20_260_101
#: With fewer draws beyond it a critical value is Bonferroni's, which is as sharp so far out.
MIN_DRAWS_BEYOND = 10


#: Numbers held at once at most: so many comparisons and draws.
MOST_NUMBERS = 3_000_000


@lru_cache(maxsize=128)
def null_maxima(blocks: int, comparisons: int, copies: int = 1, draws: int = DRAWS, *, own: bool = False) -> Floats:
    """Return ``draws`` sorted (descending) values of max |t_j|, j = 1..``comparisons``; fewer of very many comparisons.

    Each t_j is a one-sample t on ``blocks`` differences d_j = e_j - e_0, all e normal, e_0 being the mean
    over ``copies`` of the reference: the shared e_0 is what correlates them. Only its projections are
    drawn, which is exact: with z the means (times sqrt(n)) and r = |e_0 less its mean|, the sum of squares
    of d_j is (a - r)^2 + chi2(n - 2), a standard normal. So the cost does not grow with the number of
    blocks. (Dunnett 1955, and so scipy's ``dunnett``, pools the variances of groups that nothing pairs; here
    each t has its own, because environments differ in noise, or its ``moderated`` one; ``own``: never that.)
    """
    if blocks < 2 or comparisons < 1:
        msg = f"needs 2 blocks and 1 comparison, not {blocks} and {comparisons}"
        raise ValueError(msg)
    if own or not is_moderated(blocks, comparisons):
        largest = np.zeros(draws)
        for mean, variance in _draw_means_and_variances(blocks, comparisons, copies, draws):
            np.maximum(largest, np.abs(mean) / np.sqrt(variance), out=largest)
    else:
        draws = min(draws, max(100 * MIN_DRAWS_BEYOND, MOST_NUMBERS // comparisons))
        means, variances = map(
            np.array, zip(*_draw_means_and_variances(blocks, comparisons, copies, draws), strict=True)
        )
        largest = (np.abs(means) / np.sqrt(moderated(variances, blocks))).max(axis=0)
    return np.sort(largest)[::-1]


def _draw_means_and_variances(
    blocks: int, comparisons: int, copies: int, draws: int
) -> Iterator[tuple[Floats, Floats]]:
    """Yield each comparison's means, times sqrt(n), and variances."""
    rng = np.random.default_rng((_SEED, blocks))
    shared_mean = rng.standard_normal(draws) / np.sqrt(copies)
    shared_length = np.sqrt(rng.chisquare(blocks - 1, draws) / copies)
    for _ in range(comparisons):
        squares = (rng.standard_normal(draws) - shared_length) ** 2
        if blocks > 2:
            squares += 2.0 * rng.standard_gamma((blocks - 2) / 2, draws)
        yield rng.standard_normal(draws) - shared_mean, squares / (blocks - 1)


def critical_value(
    blocks: int, comparisons: int, copies: int = 1, *, level: float = 0.95, draws: int = DRAWS, own: bool = False
) -> float:
    """Return the half-width, in standard errors, of simultaneous intervals of confidence ``level``.

    The errors are ``moderated`` where a family of as many has enough blocks, each comparison's ``own`` otherwise.
    """
    if comparisons == 1:
        return student_quantile(blocks, (1.0 + level) / 2)
    bound = student_quantile(blocks, 1.0 - (1.0 - level) / (2 * comparisons)) * _largest_moderation_factor(
        blocks, comparisons, own=own
    )
    maxima = null_maxima(blocks, comparisons, copies, draws, own=own)
    rank = int((1.0 - level) * (len(maxima) + 1)) - 1
    return bound if rank < MIN_DRAWS_BEYOND else min(bound, float(maxima[rank]))


def adjusted_p(
    t: float, blocks: int, comparisons: int, copies: int = 1, *, draws: int = DRAWS, own: bool = False
) -> float:
    """Return P(max |T| >= |t|) when nothing differs; never 0, as draws are finite (Phipson & Smyth 2010).

    It is at most 1 - level exactly when ``|t|`` reaches beyond ``critical_value``: interval and p agree.
    """
    if comparisons == 1:
        return student_p(t, blocks)
    maxima = null_maxima(blocks, comparisons, copies, draws, own=own)
    beyond_count = len(maxima) - int(np.searchsorted(maxima[::-1], abs(t), side="left"))
    least_t = t / _largest_moderation_factor(blocks, comparisons, own=own)
    return min((1 + beyond_count) / (len(maxima) + 1), comparisons * student_p(least_t, blocks))


def _largest_moderation_factor(blocks: int, comparisons: int, *, own: bool) -> float:
    """Return how many times as large as Student's t of the same numbers a moderated one can be."""
    return float(np.sqrt(blocks / (blocks - 1))) if not own and is_moderated(blocks, comparisons) else 1.0


def student_quantile(blocks: int, probability: float) -> float:
    """Return the quantile of Student's t of ``blocks`` differences: with one comparison nothing needs drawing."""
    from scipy.special import stdtrit

    return float(stdtrit(blocks - 1, probability))


def student_p(t: float, blocks: int) -> float:
    """Return the two-sided p of one t of ``blocks`` differences."""
    from scipy.special import stdtr

    return float(2.0 * stdtr(blocks - 1, -abs(t)))
