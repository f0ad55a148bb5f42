"""Differences between an environment's step and its reference's, split into parts that add up, with intervals.

Differences are paired by block like every effect, in seconds. In every block the four parts add up to the difference
of the step, so their means do too. The intervals of all parts of all environments with one reference are simultaneous.
Each part is a family of comparisons (``maxt``) at level ** (1 / number of families), the least favourable case of
dependent families (Sidak 1967).

Runs have no blocks in common: their intervals contain the variation between runs (``welch.last_run_difference``), so
they are wider.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from envmatrix.plan import Arm, Plan
from envmatrix.stats.array_types import Bools, Floats
from envmatrix.stats.effect_estimation import Analysis
from envmatrix.stats.effects import Effect
from envmatrix.stats.inference.maxt import critical_value, moderated_errors, student_quantile
from envmatrix.stats.inference.welch import last_run_difference
from envmatrix.stats.measurements import Measurements, finite_medians
from envmatrix.stats.pairing import Family, families, mean_copies, summarise_pairs
from envmatrix.stats.step_account import PARTS, account_and_prices, of_thread

#: Points tried on each side of a share, and the ranges they cover, in half-widths of a first estimate.
_POINTS, _REACHES = 200, (3.0, 12.0, 48.0)
#: Points tried at once, from the share outwards: most intervals end within the first half. With many blocks, fewer.
_AT_ONCE, _MANY_BLOCKS = 12, 500


@dataclass(frozen=True)
class Interval:
    """A mean difference with its simultaneous interval; the ends are None with fewer than two blocks."""

    mean: float
    low: float | None = None
    high: float | None = None

    @property
    def is_sure(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


@dataclass(frozen=True)
class Part:
    """One part of the difference of a step: seconds, and its share of the whole (None: unbounded)."""

    name: str
    change: Interval
    share: Interval | None

    @property
    def label(self) -> str:
        """The text for reports."""
        return PARTS[self.name]


@dataclass(frozen=True)
class Together:
    """The differences of environments from one reference, which are judged together.

    ``differences``: arrays (arms, blocks) by name, NaN if a trial is missing. ``means``: those of the reference and of
    the environments (arms,) over the same blocks. ``prices``: arrays (blocks,) for ``step_account.PRICES``. ``seen`` is
    what was compared, as text, if that is not blocks.
    """

    reference: str
    arms: tuple[Arm, ...]
    differences: Mapping[str, Floats]
    means: Mapping[str, tuple[Floats, Floats]]
    prices: Mapping[str, Floats]
    gaps: Floats
    thread: bool
    comparisons: int
    copies: int
    level: float
    seen: str = ""

    @property
    def counted_parts(self) -> tuple[str, ...]:
        """The parts that were counted."""
        is_known = np.isfinite(self.differences["whole"])
        return tuple(name for name in PARTS if is_known.any() and np.isfinite(self.differences[name][is_known]).all())

    def intervals(self, values: Floats, held: int) -> list[Interval]:
        """Return mean differences with intervals from (arms, blocks), as one of ``held`` families judged together."""
        return [
            Interval(mean, mean - reach, mean + reach) if math.isfinite(reach) else Interval(mean)
            for mean, reach in zip(*map(np.ndarray.tolist, self.row_means_and_half_widths(values, held)), strict=True)
        ]

    def row_means_and_half_widths(self, values: Floats, held: int, *, own: bool = False) -> tuple[Floats, Floats]:
        """Return mean differences and half-widths of their intervals (NaN: none). ``own``: each with its own error."""
        summary = summarise_pairs(values, self.gaps)
        errors, is_own = summary.error, np.ones(len(values), dtype=np.bool_)
        if not own:
            errors, is_own = moderated_errors(summary.error, summary.units, self.comparisons)
        keys = list(zip(summary.units.tolist(), is_own.tolist(), strict=True))
        critical = {key: self._critical(key[0], held, own=key[1]) for key in set(keys)}
        reach = np.array([critical[key] for key in keys]) * errors
        return summary.mean, np.where(summary.blocks < 2, np.nan, reach)

    def share(self, part: Floats, whole: Floats, held: int) -> Interval | None:
        """Return the ratio of two mean differences (blocks,) with Fieller's interval; None if that is unbounded."""
        (part_mean, mean), _ = self.row_means_and_half_widths(np.stack([part, whole]), held, own=True)
        ratio = float(part_mean / mean) if mean else 0.0
        _, (first,) = self.row_means_and_half_widths((part - ratio * whole)[None], held, own=True)
        width = float(first / abs(mean)) if mean else np.inf
        if not np.isfinite(width):
            return None
        for reach in _REACHES:
            tried = ratio + np.linspace(-reach, reach, 2 * _POINTS + 1) * width
            low = self._first_excluded(part, whole, tried[_POINTS - 1 :: -1], held) if width else ratio
            high = self._first_excluded(part, whole, tried[_POINTS:], held) if width else ratio
            if low is not None and high is not None:
                return Interval(ratio, low, high)
        return None

    def _first_excluded(self, part: Floats, whole: Floats, shares: Floats, held: int) -> float | None:
        """Return the first of the ``shares`` that the blocks exclude, None if they exclude none.

        All beyond it are excluded too if mean and error are smooth in the share (Fieller 1954), so halving finds it.
        With few blocks the error may jump, as it is of few cosines or of all (``standard_errors``).
        """

        def excluded(tried: Floats) -> Bools:
            means, reaches = self.row_means_and_half_widths(part - tried[:, None] * whole, held, own=True)
            return np.asarray(np.abs(means) > reaches)

        if np.isfinite(whole).sum() > _MANY_BLOCKS:
            first = bisect.bisect_left(range(len(shares)), True, key=lambda at: excluded(shares[at : at + 1])[0])
            return float(shares[first]) if first < len(shares) else None
        for tried in np.split(shares, range(_AT_ONCE, len(shares), _AT_ONCE)):
            if (is_excluded := excluded(tried)).any():
                return float(tried[is_excluded][0])
        return None

    def _critical(self, units: int, held: int, *, own: bool) -> float:
        level = self.level ** (1.0 / held)
        return critical_value(max(2, units), self.comparisons, self.copies, level=level, own=own)


