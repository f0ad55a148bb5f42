"""Programs that a command started and left running."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial

from bench.evidence.reading import attempt
from bench.evidence.tree import Stat, children, stat_of

#: Seconds that helpers get to exit after the command, and the CPU seconds from which a program counts as working.
_ALONE_S, _WORKED_S = 1.0, 0.05
_PAUSE_S = 0.005
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def left_running(of_probe: Callable[[int], float]) -> list[str]:
    """Return the names of programs left running below this process, after its command has ended.

    Helper processes exit by themselves, without work, when the command is gone; they get a moment for that.
    ``of_probe`` returns the CPU time (seconds) that our own probe used at the end of a process.
    """
    deadline, first_seen = time.monotonic() + _ALONE_S, dict[int, Stat]()
    while True:
        still_running = _below()
        first_seen = {**still_running, **first_seen}
        running = [pid for pid, stat in still_running.items() if stat.state not in "ZX"]
        if not running or time.monotonic() > deadline:
            took = {pid: (stat.ticks - first_seen[pid].ticks) / _TICKS_PER_S for pid, stat in still_running.items()}
            worked = [pid for pid, cpu_s in took.items() if cpu_s - of_probe(pid) >= _WORKED_S]
            return sorted({still_running[pid].name for pid in (*running, *worked)})
        time.sleep(_PAUSE_S)


def _below() -> dict[int, Stat]:
    pids = children(os.getpid())
    for pid in pids:
        pids += children(pid)
    return {pid: stat for pid in pids if (stat := attempt(partial(stat_of, pid)))}
