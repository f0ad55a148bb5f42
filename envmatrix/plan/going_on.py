"""Blocks whose processes go on: how many, and for how many seconds of steps. Pure.

The variance of a steady effect is that of the blocks over their number, plus that of the change over the number of
blocks that went on. Its minimum for a given time has the ratio ``share`` (docs/steady-state.md).
"""

from __future__ import annotations

import math

#: Seconds of steps of a process that goes on, and the fewest that are worth it.
FULL_S, MIN_S = 10.0, 3.0
#: Fewest blocks that go on: the variance of the change between processes is unknown with one.
MIN_GROUPS = 2


def share(change_variance: float, block_variance: float, later_s: float, block_s: float) -> float:
    """Return the share of blocks that should go on, for their variances and prices in seconds."""
    if block_variance <= 0 or later_s <= 0:
        return 1.0
    return min(1.0, math.sqrt(change_variance / block_variance * block_s / later_s))


def seconds_of_steps(left_s: float, groups: int, processes: int) -> float | None:
    """Return the seconds of steps of each process if ``groups`` share ``left_s``; None if that is too short."""
    seconds = min(FULL_S, left_s / (max(1, groups) * processes))
    return seconds if seconds >= MIN_S else None