@dataclass(frozen=True)
class StepParts:
    """The difference between an environment's step and its reference's: ``whole`` is the sum of the ``parts``.

    ``row`` is its index among the environments judged together.
    """

    together: Together
    row: int
    whole: Interval
    parts: tuple[Part, ...]

    @property
    def arm(self) -> Arm:
        """The environment's arm."""
        return self.together.arms[self.row]

    @property
    def blocks(self) -> int:
        """The number of blocks that have both."""
        return int(np.isfinite(self.block_differences("whole")).sum())

    @property
    def compared_data_text(self) -> str:
        """What was compared, as text."""
        return self.together.seen or f"{self.blocks} blocks"

    def block_differences(self, name: str) -> Floats:
        """Return its differences by block."""
        return np.asarray(self.together.differences[name][self.row])

    def means(self, name: str) -> tuple[float, float]:
        """Return the means of the reference and of the environment."""
        before, after = self.together.means[name]
        return float(before[self.row]), float(after[self.row])

    def part(self, name: str) -> Part | None:
        """Return a part, None if it was not counted."""
        return next((part for part in self.parts if part.name == name), None)


def step_parts(analysis: Analysis, measured: Measurements) -> dict[str, StepParts]:
    """Return, by arm, the parts of the difference from its reference, for every arm with known step times."""
    return {
        parts.arm.name: parts
        for family in families(analysis.plan)
        if analysis.primary[family.arms[0].workload].is_speed
        for parts in step_parts_by_environment(_of_family(family, measured, analysis.level))
    }


def agrees(parts: StepParts, effect: Effect) -> bool:
    """Return whether effect and step changed significantly in the same direction: a metric may measure other work."""
    is_faster = parts.whole.mean < 0
    return parts.whole.is_sure and effect.verdict == ("faster" if is_faster else "slower")


def pair_parts(plan: Plan, old: Arm, new: Arm, measured: Measurements, level: float) -> StepParts | None:
    """Return the parts of the difference of two arms of one run, corrected for picking them from all pairs."""
    copies = tuple(arm.name for arm in plan.arms if arm.is_control and arm.reference == old.name)
    beside = [arm for arm in plan.arms if arm.workload == new.workload and arm.engine == new.engine]
    pairs = tuple(itertools.combinations(beside, 2))[1:]
    family = Family(old.name, (old.name, *copies), (new,), tuple(block for block, _ in pairs))
    return next(iter(step_parts_by_environment(_of_family(family, measured, level))), None)


def _of_family(family: Family, measured: Measurements, level: float) -> Together:
    rows = [measured.arms.index(name) for name in (*family.copies, *(arm.name for arm in family.arms))]
    thread, copies = of_thread(measured.table, rows), len(family.copies)
    account, prices = account_and_prices(measured.table, rows, thread=thread)
    both_sides = {name: (mean_copies(values[:copies]), values[copies:]) for name, values in account.items()}
    has_both = np.isfinite(both_sides["whole"][1] - both_sides["whole"][0])
    differences = {name: np.where(has_both, after - before, np.nan) for name, (before, after) in both_sides.items()}
    means = {name: (_means(before, has_both), _means(after, has_both)) for name, (before, after) in both_sides.items()}
    medians = {name: finite_medians(values, 0) for name, values in prices.items()}
    comparisons = max(1, int(has_both.any(axis=1).sum()) + len(family.beside))
    compared = family.reference, family.arms, differences, means, medians
    return Together(*compared, measured.block_gaps, thread, comparisons, copies, level)


