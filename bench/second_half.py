"""Speed of a process in the second half of all its steps, where it may have reached its steady state."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

#: A program of one's own needs so many seconds of steps for a second half that tells more than its trial.
ENOUGH_S = 10.0


def second_half(
    turns: Sequence[tuple[Sequence[int], Sequence[int]]], trial_step_ns: float, after_ns: int = 0
) -> dict[str, Any]:
    """Return the record's numbers of steps in ``turns`` (apart, counted), after steps of ``after_ns``.

    ``watched_ns`` is the time of all steps, ``late_step_ns`` the mean step in its second half, and ``halves_step_ns``
    the mean steps in the halves of that; ``trial_step_ns`` is the mean step of the trial. Unknown values are None.
    """
    begins_ns: list[int] = []
    steps_ns: list[int] = []
    for apart, counted in turns:
        after_ns += sum(apart)
        for step_ns in counted:
            begins_ns.append(after_ns)
            steps_ns.append(step_ns)
            after_ns += step_ns
    late = [step_ns for begin_ns, step_ns in zip(begins_ns, steps_ns) if begin_ns >= after_ns / 2]
    middle = sum(end_ns <= sum(late) / 2 for end_ns in itertools.accumulate(late))
    return {
        "watched_ns": after_ns,
        "trial_step_ns": trial_step_ns,
        "late_step_ns": _mean(late),
        "halves_step_ns": [_mean(late[:middle]), _mean(late[middle:])],
    }


def _mean(steps_ns: Sequence[int]) -> float | None:
    return sum(steps_ns) / len(steps_ns) if steps_ns else None


def program_second_half(turns: Sequence[tuple[Sequence[int], Sequence[int]]]) -> dict[str, Any]:
    """Return the numbers of a program of one's own, whose trial has all its steps; only its time if that is short."""
    counted = [step_ns for _, steps_ns in turns for step_ns in steps_ns]
    later = second_half(turns, sum(counted) / len(counted) if counted else 0.0)
    return later if later["watched_ns"] >= 1e9 * ENOUGH_S else {"watched_ns": later["watched_ns"]}
