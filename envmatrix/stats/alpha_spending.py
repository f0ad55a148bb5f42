"""What each look at a run may spend of the error: how sure an interval must be where the run has been read before.

A run that is read, resumed and read again has had two chances to err. Each look spends its part of the error that
all of them may make together (Lan & DeMets 1983), by how many blocks there are: the first one four fifths, and one
after n blocks brings the whole spent to 1 - (n1 / n)^2 / 5, n1 being the blocks of the first. What a look costs is the
chance that it errs where none before did, from the joint distribution of the largest |t| at all of them, so that two
looks at nearly the same blocks cost little.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from envmatrix.plan import Plan
from envmatrix.stats.effects import ALL_LOOKS, FIRST_SHARE, LEVEL
from envmatrix.stats.maxt import FEWEST, MOST_NUMBERS, adjusted_p
from envmatrix.stats.moderated_variance import is_moderated, moderated
from envmatrix.stats.pairing import families

Floats = NDArray[np.float64]
_DRAWS, _SEED = 100_000, 20_260_104
#: How fast the rest is spent: the next look is usually after some half more, or twice, the blocks.
_POWER = 2
#: So many of the last looks tell the draws of one look from those of another.
_TOLD_APART = 50


def looks_of(plan: Plan, blocks: int) -> tuple[int, ...]:
    """Return after how many blocks the run was or is read, ``blocks`` the last; before ``min_blocks`` none counts.

    A look at more blocks than are left, as where lines were set aside, counts as one at so many fewer that it is as
    much like this one: the correlation of two looks is the root of the ratio of their blocks.
    """
    least = max(2, plan.min_blocks)
    more = {max(least, blocks * blocks // count) for count in plan.looked if count > blocks}
    return (*sorted({count for count in {*plan.looked, *more} if least <= count < blocks}), blocks)


def level_at(plan: Plan, blocks: int) -> float:
    """Return the confidence that intervals after ``blocks`` blocks are computed with, given who looked before."""
    at = looks_of(plan, blocks)
    if len(at) == 1:
        return LEVEL
    sizes = [(family.together, len(family.copies)) for family in families(plan) if not family.arms[0].is_control]
    comparisons, copies = max(sizes, default=(1, 1))
    return _level(at, comparisons, copies)


@lru_cache(maxsize=256)
def _level(looks: tuple[int, ...], comparisons: int, copies: int) -> float:
    """Return 1 less the chance that the boundary of the last look is passed by chance at that look alone."""
    boundary = _walk(looks, comparisons, copies).boundary
    return min(1.0 - adjusted_p(boundary, looks[-1], comparisons, copies), 1.0 - 1e-12)


@dataclass(frozen=True)
class _Walked:
    """Draws of runs in which nothing differs, up to a look: means and sums of squares (comparisons, draws).

    ``quiet``: the draws that no look so far has called different. ``boundary``: what this look calls different.
    """

    means: Floats
    squares: Floats
    quiet: NDArray[np.bool_]
    boundary: float


#: The last two that were walked: of a run that goes on, its looks so far and the one of now.
_walked: dict[tuple[tuple[int, ...], int, int], _Walked] = {}


def _walk(looks: tuple[int, ...], comparisons: int, copies: int) -> _Walked:
    """Go on from the look that was walked last, one by one: a run may have thousands."""
    sizes, kept = (comparisons, copies), dict(_walked)
    at = max((len(key[0]) for key in kept if key == (looks[: len(key[0])], *sizes)), default=0)
    past, walked = None, kept.get((looks[:at], *sizes))
    while at < len(looks):
        at += 1
        past, walked = walked, _look(walked, looks[:at], *sizes)
    assert walked
    if past:
        _walked.clear()
        _walked.update({(looks[:-1], *sizes): past, (looks, *sizes): walked})
    return walked


def _look(past: _Walked | None, looks: tuple[int, ...], comparisons: int, copies: int) -> _Walked:
    """Go on from the look before the last one. Each look draws its own numbers, the same for the same looks."""
    draws = max(10 * FEWEST, min(_DRAWS, MOST_NUMBERS // comparisons))
    count, before = looks[-1], looks[-2] if len(looks) > 1 else 0
    means, squares = _added(
        count - before, comparisons, copies, np.random.default_rng((_SEED, *looks[-_TOLD_APART:])), draws
    )
    quiet = np.ones(draws, dtype=np.bool_)
    if past:
        quiet = past.quiet
        step = means - past.means
        squares += past.squares + step**2 * (before * (count - before) / count)
        means = past.means + step * ((count - before) / count)
    variances = squares / (count - 1)
    if is_moderated(count, comparisons):
        variances = moderated(variances, count)
    largest = (np.abs(means) / np.sqrt(variances / count)).max(axis=0)
    spent = (1.0 - ALL_LOOKS) * (1.0 - (1.0 - FIRST_SHARE) * (looks[0] / count) ** _POWER)
    more = round(spent * draws) - int((~quiet).sum())
    boundary = float(np.sort(largest[quiet])[-max(1, more)])
    # Where less than one draw is left to spend, no draw is: else thousands of looks would spend too much.
    return _Walked(means, squares, quiet & (largest < boundary) if more > 0 else quiet, boundary)


def _added(
    blocks: int, comparisons: int, copies: int, chance: np.random.Generator, draws: int
) -> tuple[Floats, Floats]:
    """Return means and sums of squares of further ``blocks``, their projections drawn as in ``maxt.null_maxima``."""
    shape = (comparisons, draws)
    means = (chance.standard_normal(shape) - chance.standard_normal(draws) / np.sqrt(copies)) / np.sqrt(blocks)
    squares = np.zeros(shape)
    if blocks > 1:
        length = np.sqrt(chance.chisquare(blocks - 1, draws) / copies)
        squares += (chance.standard_normal(shape) - length) ** 2
    if blocks > 2:
        squares += 2.0 * chance.standard_gamma((blocks - 2) / 2, shape)
    return means, squares
