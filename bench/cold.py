"""Checks of whether the first steps are slower: those of a turn, whose caches may be cold, and those of a trial."""

from __future__ import annotations

from collections.abc import Sequence

#: With fewer steps, the halves of a trial are not compared.
_FEWEST_STEPS = 8


def first_half_extra_s(steps_ns: Sequence[int]) -> float | None:
    """Return by how many seconds the first half of the timed steps took longer than as many of the second half."""
    half = len(steps_ns) // 2
    if len(steps_ns) < _FEWEST_STEPS:
        return None
    second_half = steps_ns[half:]
    return (sum(steps_ns[:half]) - half * (sum(second_half) / len(second_half))) / 1e9


def turn_start(turns: Sequence[tuple[Sequence[int], Sequence[int]]]) -> float | None:
    """Return the duration of a turn's first counted step divided by its last one; ``turns`` are (apart, counted) in ns.

    Each duration is a median over the turns. Reading counters adds about 0.1 ms to the first counted step of a turn. If
    the last step set apart is shorter, it is used instead. Returns None if fewer than two turns have two counted steps.
    """
    repeated = [(apart, counted) for apart, counted in turns if len(counted) > 1]
    if len(repeated) < 2:
        return None
    import statistics

    first_step, last_step = (statistics.median(counted[at] for _, counted in repeated) for at in (0, -1))
    last_apart = [apart[-1] for apart, _ in repeated if apart]
    return (
        min([first_step, statistics.median(last_apart)] if last_apart else [first_step]) / last_step
        if last_step
        else None
    )
