"""By how much each part of a step differs between an environment and its reference: parts that add up, with intervals.

Parts are paired by block as every effect is, in seconds. The four parts add up to the difference of the step in every
block, so their means do too. Intervals of all parts of all environments with one reference hold together: each part
is a family of comparisons of its own (``maxt``), at the level to the power of one over the number of families. That is
the least favourable case of families that depend on one another (Sidak 1967).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envmatrix.plan import Arm, Plan
from envmatrix.stats.analysis import Analysis
from envmatrix.stats.effects import Effect
from envmatrix.stats.maxt import critical_value
from envmatrix.stats.measurements import Measurements
from envmatrix.stats.moderated_variance import moderated_errors
from envmatrix.stats.pairing import Family, families, mean_copies, summarise_pairs
from envmatrix.stats.step_account import PARTS, accounts, of_thread

Floats = NDArray[np.float64]
#: Points of each side of a share that are tried, and how far they reach, in half-widths of a first guess.
_POINTS, _REACHES = 200, (3.0, 12.0, 48.0)


@dataclass(frozen=True)
class Interval:
    """A mean difference with its simultaneous interval; ends are None below two blocks."""

    mean: float
    low: float | None = None
    high: float | None = None

    @property
    def is_sure(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


@dataclass(frozen=True)
class Part:
    """One part of the difference of a step: seconds, and the share of the whole difference (None: unbounded)."""

    name: str
    change: Interval
    share: Interval | None

    @property
    def label(self) -> str:
        """What people read."""
        return PARTS[self.name]


@dataclass(frozen=True)
class Together:
    """The differences of environments from one reference, which are judged together.

    ``differences`` has an array (arms, blocks) by name, NaN if a trial is missing; ``means`` the means of the reference
    and of the environments (arms,) over the same blocks. ``prices`` (blocks,) are those of ``step_account.PRICES``.
    """

    reference: str
    arms: tuple[Arm, ...]
    differences: Mapping[str, Floats]
    means: Mapping[str, tuple[Floats, Floats]]
    prices: Mapping[str, Floats]
    far: Floats
    thread: bool
    comparisons: int
    copies: int
    level: float

    @property
    def counted(self) -> tuple[str, ...]:
        """The parts that somebody counted."""
        there = np.isfinite(self.differences["whole"])
        return tuple(name for name in PARTS if there.any() and np.isfinite(self.differences[name][there]).all())

    def intervals(self, values: Floats, held: int) -> list[Interval]:
        """Return means of differences (arms, blocks) with intervals, of one of ``held`` families judged together."""
        found = summarise_pairs(values, self.far)
        errors, own = moderated_errors(found.error, found.units, self.comparisons)
        return [
            Interval(float(mean))
            if count < 2 or not np.isfinite(error)
            else _around(float(mean), self._critical(int(units), held, own=bool(alone)) * float(error))
            for mean, error, units, count, alone in zip(found.mean, errors, found.units, found.blocks, own, strict=True)
        ]

    def share(self, part: Floats, whole: Floats, held: int) -> Interval | None:
        """Return the ratio of two mean differences (blocks,) with Fieller's interval; None if that is unbounded."""
        mean = float(np.nanmean(whole))
        ratio = float(np.nanmean(part)) / mean if mean else 0.0
        first = summarise_pairs((part - ratio * whole)[None], self.far)
        critical = self._critical(int(first.units[0]), held, own=True)
        width = critical * float(first.error[0]) / abs(mean) if mean else np.inf
        if not np.isfinite(width):
            return None
        for reach in _REACHES:
            tried = ratio + np.linspace(-reach, reach, 2 * _POINTS + 1) * width
            found = summarise_pairs(part - tried[:, None] * whole, self.far)
            outside = np.abs(found.mean) > critical * found.error
            if width == 0 or (outside[:_POINTS].any() and outside[_POINTS:].any()):
                low = int(np.flatnonzero(outside[:_POINTS])[-1]) if width else 0
                high = _POINTS + int(np.flatnonzero(outside[_POINTS:])[0]) if width else 0
                return Interval(ratio, float(tried[low]), float(tried[high]))
        return None

    def _critical(self, units: int, held: int, *, own: bool) -> float:
        level = self.level ** (1.0 / held)
        return critical_value(max(2, units), self.comparisons, self.copies, level=level, own=own)


def _around(mean: float, reach: float) -> Interval:
    return Interval(mean, mean - reach, mean + reach)


