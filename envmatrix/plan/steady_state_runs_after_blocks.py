"""Steady-state runs: each environment once, from its first step on, after the blocks and in no comparison. Pure.

They come last: so they cannot affect the comparison, a run that is cut short has its answer, and failures are known.
They share the remaining time: a short budget gives shorter runs of all environments, not long ones of some.
"""

from __future__ import annotations

from envmatrix.plan.schedule import Arm, Slot

#: Seconds of timed steps of a full steady-state run, and of the shortest one worth its start.
FULL_RUN_S, MIN_RUN_S = 10.0, 3.0
#: Assumed seconds of a steady-state run apart from its steps, before one was made: start and evaluation.
START_S = 4.0
#: The share of the budget for all steady-state runs. The nine of `default` get 3 to 6 s of steps in a budget of six
#: minutes, and 10 s in ten. A third of six minutes would allow 10 s, but cost two blocks, and with them some verdicts
#: (validation/results/decides).
BUDGET_SHARE = 0.2


def reserve_s(budget_s: float, runs: int) -> float:
    """Return the seconds of a budget that are reserved for this many steady-state runs."""
    return min(BUDGET_SHARE * budget_s, runs * (FULL_RUN_S + START_S))


def next_run_s(left_s: float, runs: int, start_s: float = START_S) -> float | None:
    """Return the timed seconds of the next of ``runs`` steady-state runs; None if there is no time for it."""
    if left_s < MIN_RUN_S + start_s:
        return None
    return min(FULL_RUN_S, max(MIN_RUN_S, left_s / runs - start_s))


def steady_state_slot(number: int, arm: Arm, seconds: float) -> Slot:
    """Return the slot of the steady-state run of an arm, the ``number``-th of the plan."""
    return Slot(steady_state_trial_name(number), 0, number, arm, 0, seconds)


def steady_state_trial_name(number: int) -> str:
    """Return the stable name of the steady-state run of the ``number``-th arm of the plan."""
    return f"look-{number:03d}"
