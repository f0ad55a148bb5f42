"""The age of this process, so that start-up time includes the interpreter itself."""

from __future__ import annotations

import os
import time


def process_age_ns() -> int | None:
    """Return the nanoseconds since the kernel started this process, or None if that cannot be read.

    The start time is field 22 of proc(5) stat, in clock ticks since boot (usually 10 ms each).
    """
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        started = int(fields[19]) * (1_000_000_000 // os.sysconf("SC_CLK_TCK"))
        return max(0, time.clock_gettime_ns(time.CLOCK_BOOTTIME) - started)
    except (OSError, ValueError, IndexError, AttributeError):
        return None
