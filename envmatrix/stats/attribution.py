"""Which factor brings how much: main effects and interactions of a factorial, and each factor's share of the gain."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from envmatrix.plan import Arm
from envmatrix.stats.effects import CONFIDENCE, Effect, Flag
from envmatrix.stats.maxt import student_quantile
from envmatrix.stats.measurements import Measurements
from envmatrix.stats.metrics import Metric
from envmatrix.stats.pairing import logs_of, mean_copies, paired, ratio_of

Floats = NDArray[np.float64]
Levels = Mapping[str, str]
_RESAMPLES = 10_000
_SEED = 20_260_102
_MOST_FACTORS = 12
_LEAST_BLOCKS = 3


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
    """The attribution of one factorial design. ``shares`` multiply up to ``total``, the best one's own speed-up."""

    workload: str
    engine: str
    best: str
    total: Estimate
    shares: tuple[Share, ...]
    contrasts: tuple[Contrast, ...]
    blocks: int


def _no_copies() -> Floats:
    return np.empty((0, 0))


@dataclass(frozen=True)
class Cells:
    """A full factorial: one row of ``logs`` (cells x blocks, better upwards) for each combination of levels.

    The first cell is the reference; ``copies`` (copies x blocks) are further observations of it, the controls.
    NaN where a trial is missing; no block lacks the reference.
    """

    factors: tuple[str, ...]
    levels: tuple[tuple[str, ...], ...]
    cells: tuple[tuple[str, ...], ...]
    names: tuple[str, ...]
    logs: Floats
    copies: Floats = field(default_factory=_no_copies)

    @property
    def gains(self) -> Floats:
        """Log ratios over the mean of the reference's copies, as in the table of effects (cells x blocks)."""
        return gains_of(self.logs, self.copies)


def gains_of(logs: Floats, copies: Floats) -> Floats:
    """Return the log ratios of ``logs`` (rows, blocks) over the first row and its copies; that row's own are 0."""
    first = logs[:1]
    reference = mean_copies(np.vstack([first, copies])) if copies.size else first[0]
    return np.vstack([np.zeros_like(first), logs[1:] - reference])


def find_cells(
    arms: Sequence[Arm], environments: Mapping[str, Levels], measured: Measurements, metric: Metric
) -> Cells | None:
    """Arrange the arms of one workload and engine as a full factorial; None when they are not one.

    ``environments`` gives each environment's levels. The first arm is the baseline: its levels are the
    references. Its controls are further trials of that cell, as in the table of effects. Blocks without a
    baseline are left out.
    """
    controls = [arm.name for arm in arms if arm.is_control and arm.reference == arms[0].name]
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
    logs, copies = signed_logs([arm.name for arm in arms], controls, measured, metric)
    names = tuple(arm.environment for arm in arms)
    return Cells(tuple(varied), tuple(options), tuple(cells), names, logs, copies)


def signed_logs(
    arms: Sequence[str], controls: Sequence[str], measured: Measurements, metric: Metric
) -> tuple[Floats, Floats]:
    """Return the logs of arms and of controls, better upwards, in the blocks that have the first arm."""
    index = [measured.arms.index(name) for name in (*arms, *controls)]
    logs = metric.sign * logs_of(measured.table[metric.name][index])
    logs = logs[:, np.isfinite(logs[0])]
    return logs[: len(arms)], logs[len(arms) :]


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


def residual_variance(logs: Floats, copies: Floats) -> tuple[float, int]:
    """Return the variance that cells and blocks leave over (least squares), and its degrees of freedom.

    ``copies`` are further rows of the first cell. Block effects are eliminated first, so that the system to be
    solved is as large as the number of cells; any trial may be missing.
    """
    rows = np.vstack([logs, copies]) if copies.size else logs
    member = np.zeros((len(logs), len(rows)))
    member[[*range(len(logs)), *[0] * (len(rows) - len(logs))], range(len(rows))] = 1.0
    there = np.isfinite(rows)
    values = np.where(there, rows, 0.0)
    counts, in_block = member @ there, there.sum(axis=0)
    shares = counts / in_block
    system = np.diag(counts.sum(axis=1)) - shares @ counts.T
    right = member @ values.sum(axis=1) - shares @ values.sum(axis=0)
    effects, _, rank, _ = np.linalg.lstsq(system, right, rcond=1e-10)
    blocks = (values.sum(axis=0) - effects @ counts) / in_block
    rest = np.where(there, rows - (member.T @ effects)[:, None] - blocks, 0.0)
    freedom = int(there.sum()) - rows.shape[1] - int(rank)
    return (float((rest**2).sum() / freedom) if freedom > 0 else math.nan), freedom


def _size(cells: Cells, weights: Floats) -> float:
    """Return the variance of ``weights @ mean gains`` in units of a trial's; gains of a block share its reference."""
    there = np.isfinite(cells.gains[1:])
    each = weights[1:, None] * there / there.sum(axis=1, keepdims=True)
    copies = 1 + (np.isfinite(cells.copies).sum(axis=0) if cells.copies.size else np.zeros(there.shape[1]))
    return float((each**2).sum() + (each.sum(axis=0) ** 2 / copies).sum())


def contrasts(cells: Cells, needed: int = 2) -> tuple[Contrast, ...]:
    """Return all main effects and two-way interactions; their intervals hold together (Bonferroni).

    The model is log time = block + cell + error. Estimates are made of the cells' mean gains, which is what least
    squares gives where no trial is missing. Below ``needed`` pairs of any cell there is no interval.
    """
    positions = range(len(cells.factors))
    wanted: list[dict[int, str]] = [{i: level} for i in positions for level in cells.levels[i][1:]]
    wanted += [
        {i: one, j: other}
        for i, j in itertools.combinations(positions, 2)
        for one in cells.levels[i][1:]
        for other in cells.levels[j][1:]
    ]
    summed = paired(cells.gains)
    variance, freedom = residual_variance(cells.logs, cells.copies)
    if summed.blocks.min() < max(2, needed):
        variance = math.nan
    return tuple(_contrast(cells, item, summed.mean, variance, freedom, len(wanted)) for item in wanted)