def step_parts_by_environment(together: Together) -> list[StepParts]:
    """Return the counted parts of each environment that has at least two blocks in common with its reference."""
    differences, counted = together.differences, together.counted_parts
    wholes = together.intervals(differences["whole"], 1)
    changes = {name: together.intervals(differences[name], len(counted)) for name in counted}
    return [
        StepParts(together, row, whole, tuple(_part(together, row, name, changes[name][row]) for name in counted))
        for row, whole in enumerate(wholes)
        if whole.low is not None and counted
    ]


def _part(together: Together, row: int, name: str, change: Interval) -> Part:
    rows = (together.differences[name][row], together.differences["whole"][row])
    return Part(name, change, together.share(*rows, len(together.counted_parts)))


def _means(values: Floats, used: Bools) -> Floats:
    """Return the mean over each arm's available blocks; NaN if there are none."""
    values = np.broadcast_to(values, used.shape)
    used = used & np.isfinite(values)
    return np.asarray(np.where(used, values, 0.0).sum(axis=1) / np.where(used.any(axis=1), used.sum(axis=1), np.nan))


@dataclass(frozen=True)
class OfRuns(Together):
    """The numbers of one environment in several runs.

    ``differences`` are the values themselves: (1, blocks of all runs). ``ends``: where the blocks of each run end; the
    newest run is the last one.
    """

    ends: tuple[int, ...] = ()

    def row_means_and_half_widths(self, values: Floats, held: int, *, own: bool = False) -> tuple[Floats, Floats]:
        """Return the differences of the newest run from the mean of the others, and half-widths of their intervals."""
        mean, error = last_run_difference(*_of_runs(values, self.ends))
        level = self.level ** (1.0 / held)
        return mean, student_quantile(len(self.ends) - 1, 1.0 - (1.0 - level) / (2 * self.comparisons)) * error


def unpaired_parts(
    arm: Arm, names: tuple[str, str], olds: Sequence[Measurements], new: Measurements, comparisons: int, level: float
) -> StepParts | None:
    """Return the parts of an arm's difference between runs; None if a run has not counted them.

    ``names``: of the older run and of the newer one, which become the reference and the environment.
    """
    runs = (*olds, new)
    tables = [(run.table, [run.arms.index(arm.name)]) for run in runs]
    thread = all(of_thread(*table) for table in tables)
    run_accounts, run_prices = zip(*(account_and_prices(*table, thread=thread) for table in tables), strict=True)
    values, prices = (
        {name: np.concatenate([numbers[name] for numbers in of_runs], axis=1) for name in of_runs[0]}
        for of_runs in (run_accounts, run_prices)
    )
    has_whole, ends = np.isfinite(values["whole"]), np.cumsum([len(run.blocks) for run in runs]).tolist()
    if any(part.sum() < 2 for part in np.split(has_whole[0], ends[:-1])):
        return None
    values = {name: np.where(has_whole, numbers, np.nan) for name, numbers in values.items()}
    run_means = {name: _of_runs(numbers, ends)[0] for name, numbers in values.items()}
    means = {name: (of_run[:, :-1].mean(axis=1), of_run[:, -1]) for name, of_run in run_means.items()}
    medians = {name: finite_medians(numbers, 0) for name, numbers in prices.items()}
    reference, arms = f"{names[0]}:{arm.workload}@{arm.engine}", (replace(arm, environment=names[1]),)
    seen = f"with {len(olds)} older runs"
    compared = reference, arms, values, means, medians
    together = OfRuns(*compared, new.block_gaps, thread, comparisons, 1, level, seen, tuple(ends))
    return next(iter(step_parts_by_environment(together)), None)


def _of_runs(values: Floats, ends: Sequence[int]) -> tuple[Floats, Floats]:
    """Return the mean of each run and its standard error: arrays (rows, runs) from (rows, blocks of all runs)."""
    runs = np.split(values, ends[:-1], axis=1)
    counts = np.stack([np.isfinite(run).sum(axis=1) for run in runs], axis=1)
    means = np.stack([np.nansum(run, axis=1) for run in runs], axis=1) / np.where(counts, counts, np.nan)
    squares = [np.nansum((run - means[:, [index]]) ** 2, axis=1) for index, run in enumerate(runs)]
    return means, np.sqrt(np.stack(squares, axis=1) / np.where(counts > 1, (counts - 1) * counts, np.nan))
