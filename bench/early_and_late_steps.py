"""Comparisons of early steps with later ones: in a turn, whose caches may be cold, in a trial, and in a longer run."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

#: Each turn's times in nanoseconds: steps set apart, then counted ones.
Turns = Sequence[tuple[Sequence[int], Sequence[int]]]
#: With fewer steps, the halves of a trial are not compared.
_FEWEST_STEPS = 8


def first_half_extra_s(steps_ns: Sequence[int]) -> float | None:
    """Return by how many seconds the first half of the timed steps took longer than as many of the second half."""
    half = len(steps_ns) // 2
    if len(steps_ns) < _FEWEST_STEPS:
        return None
    return (sum(steps_ns[:half]) - half * (sum(steps_ns[half:]) / (len(steps_ns) - half))) / 1e9


def first_to_last_step_ratio(turns: Turns) -> float | None:
    """Return the duration of a turn's first counted step divided by its last one; ``turns`` are (apart, counted) in ns.

    Each duration is a median over the turns. Reading counters adds about 0.1 ms to the first counted step of a turn. If
    the last step set apart is shorter, it is used instead. Returns None if fewer than two turns have two counted steps.
    """
    repeated = [(apart, counted) for apart, counted in turns if len(counted) > 1]
    if len(repeated) < 2:
        return None
    import statistics  # not loaded for programs without steps: their trials should start fast

    first_step, last_step = (statistics.median(counted[at] for _, counted in repeated) for at in (0, -1))
    last_apart = [apart[-1] for apart, _ in repeated if apart]
    if last_apart:
        first_step = min(first_step, statistics.median(last_apart))
    return first_step / last_step if last_step else None


#: A program of one's own needs so many seconds of steps for a second half that tells more than its trial.
ENOUGH_S = 10.0


def second_half(turns: Turns, trial_step_ns: float, after_ns: int = 0) -> dict[str, Any]:
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


def program_second_half(turns: Turns) -> dict[str, Any]:
    """Return the numbers of a program of one's own, whose trial has all its steps; only its time if that is short."""
    counted = [step_ns for _, steps_ns in turns for step_ns in steps_ns]
    later = second_half(turns, sum(counted) / len(counted) if counted else 0.0)
    return later if later["watched_ns"] >= 1e9 * ENOUGH_S else {"watched_ns": later["watched_ns"]}
