"""Attribution in factorial designs: main effects, interactions, and each factor's share of the gain."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from envmatrix.plan import Arm
from envmatrix.stats.array_types import Floats
from envmatrix.stats.attribution.contrasts import MOST_DRAWN, Estimate, contrast_family, estimate_contrasts
from envmatrix.stats.effects import LEVEL, Effect, can_be_called_best
from envmatrix.stats.measurements import Measurements
from envmatrix.stats.metrics import Metric
from envmatrix.stats.pairing import Views, log_ratios_over_copy_mean, logs_of, summarise_pairs
from envmatrix.stats.quality.slow_trials import find_slow_trials, with_and_without_slow

Levels = Mapping[str, str]
_MOST_FACTORS = 12
_LEAST_BLOCKS = 3


@dataclass(frozen=True)
class Contrast:
    """A main effect (one factor and level) or an interaction (two), relative to the reference levels.

    A main effect is averaged over all levels of the other factors. An interaction is the factor by which two changes
    together exceed (above 1) or miss the product of the two.
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
    """The contribution of one factor to the gain of the best environment: a ratio, and its part of the log gain."""

    factor: str
    level: str
    gain: Estimate
    part: float | None


@dataclass(frozen=True)
class Attribution:
    """The attribution of one factorial design. The product of ``shares`` is ``total``, the speed-up of the best."""

    workload: str
    engine: str
    best: str
    total: Estimate
    shares: tuple[Share, ...]
    contrasts: tuple[Contrast, ...]
    blocks: int


@dataclass(frozen=True)
class Cells:
    """A full factorial: one row of ``logs`` (cells x blocks, higher is better) for each combination of levels.

    The first cell is the reference; ``copies`` (copies x blocks) are its controls. ``gaps``: see
    ``standard_errors.block_gaps``. Missing trials are NaN; every block has the reference.
    """

    factors: tuple[str, ...]
    levels: tuple[tuple[str, ...], ...]
    cells: tuple[tuple[str, ...], ...]
    names: tuple[str, ...]
    logs: Floats
    copies: Floats = field(default_factory=lambda: np.empty((0, 0)))
    gaps: Floats | None = None

    @cached_property
    def gains(self) -> Views:
        """The log ratios over the mean of the reference's copies, as in the table of effects (cells x blocks)."""
        return gains_over_reference(self.logs, self.copies, self.gaps)


def gains_over_reference(logs: Floats, copies: Floats, gaps: Floats | None = None) -> Views:
    """Return the log ratios of ``logs`` (rows, blocks) over the first row and its copies; the first row is 0."""
    rows = np.vstack([logs[:1], copies, logs[1:]]) if copies.size else logs
    views = [
        log_ratios_over_copy_mean(view, 1 + len(copies)) for view in with_and_without_slow(rows, find_slow_trials(rows))
    ]
    return Views(tuple(np.vstack([np.zeros_like(logs[:1]), view]) for view in views), gaps)


def find_cells(
    arms: Sequence[Arm], environments: Mapping[str, Levels], measured: Measurements, metric: Metric
) -> Cells | None:
    """Arrange the arms of one workload and engine as a full factorial; return None if they are not one.

    ``environments`` maps each environment to its levels. The first arm is the baseline, whose levels are the
    references. Its controls are further trials of that cell, as in the table of effects. Blocks without a baseline are
    left out.
    """
    controls = [arm.name for arm in arms if arm.is_control and arm.reference == arms[0].name]
    arms = [arm for arm in arms if not (arm.is_control or arm.is_uninterrupted_copy) and arm.runs in environments]
    if not arms:
        return None
    arm_levels = [environments[arm.runs] for arm in arms]
    varied_factors = [f for f in arm_levels[0] if len({levels.get(f) for levels in arm_levels}) > 1]
    options = [tuple(dict.fromkeys(levels[f] for levels in arm_levels if f in levels)) for f in varied_factors]
    cells = [tuple(levels.get(f, "") for f in varied_factors) for levels in arm_levels]
    has_all_cells = 0 < len(varied_factors) <= _MOST_FACTORS and len(cells) == math.prod(map(len, options))
    if not has_all_cells or set(cells) != set(itertools.product(*options)):  # or arms of two matrices
        return None
    logs, copies, gaps = signed_logs([arm.name for arm in arms], controls, measured, metric)
    names = tuple(arm.environment for arm in arms)
    return Cells(tuple(varied_factors), tuple(options), tuple(cells), names, logs, copies, gaps)


