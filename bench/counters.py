"""What the kernel counted for this process: faults, switches, memory, stolen time."""

from __future__ import annotations

import resource
from collections.abc import Mapping
from typing import Any


def read() -> dict[str, Any]:
    """Return the running counters of this process (all threads) and the machine's stolen ticks."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "minor_faults": usage.ru_minflt,
        "major_faults": usage.ru_majflt,
        "voluntary_switches": usage.ru_nvcsw,
        "involuntary_switches": usage.ru_nivcsw,
        "user_s": usage.ru_utime,
        "system_s": usage.ru_stime,
        "steal_ticks": _steal_ticks(),
    }


def since(before: Mapping[str, Any]) -> dict[str, Any]:
    """Return how much each counter grew; None where it could not be read."""
    after = read()
    return {
        name: None if value is None or after[name] is None else after[name] - value for name, value in before.items()
    }


def peak_rss_bytes() -> int | None:
    """Return the peak resident memory of this program.

    VmHWM, not ru_maxrss: the latter survives exec, so it would report a large launcher's memory.
    """
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None


def _steal_ticks() -> int | None:
    try:
        with open("/proc/stat", encoding="ascii") as file:
            return int(file.readline().split()[8])
    except (OSError, ValueError, IndexError):
        return None