@dataclass(frozen=True)
class StepParts:
    """What an environment's step does otherwise than its reference's: ``whole`` is the sum of the ``parts``.

    It is row ``row`` of the environments that are judged together.
    """

    together: Together
    row: int
    whole: Interval
    parts: tuple[Part, ...]

    @property
    def arm(self) -> Arm:
        """Whose step it is."""
        return self.together.arms[self.row]

    @property
    def blocks(self) -> int:
        """How many blocks have both."""
        return int(np.isfinite(self.of("whole")).sum())

    def of(self, name: str) -> Floats:
        """Return its differences block by block."""
        return np.asarray(self.together.differences[name][self.row])

    def means(self, name: str) -> tuple[float, float]:
        """Return the means of the reference and of the environment."""
        before, after = self.together.means[name]
        return float(before[self.row]), float(after[self.row])

    def part(self, name: str) -> Part | None:
        """Return a part, None if nobody counted it."""
        return next((part for part in self.parts if part.name == name), None)


def step_parts(analysis: Analysis, measured: Measurements) -> dict[str, StepParts]:
    """Return, by arm, the parts of the difference of every arm from its reference that step times are known of."""
    return {
        parts.arm.name: parts
        for family in families(analysis.plan)
        if analysis.primary[family.arms[0].workload].is_speed
        for parts in parts_of(_of_family(family, measured, analysis.level))
    }


def agrees(parts: StepParts, effect: Effect) -> bool:
    """Whether an effect is shown, and its step is shorter if it is faster: a program's number may be of other work."""
    return effect.verdict in ("faster", "slower") and (parts.whole.mean < 0) == (effect.verdict == "faster")


def pair_parts(plan: Plan, old: Arm, new: Arm, measured: Measurements, level: float) -> StepParts | None:
    """Return the parts of the difference of two arms of one run, which may be picked after looking at all pairs."""
    copies = tuple(arm.name for arm in plan.arms if arm.is_control and arm.reference == old.name)
    beside = [arm for arm in plan.arms if arm.workload == new.workload and arm.engine == new.engine]
    pairs = tuple(itertools.combinations(beside, 2))[1:]
    family = Family(old.name, (old.name, *copies), (new,), tuple(one for one, _ in pairs))
    return next(iter(parts_of(_of_family(family, measured, level))), None)


def _of_family(family: Family, measured: Measurements, level: float) -> Together:
    rows = [measured.arms.index(name) for name in (*family.copies, *(arm.name for arm in family.arms))]
    thread, copies = of_thread(measured, rows), len(family.copies)
    found = accounts(measured, rows, thread=thread)
    known = {
        name: (mean_copies(values[:copies]), values[copies:])
        for name, values in found.items() if not name.startswith("price.")
    }  # fmt: skip
    there = np.isfinite(known["whole"][1] - known["whole"][0])
    prices = {name[6:]: _per_block(values) for name, values in found.items() if name.startswith("price.")}
    return Together(
        family.reference,
        family.arms,
        {name: np.where(there, after - before, np.nan) for name, (before, after) in known.items()},
        {name: (_means(before, there), _means(after, there)) for name, (before, after) in known.items()},
        prices, measured.apart, thread, max(1, int(there.any(axis=1).sum()) + len(family.beside)), copies, level,
    )  # fmt: skip


def parts_of(together: Together) -> list[StepParts]:
    """Return the parts of each environment that has two blocks with its reference. What nobody counted is no part."""
    differences, counted = together.differences, together.counted
    wholes = together.intervals(differences["whole"], 1)
    changes = {name: together.intervals(differences[name], len(counted)) for name in counted}
    return [
        StepParts(together, row, whole, tuple(_part(together, row, name, changes[name][row]) for name in counted))
        for row, whole in enumerate(wholes)
        if whole.low is not None and counted
    ]


def _part(together: Together, row: int, name: str, change: Interval) -> Part:
    rows = (together.differences[name][row], together.differences["whole"][row])
    return Part(name, change, together.share(*rows, len(together.counted)))


def _per_block(values: Floats) -> Floats:
    """Return the median over all arms of each block, which all of them have in common; NaN if none was measured."""
    there = np.isfinite(values)
    return np.array([np.median(values[there[:, b], b]) if there[:, b].any() else np.nan for b in range(len(there.T))])


def _means(values: Floats, there: NDArray[np.bool_]) -> Floats:
    """Return the mean of each arm's blocks that are there; NaN if none is, or none has that number."""
    values = np.broadcast_to(values, there.shape)
    there = there & np.isfinite(values)
    return np.asarray(np.where(there, values, 0.0).sum(axis=1) / np.where(there.any(axis=1), there.sum(axis=1), np.nan))