def _contrast(
    cells: Cells, wanted: Mapping[int, str], means: Floats, variance: float, freedom: int, family: int
) -> Contrast:
    from scipy.special import stdtr

    weights = _weights(cells, wanted)
    value = float(weights @ means)
    levels = tuple((cells.factors[i], level) for i, level in wanted.items())
    if not math.isfinite(variance):
        return Contrast(levels, Estimate(ratio_of(value), None, None), None)
    error = math.sqrt(variance * _size(cells, weights))
    reach = error * student_quantile(freedom + 1, 1.0 - (1.0 - CONFIDENCE) / (2 * family))
    p = float(2.0 * stdtr(freedom, -abs(value) / error)) if error > 0 else (0.0 if value else 1.0)
    return Contrast(
        levels, Estimate(ratio_of(value), ratio_of(value - reach), ratio_of(value + reach)), min(1.0, p * family)
    )


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


def resampled(gains: Floats, weights: Floats, needed: int = _LEAST_BLOCKS) -> Estimate:
    """Return the ratio that ``weights`` make of the mean ``gains`` (rows, blocks), its interval by resampling blocks.

    The percentiles are expanded to what Student's t would ask for, as plain ones are too narrow for few
    blocks (Hesterberg 2015); scipy's ``bootstrap`` has no such percentiles, and takes no rows with gaps. A row with
    fewer than ``needed`` blocks gives no interval.
    """
    gains, weights = gains[weights != 0], weights[weights != 0]
    ratio = ratio_of(float(weights @ paired(gains).mean))
    there = np.isfinite(gains)
    pairs, blocks = int(there.sum(axis=1).min(initial=gains.shape[1])), gains.shape[1]
    if pairs < max(_LEAST_BLOCKS, needed):
        return Estimate(ratio, None, None)
    from scipy.special import ndtr

    tail = float(ndtr(-math.sqrt(pairs / (pairs - 1)) * student_quantile(pairs, (1 + CONFIDENCE) / 2)))
    chosen = np.random.default_rng(_SEED).multinomial(blocks, [1 / blocks] * blocks, _RESAMPLES).astype(np.float64)
    with np.errstate(invalid="ignore"):  # a draw may have none of a row's blocks
        means = (chosen @ np.where(there, gains, 0.0).T) / (chosen @ there.T.astype(np.float64))
    low, high = np.nanquantile(means @ weights, [tail, 1.0 - tail])
    return Estimate(ratio, ratio_of(float(low)), ratio_of(float(high)))


def _whole(name: str, at: int, gains: Floats, table: Mapping[str, Effect], needed: int) -> Estimate:
    """Return the gain of row ``at``: that of the table of effects, whose interval holds whichever was picked."""
    if at == 0:
        return Estimate(1.0, None, None)
    effect = table.get(name)
    if effect and effect.ratio is not None:
        return Estimate(effect.ratio, effect.low, effect.high)
    return resampled(gains, np.eye(len(gains))[at], needed)


def attribute(
    cells: Cells, workload: str, engine: str, table: Mapping[str, Effect] | None = None, needed: int = _LEAST_BLOCKS
) -> Attribution | None:
    """Share out the gain of the fastest cell that did equal work; None where a cell has no pair.

    ``table`` holds the effects of environments against the reference cell: the whole gain is the one there. Below
    ``needed`` pairs there are no intervals.
    """
    table = table or {}
    gains = cells.gains
    summed = paired(gains)
    if not summed.blocks.all():
        return None
    unequal = [name in table and Flag.UNEQUAL_WORK in table[name].flags for name in cells.names]
    best = int(np.argmax(np.where(unequal, -np.inf, summed.mean)))
    gain = float(summed.mean[best])
    shares = [
        Share(
            cells.factors[factor],
            cells.cells[best][factor],
            resampled(gains, weights, needed),
            float(weights @ summed.mean) / gain if gain > 0 else None,
        )
        for factor, weights in shapley_weights(cells, best).items()
    ]
    shares.sort(key=lambda share: -share.gain.ratio)
    total = _whole(cells.names[best], best, gains, table, needed)
    found = contrasts(cells, needed)
    return Attribution(workload, engine, cells.names[best], total, tuple(shares), found, int(summed.blocks.max()))


@dataclass(frozen=True)
class Rung:
    """One rung of a ladder: what it adds to the rung before, and what the ladder gains up to it."""

    environment: str
    before: str
    added: Estimate
    so_far: Estimate


def ladder_rungs(
    names: Sequence[str], gains: Floats, table: Mapping[str, Effect] | None = None, needed: int = _LEAST_BLOCKS
) -> tuple[Rung, ...]:
    """Return what each step of a ladder adds; ``gains`` is (rungs, blocks) over the baseline, its own row first.

    Each rung is compared with the baseline as in the table of effects, and a step is the difference of two, so
    that the steps multiply up to the whole. Intervals of steps hold for each alone.
    """
    if not paired(gains).blocks.all():
        return ()
    rungs = np.eye(len(names))
    return tuple(
        Rung(
            names[i],
            names[i - 1],
            resampled(gains, rungs[i] - rungs[i - 1] * (i > 1), needed),
            _whole(names[i], i, gains, table or {}, needed),
        )
        for i in range(1, len(names))
    )
