"""Causes of the changed parts of a step: the change in the number of events, times the cost of one on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envmatrix.stats.attribution.step_parts import Interval, StepParts, Together
from envmatrix.stats.step_account import FIRST_HALF, PRICES

Floats = NDArray[np.float64]
#: The events that explain each part, with their labels; ``throttled_s`` is a time, summed over all threads. The time
#: for which the first half of the steps is slower than the second one may be in any part ('').
EVENTS = {
    "minor_faults": ("kernel", "page faults"),
    "major_faults": ("blocked", "page faults that read a disk"),
    "voluntary_switches": ("blocked", "sleeps and wake-ups"),
    "involuntary_switches": ("waiting", "times it lost its CPU to another thread"),
    "throttled_s": ("waiting", "held back by a CPU quota"),
    "memory_calls": ("kernel", "memory system calls"),
    "dtlb_misses": ("user", "data TLB misses"),
    "cache_misses": ("user", "cache misses"),
    FIRST_HALF: ("", "slower first half of the steps"),
}


@dataclass(frozen=True)
class Cause:
    """Events of one kind that change a part: their numbers per step, the cost of one (seconds), and in total.

    ``price_s`` is None if it was not measured; ``time`` is then None too. ``estimate_s``: the part's change per event,
    if both changes are significant. It is not a price, because it contains all other changes of the part.
    """

    event: str
    before: float
    after: float
    change: Interval
    price_s: float | None
    time: Interval | None
    estimate_s: float | None = None

    @property
    def part(self) -> str:
        """The part that it belongs to."""
        return EVENTS[self.event][0]

    @property
    def label(self) -> str:
        """The text for reports."""
        return EVENTS[self.event][1]


@dataclass(frozen=True)
class Explained:
    """The causes of one environment's parts, and the unexplained remainder of each part with a priced cause."""

    causes: tuple[Cause, ...]
    unexplained: Mapping[str, Interval]

    def cause(self, event: str) -> Cause | None:
        """Return the cause for one kind of event, None if it was not counted."""
        return next((cause for cause in self.causes if cause.event == event), None)


def explained(found: Sequence[StepParts]) -> dict[str, Explained]:
    """Return, by arm, the causes of the parts of environments that are judged ``together``.

    The intervals of all counts are simultaneous, and so are those of all costs and remainders.
    """
    if not found:
        return {}
    together = found[0].together
    counted = [event for event in EVENTS if np.isfinite(together.differences[event]).any()]
    counts = {event: together.intervals(together.differences[event], len(counted)) for event in counted}
    costs = {event: _cost(event, together) for event in counted}
    priced = {event: cost for event, cost in costs.items() if cost is not None}
    held = max(1, 2 * len(priced))
    times = {event: together.intervals(cost, held) for event, cost in priced.items()}
    rest = {EVENTS[event][0]: together.differences[EVENTS[event][0]] for event in priced}
    for event, cost in priced.items():
        rest[EVENTS[event][0]] = rest[EVENTS[event][0]] - cost
    left = {part: together.intervals(rest[part], held) for part in together.counted if part in rest}
    return {
        one.arm.name: Explained(
            tuple(
                Cause(
                    event,
                    *one.means(event),
                    counts[event][one.row],
                    _price(event, together),
                    times[event][one.row] if event in times else None,
                    _estimate(event, one, counts[event][one.row]),
                )
                for event in counted
            ),
            {part: intervals[one.row] for part, intervals in left.items()},
        )
        for one in found
    }


def _estimate(event: str, one: StepParts, change: Interval) -> float | None:
    part = one.part(EVENTS[event][0])
    if not part or not part.change.is_sure or not change.is_sure:
        return None
    return part.change.mean * one.means("cpus")[1] / change.mean


def _cost(event: str, together: Together) -> Floats | None:
    """Return the cost of the additional events of one kind in each block (seconds), None if their price is unknown."""
    price = together.prices.get(event)
    if price is None or not np.isfinite(price).any():
        return None
    return np.asarray(together.differences[event] * price)


def _price(event: str, together: Together) -> float | None:
    price = together.prices.get(event) if event in PRICES else None
    return float(np.nanmedian(price)) if price is not None and np.isfinite(price).any() else None
