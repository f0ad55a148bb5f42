"""Checks of a node before its block: files that the trials need, and its use by others."""

from __future__ import annotations

import glob
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path

#: Seconds for which a node is observed; the job is idle meanwhile.
_WATCH_S = 0.5
_MOST_NAMED = 5


def first_missing(paths: Sequence[str]) -> str:
    """Return the first of these paths that does not exist on this node, '' if all do."""
    return next((path for path in paths if not os.path.exists(path)), "")


def measure_node_load() -> dict[str, object]:
    """Return this node's CPU share used by others, its load, free memory, throttle count, and your running programs."""
    ticks_before = _cpu_ticks()
    time.sleep(_WATCH_S)
    busy_ticks, all_ticks = (after - then for after, then in zip(_cpu_ticks(), ticks_before))
    words = Path("/proc/meminfo").read_text(encoding="ascii").split()
    return {
        "load_1m": float(Path("/proc/loadavg").read_text(encoding="ascii").split()[0]),
        "free_bytes": 1024 * int(words[words.index("MemAvailable:") + 1]),
        "busy": round(busy_ticks / all_ticks, 2) if all_ticks > 0 else 0.0,
        "throttled": _throttle_count(),
        "others": _running_programs(),
    }


def _cpu_ticks() -> tuple[int, int]:
    """Return how long all CPUs were busy since the node started, and the total CPU time, in ticks."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, idle, iowait, irq, softirq, steal = map(int, file.readline().split()[1:9])
    busy = user + nice + system + irq + softirq
    return busy, busy + idle + iowait + steal


def _throttle_count() -> int | None:
    """Return how often a CPU was throttled for heat since the node started; None if the node does not count it."""
    counts = []
    for file in glob.glob("/sys/devices/system/cpu/cpu[0-9]*/thermal_throttle/core_throttle_count"):
        try:
            counts.append(int(Path(file).read_text(encoding="ascii")))
        except (OSError, ValueError):
            continue
    return sum(counts) if counts else None


def _running_programs() -> list[str]:
    """Return the names of this user's programs that are running now, without this one; other users' are their own."""
    names: list[str] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if folder.stat().st_uid != os.getuid():
                continue
            before, _, after = (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")
        except OSError:
            continue
        if after.split()[:1] == ["R"] and folder.name != str(os.getpid()) and len(names) < _MOST_NAMED:
            names.append(re.sub(r"[^A-Za-z0-9._/:+-]", "_", before.partition("(")[2]))
    return names
