"""What events explain of the parts of a step: how many more or fewer of them, times what one costs on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envmatrix.stats.step_account import PRICES
from envmatrix.stats.step_parts import Interval, StepParts, Together

Floats = NDArray[np.float64]
#: The events that each part is explained by, and what they are called; ``throttled_s`` is a time, of all threads.
EVENTS = {
    "minor_faults": ("kernel", "page faults"),
    "major_faults": ("blocked", "page faults that read a disk"),
    "voluntary_switches": ("blocked", "sleeps and wake-ups"),
    "involuntary_switches": ("waiting", "times that another thread took its CPU"),
    "throttled_s": ("waiting", "held back by a CPU quota"),
}


@dataclass(frozen=True)
class Cause:
    """Events of one kind under a part: their numbers a step, what one costs (seconds), and what they cost together.

    ``price_s`` is None if nobody measured it; ``time`` is then None too. ``estimate_s`` is the change of the part over
    that of the events, if both are sure: no price, as it holds whatever else the part changed by.
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
        """What people read."""
        return EVENTS[self.event][1]


@dataclass(frozen=True)
class Explained:
    """The causes of one environment's parts, and what of each part that has a priced cause they leave unexplained."""

    causes: tuple[Cause, ...]
    unexplained: Mapping[str, Interval]

    def cause(self, event: str) -> Cause | None:
        """Return the cause of one kind of event, None if nobody counted it."""
        return next((cause for cause in self.causes if cause.event == event), None)


def explained(found: Sequence[StepParts]) -> dict[str, Explained]:
    """Return, by arm, what events explain of the parts of environments that are judged ``together``.

    Intervals of all counts hold together, and those of all costs and remainders.
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
    left = {
        EVENTS[event][0]: together.intervals(together.differences[EVENTS[event][0]] - cost, held)
        for event, cost in priced.items() if EVENTS[event][0] in together.counted
    }  # fmt: skip
    return {
        one.arm.name: Explained(
            tuple(
                Cause(
                    event, *one.means(event), counts[event][one.row], _price(event, together),
                    times[event][one.row] if event in times else None, _estimate(event, one, counts[event][one.row]),
                )
                for event in counted
            ),
            {part: intervals[one.row] for part, intervals in left.items()},
        )
        for one in found
    }  # fmt: skip


def _estimate(event: str, one: StepParts, change: Interval) -> float | None:
    part = one.part(EVENTS[event][0])
    if not part or not part.change.is_sure or not change.is_sure:
        return None
    return part.change.mean * one.means("cpus")[1] / change.mean


def _cost(event: str, together: Together) -> Floats | None:
    """Return what more events of one kind cost, block by block (seconds), None if their price is not known."""
    price = together.prices.get(event)
    if price is None or not np.isfinite(price).any():
        return None
    return np.asarray(together.differences[event] * price)


def _price(event: str, together: Together) -> float | None:
    price = together.prices.get(event) if event in PRICES else None
    return float(np.nanmedian(price)) if price is not None and np.isfinite(price).any() else None
