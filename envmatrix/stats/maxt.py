"""The null distribution of the largest |t| of several comparisons that share one reference."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
DRAWS = 100_000
_SEED = 20_260_101
#: With fewer draws beyond it a critical value is Bonferroni's, which is as sharp so far out.
FEWEST = 10


@lru_cache(maxsize=128)
def null_maxima(blocks: int, comparisons: int, copies: int = 1, draws: int = DRAWS) -> Floats:
    """Return ``draws`` sorted (descending) values of max |t_j|, j = 1..``comparisons``.

    Each t_j is a one-sample t on ``blocks`` differences d_j = e_j - e_0, all e normal, e_0 being the mean
    over ``copies`` of the reference: the shared e_0 is what correlates them. Only its projections are
    drawn, which is exact: with z the means (times sqrt(n)) and r = |e_0 less its mean|, the sum of squares
    of d_j is (a - r)^2 + chi2(n - 2), a standard normal. So the cost does not grow with the number of
    blocks. (Dunnett 1955, and so scipy's ``dunnett``, pools the variances of groups that nothing pairs; here
    each t has its own, because environments differ in noise.)
    """
    if blocks < 2 or comparisons < 1:
        msg = f"needs 2 blocks and 1 comparison, not {blocks} and {comparisons}"
        raise ValueError(msg)
    chance = np.random.default_rng((_SEED, blocks))
    shared_mean = chance.standard_normal(draws) / np.sqrt(copies)
    shared_length = np.sqrt(chance.chisquare(blocks - 1, draws) / copies)
    largest = np.zeros(draws)
    for _ in range(comparisons):
        squares = (chance.standard_normal(draws) - shared_length) ** 2
        if blocks > 2:
            squares += 2.0 * chance.standard_gamma((blocks - 2) / 2, draws)
        mean = chance.standard_normal(draws) - shared_mean
        np.maximum(largest, np.abs(mean) / np.sqrt(squares / (blocks - 1)), out=largest)
    return np.sort(largest)[::-1]


def critical_value(blocks: int, comparisons: int, copies: int = 1, *, level: float = 0.95, draws: int = DRAWS) -> float:
    """Return the half-width, in standard errors, of simultaneous intervals of confidence ``level``."""
    if comparisons == 1:
        return student_quantile(blocks, (1.0 + level) / 2)
    rank = int((1.0 - level) * (draws + 1)) - 1
    bound = student_quantile(blocks, 1.0 - (1.0 - level) / (2 * comparisons))
    return bound if rank < FEWEST else min(bound, float(null_maxima(blocks, comparisons, copies, draws)[rank]))


def adjusted_p(t: float, blocks: int, comparisons: int, copies: int = 1, *, draws: int = DRAWS) -> float:
    """Return P(max |T| >= |t|) when nothing differs; never 0, as draws are finite (Phipson & Smyth 2010).

    It is at most 1 - level exactly when ``|t|`` reaches beyond ``critical_value``: interval and p agree.
    """
    if comparisons == 1:
        return student_p(t, blocks)
    maxima = null_maxima(blocks, comparisons, copies, draws)
    at_least = draws - int(np.searchsorted(maxima[::-1], abs(t), side="left"))
    return min((1 + at_least) / (draws + 1), comparisons * student_p(t, blocks))


def student_quantile(blocks: int, probability: float) -> float:
    """Return the quantile of Student's t of ``blocks`` differences: with one comparison nothing needs drawing."""
    from scipy.special import stdtrit

    return float(stdtrit(blocks - 1, probability))


def student_p(t: float, blocks: int) -> float:
    """Return the two-sided p of one t of ``blocks`` differences."""
    from scipy.special import stdtr

    return float(2.0 * stdtr(blocks - 1, -abs(t)))