def signed_logs(
    arms: Sequence[str], controls: Sequence[str], measured: Measurements, metric: Metric
) -> tuple[Floats, Floats, Floats]:
    """Return the logs (higher is better) of arms and controls in blocks with the first arm, and their ``apart``."""
    index = [measured.arms.index(name) for name in (*arms, *controls)]
    logs = metric.sign * logs_of(measured.table[metric.name][index])
    has_reference = np.isfinite(logs[0])
    return logs[: len(arms), has_reference], logs[len(arms) :, has_reference], measured.block_gaps[has_reference]


def _contrast_weights(cells: Cells, tested_levels: Mapping[int, str]) -> Floats:
    """Return the weights of the cells for a main effect or an interaction, as products of differences."""
    weights = np.ones(len(cells.cells))
    for position, options in enumerate(cells.levels):
        if position in tested_levels:
            tested = tested_levels[position]
            weights *= [float(cell[position] == tested) - float(cell[position] == options[0]) for cell in cells.cells]
        else:
            weights /= len(options)
    return weights


def contrasts(cells: Cells, needed: int = 2, level: float = LEVEL) -> tuple[Contrast, ...]:
    """Return all main effects and two-way interactions with simultaneous intervals (see ``contrasts.py``).

    The model is log time = block + cell + error, with a separate error variance per cell. Estimates use the cells' mean
    gains, which equals least squares if no trial is missing. Below ``needed`` pairs in any cell there is no interval.
    """
    positions = range(len(cells.factors))
    level_choices = [
        dict(zip(chosen, levels, strict=True))
        for factor_count in (1, 2)
        for chosen in itertools.combinations(positions, factor_count)
        for levels in itertools.product(*(cells.levels[i][1:] for i in chosen))
    ]
    weights = np.array([_contrast_weights(cells, item) for item in level_choices])
    family = contrast_family(weights, 1 + len(cells.copies), level=level)
    estimates = estimate_contrasts(cells.gains, weights, family, needed)
    return tuple(
        Contrast(tuple((cells.factors[i], level) for i, level in item.items()), estimate, estimate.p)
        for item, estimate in zip(level_choices, estimates, strict=True)
    )


def shapley_weights(cells: Cells, best: int) -> dict[int, Floats]:
    """Return the weights of the cells for the Shapley value of each factor that ``best`` changes.

    A set of factors is worth the log speed of one cell: those at best's level, all others at their reference (Shapley
    1953). Shares add up exactly to the gain of ``best``, even with interactions.
    """
    cell_index = {cell: index for index, cell in enumerate(cells.cells)}
    reference = tuple(options[0] for options in cells.levels)
    changed = [i for i in range(len(cells.factors)) if cells.cells[best][i] != reference[i]]
    weights = {i: np.zeros(len(cells.cells)) for i in changed}
    for factor in changed:
        others = [i for i in changed if i != factor]
        for size in range(len(others) + 1):
            coalition_weight = 1.0 / (len(changed) * math.comb(len(changed) - 1, size))
            for coalition in itertools.combinations(others, size):
                without = tuple(cells.cells[best][i] if i in coalition else reference[i] for i in range(len(reference)))
                joined = tuple(cells.cells[best][i] if i == factor else level for i, level in enumerate(without))
                weights[factor][cell_index[joined]] += coalition_weight
                weights[factor][cell_index[without]] -= coalition_weight
    return weights


