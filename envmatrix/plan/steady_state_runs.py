"""Long looks: each environment once, from its first step on. They follow the blocks and count in no comparison. Pure.

They come last: what they show can then change nothing of what is compared, a run that is cut short has spent its time
on the answer, and what broke in the blocks is known. They share what is left, so that a short budget gives shorter
looks at all environments rather than long ones at some.
"""

from __future__ import annotations

from envmatrix.plan.schedule import Arm, Slot

#: Seconds of timed steps of a look, and the fewest that are worth its start.
FULL_RUN_S, MIN_RUN_S = 10.0, 3.0
#: What a look takes beside its steps, before one was made: its start, and the evaluation after it.
START_S = 4.0
#: The share of the budget that all looks may take. The nine of `default` then have 3 to 6 s of steps in its six
#: minutes, and 10 s in ten. A third of six minutes would give them 10 s and take two blocks: of the 14 tries in
#: validation/results/decides 12 decide all that differs by 8 %, and 9 do without their last two blocks.
BUDGET_SHARE = 0.2


def reserve_s(budget_s: float, runs: int) -> float:
    """Return the seconds of a budget that are kept for so many looks."""
    return min(BUDGET_SHARE * budget_s, runs * (FULL_RUN_S + START_S))


def next_run_s(left_s: float, runs: int, start_s: float = START_S) -> float | None:
    """Return how long the next of so many looks is, in timed seconds; None where there is no time for it."""
    if left_s < MIN_RUN_S + start_s:
        return None
    return min(FULL_RUN_S, max(MIN_RUN_S, left_s / runs - start_s))


def steady_state_slot(number: int, arm: Arm, seconds: float) -> Slot:
    """Return the long look at an arm, the ``number``-th of the plan."""
    return Slot(steady_state_trial_name(number), 0, number, arm, 0, seconds)


def steady_state_trial_name(number: int) -> str:
    """Return the stable name of the look at the ``number``-th arm of the plan."""
    return f"look-{number:03d}"
