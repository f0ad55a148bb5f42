"""Whether the steps that a turn sets apart were enough for its caches to be its own again."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def turn_start(turns: Sequence[tuple[Sequence[int], Sequence[int]]]) -> float | None:
    """Return how many times as long as its last step a turn's counted ones begin with; each (apart, counted) in ns.

    Medians over turns: of the first counted step or of the last one before it, whichever is shorter. Counters are read
    between the two, which takes the first counted step of a turn some 0.1 ms; where the one before it was as fast as
    the last, the caches are warm. None where no two turns have two counted steps.
    """
    repeated = [(apart, counted) for apart, counted in turns if len(counted) > 1]
    if len(repeated) < 2:
        return None
    first_step, last_step = (statistics.median(counted[at] for _, counted in repeated) for at in (0, -1))
    last_apart = [apart[-1] for apart, _ in repeated if apart]
    return (
        min([first_step, statistics.median(last_apart)] if last_apart else [first_step]) / last_step
        if last_step
        else None
    )
