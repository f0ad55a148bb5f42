"""Alpha spending: the confidence that intervals need if a run is read several times.

Each interim analysis of a run that is resumed is a further chance to err. It spends a part of the error that all of
them share (Lan & DeMets 1983). The first, after n1 blocks, has four fifths; one after n blocks brings the total spent
to 1 - (n1 / n)^2 / 5. The only analysis of a run that is read once has all of it. The cost of an analysis is the chance
that it errs if none before did. It is drawn from the joint distribution of the largest |t| at all analyses, so two
after nearly the same blocks cost little.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from envmatrix.plan import Plan
from envmatrix.stats.array_types import Bools, Floats
from envmatrix.stats.effects import ALL_ANALYSES_LEVEL, FIRST_ANALYSIS_SHARE, LEVEL
from envmatrix.stats.inference.maxt import MIN_DRAWS_BEYOND, MOST_NUMBERS, adjusted_p, is_moderated, moderated
from envmatrix.stats.pairing import families

_DRAWS, _SEED = 100_000, 20_260_104
#: Exponent of the spending: the next analysis usually comes after 1.5 to 2 times the blocks.
_SPENDING_POWER = 2
#: Number of latest analyses that are part of the random seed.
_ANALYSES_IN_SEED = 50


def interim_analysis_blocks(plan: Plan, blocks: int) -> tuple[int, ...]:
    """Return the block counts at which the run was or is read, from ``min_blocks`` on; ``blocks`` is the last.

    An earlier analysis of more blocks than are left (lines were set aside) is replaced by one of fewer blocks. It has
    the same correlation with the present one: the square root of the ratio of their block counts.
    """
    fewest_blocks = max(2, plan.min_blocks)
    later_counts = {max(fewest_blocks, blocks * blocks // count) for count in plan.looked if count > blocks}
    return (*sorted({count for count in {*plan.looked, *later_counts} if fewest_blocks <= count < blocks}), blocks)


def confidence_level(plan: Plan, blocks: int) -> float:
    """Return the confidence of intervals after ``blocks`` blocks, corrected for earlier interim analyses."""
    analyses = interim_analysis_blocks(plan, blocks)
    if len(analyses) == 1:
        return ALL_ANALYSES_LEVEL if plan.read_once else LEVEL
    sizes = [(family.together, len(family.copies)) for family in families(plan) if not family.arms[0].is_control]
    comparisons, copies = max(sizes, default=(1, 1))
    return _boundary_confidence(analyses, comparisons, copies)


@lru_cache(maxsize=256)
def _boundary_confidence(looks: tuple[int, ...], comparisons: int, copies: int) -> float:
    """Return 1 minus the chance of crossing the last analysis's boundary if that were the only analysis."""
    boundary = _simulate_analyses(looks, comparisons, copies).boundary
    return min(1.0 - adjusted_p(boundary, looks[-1], comparisons, copies), 1.0 - 1e-12)


@dataclass(frozen=True)
class _SimulatedRuns:
    """Simulated runs without any difference, up to an analysis: means and sums of squares (comparisons, draws).

    ``quiet``: draws without a false alarm so far. ``boundary``: the critical |t| of this analysis.
    """

    means: Floats
    squares: Floats
    quiet: Bools
    boundary: float


#: The last two simulated analyses: for a continuing run, its earlier analyses and the present one.
_simulation_cache: dict[tuple[tuple[int, ...], int, int], _SimulatedRuns] = {}


def _simulate_analyses(looks: tuple[int, ...], comparisons: int, copies: int) -> _SimulatedRuns:
    """Simulate the analyses one by one, starting from the last cached one: a run may have thousands."""
    sizes, cached = (comparisons, copies), dict(_simulation_cache)
    simulated_count = max((len(key[0]) for key in cached if key == (looks[: len(key[0])], *sizes)), default=0)
    previous, simulated = None, cached.get((looks[:simulated_count], *sizes))
    while simulated_count < len(looks):
        simulated_count += 1
        previous, simulated = simulated, _simulate_next_analysis(simulated, looks[:simulated_count], *sizes)
    assert simulated
    if previous:
        _simulation_cache.clear()
        _simulation_cache.update({(looks[:-1], *sizes): previous, (looks, *sizes): simulated})
    return simulated


def _simulate_next_analysis(
    previous: _SimulatedRuns | None, looks: tuple[int, ...], comparisons: int, copies: int
) -> _SimulatedRuns:
    """Simulate one more analysis after ``previous``; its seed depends on the analyses alone."""
    draws = max(10 * MIN_DRAWS_BEYOND, min(_DRAWS, MOST_NUMBERS // comparisons))
    count, previous_count = looks[-1], looks[-2] if len(looks) > 1 else 0
    means, squares = _draw_further_blocks(
        count - previous_count, comparisons, copies, np.random.default_rng((_SEED, *looks[-_ANALYSES_IN_SEED:])), draws
    )
    quiet = np.ones(draws, dtype=np.bool_)
    if previous:
        quiet = previous.quiet
        step = means - previous.means
        squares += previous.squares + step**2 * (previous_count * (count - previous_count) / count)
        means = previous.means + step * ((count - previous_count) / count)
    variances = squares / (count - 1)
    if is_moderated(count, comparisons):
        variances = moderated(variances, count)
    largest = (np.abs(means) / np.sqrt(variances / count)).max(axis=0)
    spent = (1.0 - ALL_ANALYSES_LEVEL) * (1.0 - (1.0 - FIRST_ANALYSIS_SHARE) * (looks[0] / count) ** _SPENDING_POWER)
    draws_to_spend = round(spent * draws) - int((~quiet).sum())
    boundary = float(np.sort(largest[quiet])[-max(1, draws_to_spend)])
    # If less than one draw is left to spend, spend none: thousands of analyses would otherwise spend too much.
    return _SimulatedRuns(means, squares, quiet & (largest < boundary) if draws_to_spend > 0 else quiet, boundary)


def _draw_further_blocks(
    blocks: int, comparisons: int, copies: int, rng: np.random.Generator, draws: int
) -> tuple[Floats, Floats]:
    """Return means and sums of squares of further ``blocks``, with projections drawn as in ``maxt.null_maxima``."""
    shape = (comparisons, draws)
    means = (rng.standard_normal(shape) - rng.standard_normal(draws) / np.sqrt(copies)) / np.sqrt(blocks)
    squares = np.zeros(shape)
    if blocks > 1:
        length = np.sqrt(rng.chisquare(blocks - 1, draws) / copies)
        squares += (rng.standard_normal(shape) - length) ** 2
    if blocks > 2:
        squares += 2.0 * rng.standard_gamma((blocks - 2) / 2, shape)
    return means, squares
