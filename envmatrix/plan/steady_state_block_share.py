"""Blocks whose processes go on: how many, and for how many seconds of steps. Pure.

The variance of a steady effect is the variance of the change over the number of blocks that went on, plus the rest over
the number of all blocks. Its minimum for a given time has the ratio ``share`` (docs/steady-state.md).
"""

from __future__ import annotations

import math

#: Seconds of steps of a process that goes on, and the fewest that are worth it.
FULL_S, MIN_S = 10.0, 3.0
#: Blocks that go on at least, and in a budget too short for them: intervals are then 1.4 times as wide
#: (validation/results/steady).
MIN_GROUPS, SHORT_GROUPS = 3, 2


def share_of_blocks_to_continue(change: float, rest: float, later_s: float, block_s: float) -> float:
    """Return the share of blocks that should go on, for both variances and the prices in seconds."""
    if rest <= 0 or later_s <= 0:
        return 1.0
    return min(1.0, math.sqrt(change / rest * block_s / later_s))


def seconds_of_steps(left_s: float, groups: int, processes: int) -> float | None:
    """Return the seconds of steps of each process if ``groups`` share ``left_s``; None if that is too short."""
    seconds = min(FULL_S, left_s / (max(1, groups) * processes))
    return seconds if seconds >= MIN_S else None
