"""Differences between an environment's step and its reference's, split into parts that add up, with intervals.

Differences are paired by block like every effect, in seconds. In every block the four parts add up to the difference
of the step, so their means do too. The intervals of all parts of all environments with one reference are simultaneous.
Each part is a family of comparisons (``maxt``) at level ** (1 / number of families), the least favourable case of
dependent families (Sidak 1967).
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envmatrix.plan import Arm, Plan
from envmatrix.stats.analysis import Analysis
from envmatrix.stats.effects import Effect
from envmatrix.stats.inference.maxt import critical_value
from envmatrix.stats.inference.moderated_variance import moderated_errors
from envmatrix.stats.measurements import Measurements, finite_medians
from envmatrix.stats.pairing import Family, families, mean_copies, summarise_pairs
from envmatrix.stats.step_account import PARTS, accounts, of_thread

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
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
    far: Floats
    thread: bool
    comparisons: int
    copies: int
    level: float
    seen: str = ""

    @property
    def counted(self) -> tuple[str, ...]:
        """The parts that were counted."""
        there = np.isfinite(self.differences["whole"])
        return tuple(name for name in PARTS if there.any() and np.isfinite(self.differences[name][there]).all())

    def intervals(self, values: Floats, held: int) -> list[Interval]:
        """Return mean differences with intervals from (arms, blocks), as one of ``held`` families judged together."""
        return [
            _around(float(mean), float(reach)) if np.isfinite(reach) else Interval(float(mean))
            for mean, reach in zip(*self.estimates(values, held), strict=True)
        ]

    def estimates(self, values: Floats, held: int, *, own: bool = False) -> tuple[Floats, Floats]:
        """Return mean differences and half-widths of their intervals (NaN: none). ``own``: each with its own error."""
        found = summarise_pairs(values, self.far)
        errors, alone = found.error, np.ones(len(values), dtype=np.bool_)
        if not own:
            errors, alone = moderated_errors(found.error, found.units, self.comparisons)
        keys = list(zip(found.units.tolist(), alone.tolist(), strict=True))
        critical = {key: self._critical(key[0], held, own=key[1]) for key in set(keys)}
        reach = np.array([critical[key] for key in keys]) * errors
        return found.mean, np.where(found.blocks < 2, np.nan, reach)

    def share(self, part: Floats, whole: Floats, held: int) -> Interval | None:
        """Return the ratio of two mean differences (blocks,) with Fieller's interval; None if that is unbounded."""
        (part_mean, mean), _ = self.estimates(np.stack([part, whole]), held, own=True)
        ratio = float(part_mean / mean) if mean else 0.0
        _, (first,) = self.estimates((part - ratio * whole)[None], held, own=True)
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
        With few blocks the error may jump, as it is of few cosines or of all (``slow_phases``).
        """

        def excluded(tried: Floats) -> Bools:
            means, reaches = self.estimates(part - tried[:, None] * whole, held, own=True)
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


def _around(mean: float, reach: float) -> Interval:
    return Interval(mean, mean - reach, mean + reach)


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
        return int(np.isfinite(self.of("whole")).sum())

    @property
    def seen(self) -> str:
        """What was compared, as text."""
        return self.together.seen or f"{self.blocks} blocks"

    def of(self, name: str) -> Floats:
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
        for parts in parts_of(_of_family(family, measured, analysis.level))
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
    family = Family(old.name, (old.name, *copies), (new,), tuple(one for one, _ in pairs))
    return next(iter(parts_of(_of_family(family, measured, level))), None)


def _of_family(family: Family, measured: Measurements, level: float) -> Together:
    rows = [measured.arms.index(name) for name in (*family.copies, *(arm.name for arm in family.arms))]
    thread, copies = of_thread(measured, rows), len(family.copies)
    found = accounts(measured, rows, thread=thread)
    known = {
        name: (mean_copies(values[:copies]), values[copies:])
        for name, values in found.items()
        if not name.startswith("price.")
    }
    there = np.isfinite(known["whole"][1] - known["whole"][0])
    prices = {name[6:]: finite_medians(values, 0) for name, values in found.items() if name.startswith("price.")}
    return Together(
        family.reference,
        family.arms,
        {name: np.where(there, after - before, np.nan) for name, (before, after) in known.items()},
        {name: (_means(before, there), _means(after, there)) for name, (before, after) in known.items()},
        prices,
        measured.apart,
        thread,
        max(1, int(there.any(axis=1).sum()) + len(family.beside)),
        copies,
        level,
    )


def parts_of(together: Together) -> list[StepParts]:
    """Return the counted parts of each environment that has at least two blocks in common with its reference."""
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


def _means(values: Floats, there: NDArray[np.bool_]) -> Floats:
    """Return the mean over each arm's available blocks; NaN if there are none."""
    values = np.broadcast_to(values, there.shape)
    there = there & np.isfinite(values)
    return np.asarray(np.where(there, values, 0.0).sum(axis=1) / np.where(there.any(axis=1), there.sum(axis=1), np.nan))
