"""When this process began, so that start-up time includes the interpreter itself."""

from __future__ import annotations

import os
import time


def process_age_ns() -> int | None:
    """Return nanoseconds since the kernel started this process, or None where that cannot be read.

    The start time is in clock ticks since boot (10 ms on usual kernels), field 22 of proc(5) stat.
    """
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        started = int(fields[19]) * (1_000_000_000 // os.sysconf("SC_CLK_TCK"))
        return max(0, time.clock_gettime_ns(time.CLOCK_BOOTTIME) - started)
    except (OSError, ValueError, IndexError, AttributeError):
        return None
