"""Whether the steps that a turn sets apart were enough: what its first counted step takes over its last one."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def turn_start(turns: Sequence[Sequence[int]]) -> float | None:
    """Return the median first counted step over the median last one of all turns, each its counted steps in ns.

    Well above 1 the caches still hold what another process left there. None where no two turns have two steps.
    """
    there = [turn for turn in turns if len(turn) > 1]
    if len(there) < 2:
        return None
    first, last = (statistics.median(turn[at] for turn in there) for at in (0, -1))
    return first / last if last else None
