"""Causes of the changed parts of a step: the change in the number of events, times the cost of one on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from envmatrix.stats.arrays import Floats
from envmatrix.stats.attribution.step_parts import Interval, StepParts
from envmatrix.stats.step_account import FIRST_HALF

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


def explained(environments: Sequence[StepParts]) -> dict[str, Explained]:
    """Return, by arm, the causes of the parts of environments that are judged ``together``.

    The intervals of all counts are simultaneous, and so are those of all costs and remainders.
    """
    if not environments:
        return {}
    together = environments[0].together
    counted = [event for event in EVENTS if np.isfinite(together.differences[event]).any()]
    counts = {event: together.intervals(together.differences[event], len(counted)) for event in counted}
    prices = {event: price for event, price in together.prices.items() if event in counted and np.isfinite(price).any()}
    held = max(1, 2 * len(prices))
    times: dict[str, list[Interval]] = {}
    remainders: dict[str, Floats] = {}
    for event in (event for event in counted if event in prices):
        part, cost = EVENTS[event][0], together.differences[event] * prices[event]
        times[event] = together.intervals(cost, held)
        remainders[part] = remainders.get(part, together.differences[part]) - cost
    unexplained = {part: together.intervals(remainders[part], held) for part in together.counted if part in remainders}

    def cause(event: str, parts: StepParts) -> Cause:
        change, price = counts[event][parts.row], float(np.nanmedian(prices[event])) if event in prices else None
        time = times[event][parts.row] if event in times else None
        return Cause(event, *parts.means(event), change, price, time, _estimate(event, parts, change))

    return {
        parts.arm.name: Explained(
            tuple(cause(event, parts) for event in counted),
            {part: intervals[parts.row] for part, intervals in unexplained.items()},
        )
        for parts in environments
    }


def _estimate(event: str, parts: StepParts, change: Interval) -> float | None:
    changed_part = parts.part(EVENTS[event][0])
    if not changed_part or not changed_part.change.is_sure or not change.is_sure:
        return None
    return changed_part.change.mean * parts.means("cpus")[1] / change.mean
