"""Long looks: each environment once, from its first step on. They follow the blocks and count in no comparison. Pure.

They come last: what they show can then change nothing of what is compared, a run that is cut short has spent its time
on the answer, and what broke in the blocks is known. They share what is left, so that a short budget gives shorter
looks at all environments rather than long ones at some.
"""

from __future__ import annotations

from envmatrix.plan.schedule import Arm, Slot

#: Seconds of timed steps of a look, and the fewest that are worth its start.
WHOLE_S, LEAST_S = 10.0, 3.0
#: What a look takes beside its steps, before one was made: its start, and the evaluation after it.
START_S = 4.0
#: The share of the budget that all looks may take. The nine of `default` then have 3 to 6 s of steps in its six
#: minutes, and 10 s in ten. A third of six minutes would give them 10 s and take two blocks: of the 14 tries in
#: validation/results/decides 12 decide all that differs by 8 %, and 9 do without their last two blocks.
SHARE = 0.2


def reserve_s(budget_s: float, looks: int) -> float:
    """Return the seconds of a budget that are kept for so many looks."""
    return min(SHARE * budget_s, looks * (WHOLE_S + START_S))


def seconds_of(left_s: float, looks: int, start_s: float = START_S) -> float | None:
    """Return how long the next of so many looks is, in timed seconds; None where there is no time for it."""
    if left_s < LEAST_S + start_s:
        return None
    return min(WHOLE_S, max(LEAST_S, left_s / looks - start_s))


def look_slot(number: int, arm: Arm, seconds: float) -> Slot:
    """Return the long look at an arm, the ``number``-th of the plan."""
    return Slot(look_name(number), 0, number, arm, 0, seconds)


def look_name(number: int) -> str:
    """Return the stable name of the look at the ``number``-th arm of the plan."""
    return f"look-{number:03d}"
