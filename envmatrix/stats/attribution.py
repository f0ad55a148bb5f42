"""Which factor brings how much: main effects and interactions of a factorial, and each factor's share of the gain."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envmatrix.plan import Arm
from envmatrix.stats.effects import CONFIDENCE
from envmatrix.stats.maxt import student_quantile
from envmatrix.stats.metrics import Metric
from envmatrix.stats.pairing import logs_of
from envmatrix.stats.samples import Samples

Floats = NDArray[np.float64]
Levels = Mapping[str, str]
_RESAMPLES = 10_000
_SEED = 20_260_102
_MOST_FACTORS = 12


@dataclass(frozen=True)
class Estimate:
    """A ratio (above 1: faster) with its interval; None where too few blocks were complete."""

    ratio: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Contrast:
    """A main effect (one factor and level) or an interaction (two), against the factors' reference levels.

    A main effect is the mean over all levels of the other factors. An interaction is by how much two changes
    together bring more (above 1) or less than the product of the two.
    """

    levels: tuple[tuple[str, str], ...]
    estimate: Estimate
    p: float | None

    @property
    def name(self) -> str:
        """Return 'malloc=tcmalloc' or 'malloc=tcmalloc x openmp=intel'."""
        return " x ".join(f"{factor}={level}" for factor, level in self.levels)


@dataclass(frozen=True)
class Share:
    """What one factor contributes to the gain of the best environment: a ratio, and its part of the log gain."""

    factor: str
    level: str
    gain: Estimate
    part: float | None


@dataclass(frozen=True)
class Attribution:
    """The attribution of one factorial design. ``shares`` multiply up to ``total``."""

    workload: str
    engine: str
    best: str
    total: Estimate
    shares: tuple[Share, ...]
    contrasts: tuple[Contrast, ...]
    blocks: int


@dataclass(frozen=True)
class Cells:
    """A full factorial: one row of ``logs`` (cells x blocks, better upwards) for each combination of levels."""

    factors: tuple[str, ...]
    levels: tuple[tuple[str, ...], ...]
    cells: tuple[tuple[str, ...], ...]
    names: tuple[str, ...]
    logs: Floats


def find_cells(
    arms: Sequence[Arm], environments: Mapping[str, Levels], samples: Samples, metric: Metric
) -> Cells | None:
    """Arrange the arms of one workload and engine as a full factorial; None when they are not one.

    ``environments`` gives each environment's levels. The first arm is the baseline: its levels are the
    references. Controls are left out, so that every cell has one trial a block; only blocks with all cells
    count.
    """
    arms = [arm for arm in arms if not arm.is_control and arm.runs in environments]
    if not arms:
        return None
    chosen = [environments[arm.runs] for arm in arms]
    varied = [f for f in chosen[0] if len({levels.get(f) for levels in chosen}) > 1]
    options = [tuple(dict.fromkeys(levels[f] for levels in chosen if f in levels)) for f in varied]
    cells = [tuple(levels.get(f, "") for f in varied) for levels in chosen]
    full = math.prod(len(names) for names in options)
    if not varied or len(varied) > _MOST_FACTORS or len(set(cells)) != len(cells) or full != len(cells):
        return None
    logs = metric.sign * np.array([logs_of(samples.of(arm.name, metric.name)) for arm in arms])
    whole = np.isfinite(logs).all(axis=0)
    names = tuple(arm.environment for arm in arms)
    return Cells(tuple(varied), tuple(options), tuple(cells), names, logs[:, whole])


def _weights(cells: Cells, wanted: Mapping[int, str]) -> Floats:
    """Return the weights of the cells that make a main effect or an interaction (products of differences)."""
    weights = np.ones(len(cells.cells))
    for position, options in enumerate(cells.levels):
        if position in wanted:
            reference = options[0]
            weights *= [
                float(cell[position] == wanted[position]) - float(cell[position] == reference) for cell in cells.cells
            ]
        else:
            weights /= len(options)
    return weights


def residual_variance(logs: Floats) -> tuple[float, int]:
    """Return the variance left over after cells and blocks (two-way analysis of variance), and its freedom."""
    rows, blocks = logs.shape
    rest = logs - logs.mean(axis=1, keepdims=True) - logs.mean(axis=0, keepdims=True) + logs.mean()
    freedom = (rows - 1) * (blocks - 1)
    return (float((rest**2).sum() / freedom) if freedom else math.nan), freedom


def contrasts(cells: Cells) -> tuple[Contrast, ...]:
    """Return all main effects and two-way interactions; their intervals hold together (Bonferroni).

    The model is log time = block + cell + error, as ordinary least squares fits it; needs 2 complete blocks.
    """
    positions = range(len(cells.factors))
    wanted: list[dict[int, str]] = [{i: level} for i in positions for level in cells.levels[i][1:]]
    wanted += [
        {i: one, j: other}
        for i, j in itertools.combinations(positions, 2)
        for one in cells.levels[i][1:]
        for other in cells.levels[j][1:]
    ]
    if cells.logs.shape[1] < 2:
        return ()
    variance, freedom = residual_variance(cells.logs)
    means, blocks = cells.logs.mean(axis=1), cells.logs.shape[1]
    asked = 1.0 - (1.0 - CONFIDENCE) / (2 * len(wanted))
    reach = student_quantile(freedom + 1, asked)
    return tuple(
        _contrast(cells, item, means, math.sqrt(variance / blocks), reach, freedom, len(wanted)) for item in wanted
    )


def _contrast(
    cells: Cells, wanted: Mapping[int, str], means: Floats, error: float, reach: float, freedom: int, family: int
) -> Contrast:
    from scipy.special import stdtr

    weights = _weights(cells, wanted)
    value = float(weights @ means)
    size = error * float(np.sqrt((weights**2).sum()))
    p = float(2.0 * stdtr(freedom, -abs(value) / size)) if size > 0 else (0.0 if value else 1.0)
    levels = tuple((cells.factors[i], level) for i, level in wanted.items())
    estimate = Estimate(math.exp(value), math.exp(value - reach * size), math.exp(value + reach * size))
    return Contrast(levels, estimate, min(1.0, p * family))


def shapley_weights(cells: Cells, best: int) -> dict[int, Floats]:
    """Return, for each factor that ``best`` changes, the weights of the cells that make its Shapley value.

    The game's value of a set of factors is the log speed of the cell that has those at best's level and all
    others at their reference (Shapley 1953): shares add up to the gain of ``best`` exactly, whatever the
    interactions.
    """
    place = {cell: index for index, cell in enumerate(cells.cells)}
    reference = tuple(options[0] for options in cells.levels)
    changed = [i for i in range(len(cells.factors)) if cells.cells[best][i] != reference[i]]
    weights = {i: np.zeros(len(cells.cells)) for i in changed}
    for factor in changed:
        others = [i for i in changed if i != factor]
        for size in range(len(others) + 1):
            chance = 1.0 / (len(changed) * math.comb(len(changed) - 1, size))
            for coalition in itertools.combinations(others, size):
                without = tuple(cells.cells[best][i] if i in coalition else reference[i] for i in range(len(reference)))
                joined = tuple(cells.cells[best][i] if i == factor else level for i, level in enumerate(without))
                weights[factor][place[joined]] += chance
                weights[factor][place[without]] -= chance
    return weights


def resampled(values: Floats) -> Estimate:
    """Return the ratio of (blocks,) log values with an interval from resampling the blocks.

    The percentiles are expanded to what Student's t would ask for, as plain ones are too narrow for few
    blocks (Hesterberg 2015). Fewer than 3 blocks give no interval.
    """
    blocks, mean = len(values), float(values.mean())
    if blocks < 3:
        return Estimate(math.exp(mean), None, None)
    from scipy.special import ndtr

    tail = float(ndtr(-math.sqrt(blocks / (blocks - 1)) * student_quantile(blocks, (1 + CONFIDENCE) / 2)))
    chance = np.random.default_rng(_SEED)
    draws = values[chance.integers(0, blocks, (_RESAMPLES, blocks))].mean(axis=1)
    low, high = np.quantile(draws, [tail, 1.0 - tail])
    return Estimate(math.exp(mean), math.exp(float(low)), math.exp(float(high)))


def attribute(cells: Cells, workload: str, engine: str) -> Attribution | None:
    """Share out the gain of the cell with the highest mean speed; None without a complete block.

    The best cell is chosen by the same data, so its total gain is somewhat flattered; the simultaneous
    interval of that environment is in the table of effects.
    """
    if cells.logs.shape[1] == 0:
        return None
    best = int(np.argmax(cells.logs.mean(axis=1)))
    reference = next(i for i, cell in enumerate(cells.cells) if cell == tuple(o[0] for o in cells.levels))
    total = cells.logs[best] - cells.logs[reference]
    gain = float(total.mean())
    shares = [
        Share(
            cells.factors[factor],
            cells.cells[best][factor],
            resampled(weights @ cells.logs),
            float((weights @ cells.logs).mean()) / gain if gain > 0 else None,
        )
        for factor, weights in shapley_weights(cells, best).items()
    ]
    shares.sort(key=lambda share: -share.gain.ratio)
    return Attribution(
        workload, engine, cells.names[best], resampled(total), tuple(shares), contrasts(cells), cells.logs.shape[1]
    )


@dataclass(frozen=True)
class Step:
    """One rung of a ladder: what it adds to the rung before, and what the ladder gains up to it."""

    environment: str
    before: str
    added: Estimate
    so_far: Estimate


def ladder_steps(names: Sequence[str], logs: Floats) -> tuple[Step, ...]:
    """Return what each step of a ladder adds; ``logs`` is (rungs, blocks), better upwards, baseline first.

    Blocks that lack a rung are left out of all, so that the steps multiply up to the whole. Intervals hold
    for each step alone.
    """
    logs = logs[:, np.isfinite(logs).all(axis=0)]
    if logs.shape[1] == 0:
        return ()
    return tuple(
        Step(names[i], names[i - 1], resampled(logs[i] - logs[i - 1]), resampled(logs[i] - logs[0]))
        for i in range(1, len(names))
    )
