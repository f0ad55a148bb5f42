"""Null distribution of the largest |t| of several comparisons that share one reference, with moderated variances.

With few blocks, some of many standard deviations are small by luck, so Student's t is wide. So each comparison borrows
one degree of freedom, with the mean variance of its family (Smyth 2004), which corrects most of that. With 8
comparisons, intervals are 15 % narrower at 7 blocks and 4 % at 12. The error rate is kept even if noises differ tenfold
(docs/validation/simulations-noise.md), as a comparison keeps at least (n - 1) / n of its variance.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from envmatrix.stats.array_types import Bools, Floats, Integers

DRAWS = 100_000
_SEED = 20_260_101
#: With fewer draws beyond it, a critical value is Bonferroni's, which is as sharp that far out.
MIN_DRAWS_BEYOND = 10
#: Most numbers in memory at once: comparisons times draws.
MOST_NUMBERS = 3_000_000
#: With fewer independent blocks, unequal noise would raise the error rate too much.
LEAST_UNITS = 6
#: Limit of a variance in the mean, in medians: a single environment with tenfold noise does not widen the intervals of
#: others.
_CAP = 25.0


@lru_cache(maxsize=128)
def null_maxima(blocks: int, comparisons: int, copies: int = 1, *, own: bool = False) -> Floats:
    """Return DRAWS values of max |t_j|, j = 1..``comparisons``, in descending order; fewer if comparisons are many.

    Each t_j is a one-sample t on ``blocks`` differences d_j = e_j - e_0. All e are normal, and e_0 is the mean over
    ``copies`` of the reference, which correlates the t_j. Only projections are drawn, which is exact and independent of
    the number of blocks. With r = |e_0 less its mean| and a standard normal a, the squares of d_j sum to (a - r)^2 +
    chi2(n - 2). Each t has its own variance, as environments differ in noise, or its moderated one (``own``: never
    moderated). In contrast, Dunnett (1955) and scipy's ``dunnett`` pool variances of unpaired groups.
    """
    if blocks < 2 or comparisons < 1:
        raise ValueError(f"needs 2 blocks and 1 comparison, not {blocks} and {comparisons}")
    if own or not is_moderated(blocks, comparisons):
        largest = np.zeros(DRAWS)
        for mean, variance in _draw_means_and_variances(blocks, comparisons, copies, DRAWS):
            np.maximum(largest, np.abs(mean) / np.sqrt(variance), out=largest)
    else:
        draws = min(DRAWS, max(100 * MIN_DRAWS_BEYOND, MOST_NUMBERS // comparisons))
        means, variances = map(
            np.array, zip(*_draw_means_and_variances(blocks, comparisons, copies, draws), strict=True)
        )
        largest = (np.abs(means) / np.sqrt(moderated(variances, blocks))).max(axis=0)
    return np.sort(largest)[::-1]


def _draw_means_and_variances(
    blocks: int, comparisons: int, copies: int, draws: int
) -> Iterator[tuple[Floats, Floats]]:
    """Yield the means (times sqrt(n)) and variances of each comparison."""
    rng = np.random.default_rng((_SEED, blocks))
    shared_mean = rng.standard_normal(draws) / np.sqrt(copies)
    shared_length = np.sqrt(rng.chisquare(blocks - 1, draws) / copies)
    for _ in range(comparisons):
        squares = (rng.standard_normal(draws) - shared_length) ** 2
        if blocks > 2:
            squares += 2.0 * rng.standard_gamma((blocks - 2) / 2, draws)
        yield rng.standard_normal(draws) - shared_mean, squares / (blocks - 1)


def critical_value(blocks: int, comparisons: int, copies: int = 1, *, level: float = 0.95, own: bool = False) -> float:
    """Return the half-width, in standard errors, of simultaneous intervals at confidence ``level``.

    Errors are moderated if the family has enough blocks and ``own`` is not set; otherwise each comparison has its own.
    """
    if comparisons == 1:
        return student_quantile(blocks, (1.0 + level) / 2)
    bound = student_quantile(blocks, 1.0 - (1.0 - level) / (2 * comparisons)) * _largest_moderation_factor(
        blocks, comparisons, own=own
    )
    maxima = null_maxima(blocks, comparisons, copies, own=own)
    rank = int((1.0 - level) * (len(maxima) + 1)) - 1
    return bound if rank < MIN_DRAWS_BEYOND else min(bound, float(maxima[rank]))


def adjusted_p(t: float, blocks: int, comparisons: int, copies: int = 1, *, own: bool = False) -> float:
    """Return P(max |T| >= |t|) if nothing differs; never 0, as draws are finite (Phipson & Smyth 2010).

    It is at most 1 - level exactly if ``|t|`` exceeds ``critical_value``, so interval and p agree.
    """
    if comparisons == 1:
        return student_p(t, blocks)
    maxima = null_maxima(blocks, comparisons, copies, own=own)
    beyond_count = len(maxima) - int(np.searchsorted(maxima[::-1], abs(t), side="left"))
    least_t = t / _largest_moderation_factor(blocks, comparisons, own=own)
    return min((1 + beyond_count) / (len(maxima) + 1), comparisons * student_p(least_t, blocks))


def _largest_moderation_factor(blocks: int, comparisons: int, *, own: bool) -> float:
    """Return the largest possible ratio of a moderated t to Student's t of the same numbers."""
    return float(np.sqrt(blocks / (blocks - 1))) if not own and is_moderated(blocks, comparisons) else 1.0


def student_quantile(blocks: float, probability: float) -> float:
    """Return the quantile of Student's t for ``blocks`` differences, for a single comparison."""
    from scipy.special import stdtrit

    return float(stdtrit(blocks - 1, probability))


def student_p(t: float, blocks: int) -> float:
    """Return the two-sided p of one t for ``blocks`` differences."""
    from scipy.special import stdtr

    return float(2.0 * stdtr(blocks - 1, -abs(t)))


def is_moderated(units: int, comparisons: int) -> bool:
    """Return whether comparisons of a family with this many independent blocks borrow variance."""
    return comparisons > 1 and units >= LEAST_UNITS


def moderated(variances: Floats, units: Floats | Integers | int) -> Floats:
    """Return the moderated variances of a family, with comparisons along the first axis.

    ``units`` is the number of independent blocks per variance, which has one degree of freedom less.
    """
    shared = np.minimum(variances, _CAP * np.median(variances, axis=0)).mean(axis=0)
    return np.asarray((shared + (np.asarray(units) - 1) * variances) / units)


def moderated_errors(error: Floats, units: Integers, comparisons: int) -> tuple[Floats, Bools]:
    """Return the standard errors used to judge a family's comparisons, and a mask of those that are not moderated.

    ``error`` (m,) is worth ``units`` (m,) independent blocks. All ``comparisons`` of the family must be present for any
    to borrow: a missing one could be the noisiest. One with too few units lends, but does not borrow.
    """
    is_known = np.isfinite(error)
    borrows = is_known & np.array([is_moderated(int(count), comparisons) for count in units], dtype=np.bool_)
    if is_known.sum() != comparisons:
        borrows[:] = False
    errors = error.copy()
    if borrows.any():
        variances = moderated(units[is_known] * error[is_known] ** 2, units[is_known])
        errors[borrows] = np.sqrt(variances / units[is_known])[borrows[is_known]]
    return errors, ~borrows