def _shares(cells: Cells, best: int, mean: Floats, needed: int, level: float) -> tuple[Share, ...]:
    """Return the share of each factor that ``best`` changes, the largest first; ``mean`` are the gains of the cells.

    The same trials were used to pick ``best``. So intervals are simultaneous over all factors of all cells that could
    have been picked.
    """
    members = sum(level != first for cell in cells.cells for level, first in zip(cell, cells.cells[0], strict=True))
    best_weights = shapley_weights(cells, best)
    if not best_weights:
        return ()
    rivals = range(1, len(cells.cells)) if members <= MOST_DRAWN else ()
    rows = [row for rival in rivals for row in shapley_weights(cells, rival).values()]
    weights = np.array(list(best_weights.values()))
    family = contrast_family(np.array(rows) if rows else weights, 1 + len(cells.copies), members, level)
    estimates, gain = estimate_contrasts(cells.gains, weights, family, needed), float(mean[best])
    parts = [float(row @ mean) / gain if gain > 0 else None for row in best_weights.values()]
    shares = [
        Share(cells.factors[factor], cells.cells[best][factor], estimate, part)
        for factor, estimate, part in zip(best_weights, estimates, parts, strict=True)
    ]
    return tuple(sorted(shares, key=lambda share: -share.gain.ratio))


def _total_gain(
    name: str, at: int, gains: Views, copies: int, level: float, table: Mapping[str, Effect], needed: int
) -> Estimate:
    """Return the gain of row ``at`` from the table of effects, whose interval is valid whichever row was picked."""
    if at == 0:
        return Estimate(1.0)
    effect = table.get(name)
    if effect and effect.ratio is not None:
        return Estimate(effect.ratio, effect.low, effect.high, effect.p)
    rows = np.eye(len(gains.with_all_trials))
    family = contrast_family(rows[1:], copies, level=level)
    return estimate_contrasts(gains, rows[[at]], family, needed)[0]


def attribute_gain(
    cells: Cells,
    workload: str,
    engine: str,
    table: Mapping[str, Effect] | None = None,
    needed: int = _LEAST_BLOCKS,
    recommended: str = "",
    level: float = LEVEL,
) -> Attribution | None:
    """Split the gain of the ``recommended`` environment into shares; return None if a cell has no pair.

    If no cell is recommended, use the fastest one that may be the best. ``table`` contains the effects over the
    reference cell, from which the total gain is taken. Below ``needed`` pairs there are no intervals; ``level`` is
    their confidence.
    """
    table = table or {}
    gains = cells.gains
    gain_summary = summarise_pairs(gains.with_all_trials)
    if not gain_summary.blocks.all():
        return None
    is_barred = [name in table and not can_be_called_best(table[name]) for name in cells.names]
    fastest = int(np.argmax(np.where(is_barred, -np.inf, gain_summary.mean)))
    best = cells.names.index(recommended) if recommended in cells.names else fastest
    shares = _shares(cells, best, gain_summary.mean, needed, level)
    name, blocks = cells.names[best], int(gain_summary.blocks.max())
    total = _total_gain(name, best, gains, 1 + len(cells.copies), level, table, needed)
    return Attribution(workload, engine, name, total, shares, contrasts(cells, needed, level), blocks)


@dataclass(frozen=True)
class CumulativeStep:
    """One environment of a cumulative design: what it adds to the one before, and the total gain so far."""

    environment: str
    before: str
    added: Estimate
    so_far: Estimate


def cumulative_steps(
    names: Sequence[str],
    gains: Views,
    table: Mapping[str, Effect] | None = None,
    needed: int = _LEAST_BLOCKS,
    copies: int = 1,
    level: float = LEVEL,
) -> tuple[CumulativeStep, ...]:
    """Return the gain added by each step of a cumulative design.

    ``gains`` is (environments, blocks) over the baseline, whose own row comes first. As in the table of effects, each
    environment is compared with ``copies`` of the baseline. A step is the difference of two environments, so the steps
    multiply to the total. Intervals of all steps are simultaneous.
    """
    if not summarise_pairs(gains.with_all_trials).blocks.all():
        return ()
    rows, table = np.eye(len(names)), table or {}
    weights = np.array([rows[i] - rows[i - 1] * (i > 1) for i in range(1, len(names))])
    added = estimate_contrasts(gains, weights, contrast_family(weights, copies, level=level), needed)
    steps = []
    for at, (before, name) in enumerate(itertools.pairwise(names)):
        so_far = _total_gain(name, at + 1, gains, copies, level, table, needed)
        steps.append(CumulativeStep(name, before, added[at], so_far))
    return tuple(steps)
