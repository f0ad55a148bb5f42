"""Account of one thread's time: on a CPU (user or kernel), waiting for a CPU, or blocked.

The thread is the one that runs the steps. The counters of the whole process would hide its waits, because other
threads spin meanwhile.
"""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

from bench import cache_misses
from bench.evidence import proc_files
from bench.evidence.reading import attempt

#: A thread that was on a CPU for at least this share of the time was busy.
_BUSY = 0.01
#: A reading takes about 20 us. One that takes longer than this is repeated, up to so many times.
_MOMENT_NS, _TRIES = 200_000, 5


class Reading(NamedTuple):
    """Counters: of this thread by name, its wait, and (CPU, wait) of the other threads.

    ``waited_ns`` is None if the kernel keeps no scheduler statistics. ``hardware`` is a reading of ``cache_misses``.
    """

    counted: dict[str, int]
    waited_ns: Optional[int]  # noqa: UP045 - a NamedTuple of Python 3.9
    others: dict[int, tuple[int, int]]
    hardware: cache_misses.Counts = {}  # noqa: RUF012 - a NamedTuple's default, never changed


def read() -> Reading:
    """Return the counters of the calling thread at the start of an interval; its own counters are read last."""
    others, hardware = _others(), cache_misses.read()
    return Reading(*_own(), others, hardware)


def _own() -> tuple[dict[str, int], int | None]:
    """Return this thread's counters, all from the same moment: repeat the reading if the thread lost its CPU."""
    own = threading.get_native_id()
    for _ in range(_TRIES):
        began_ns, scheduled = time.perf_counter_ns(), proc_files.scheduled("self", own)
        counted = _counters(time.thread_time_ns(), resource.getrusage(resource.RUSAGE_THREAD))
        if counted["wall_ns"] - began_ns < _MOMENT_NS:
            break
    return counted, scheduled and scheduled.waited_ns


def _others() -> dict[int, tuple[int, int]]:
    proc_files.update_own_cpu_times()
    threads = {number: proc_files.scheduled("self", number) for number in proc_files.threads("self")}
    return {number: thread for number, thread in threads.items() if thread and number != threading.get_native_id()}


def _counters(cpu_ns: int, usage: resource.struct_rusage) -> dict[str, int]:
    return {
        "wall_ns": time.perf_counter_ns(),
        "cpu_ns": cpu_ns,
        "user_ns": round(usage.ru_utime * 1e9),
        "system_ns": round(usage.ru_stime * 1e9),
        "minor_faults": usage.ru_minflt,
        "major_faults": usage.ru_majflt,
        "voluntary_switches": usage.ru_nvcsw,
        "involuntary_switches": usage.ru_nivcsw,
    }


def since(before: Reading) -> dict[str, Any]:
    """Return the increase of each counter in the form of the record's ``step_thread``."""
    return between(before, Reading(*_own(), _others(), cache_misses.read()))


def between(before: Reading, after: Reading) -> dict[str, Any]:
    """Return the increase of each counter from one reading to a later one."""
    grown = {name: late - before.counted[name] for name, late in after.counted.items()}
    known = before.waited_ns is not None and after.waited_ns is not None
    others = {number: _grown(before.others.get(number, (0, 0)), counted) for number, counted in after.others.items()}
    busy = [ran >= _BUSY * grown["wall_ns"] for ran, _ in others.values()]
    return {
        **grown,
        **cache_misses.between(before.hardware, after.hardware),
        "waited_ns": (after.waited_ns or 0) - (before.waited_ns or 0) if known else None,
        "others": {
            "busy": sum(busy),
            "ended": len(set(before.others) - set(after.others)),
            "cpu_ns": sum(ran for ran, _ in others.values()),
            "waited_ns": sum(waited for _, waited in others.values()),
        },
    }


def _grown(before: tuple[int, int], after: tuple[int, int]) -> tuple[int, int]:
    """Return a thread's increase; if it ran less than before, it is a new thread with an old one's number."""
    early = before if before[0] <= after[0] else (0, 0)
    return after[0] - early[0], after[1] - early[1]


def whole_life(began_ns: int, cpu_ns: int, usage: resource.struct_rusage, schedstat: str) -> dict[str, Any]:
    """Return the counters of the first thread from its start at ``began_ns`` until the program ended."""
    ended = Reading(_counters(cpu_ns, usage), int(schedstat.split()[1]) if schedstat else None, _others())
    return between(Reading({**dict.fromkeys(ended.counted, 0), "wall_ns": began_ns}, 0, {}), ended)


def sum_intervals(parts: Sequence[dict[str, Any] | None]) -> dict[str, Any] | None:
    """Return the sum of each counter over several intervals, None if one was not read; ``busy`` is the maximum."""
    if not parts or None in parts:
        return None
    total: dict[str, Any] = {}
    for name, first in (parts[0] or {}).items():
        values = [part[name] for part in parts if part]
        if isinstance(first, dict):
            total[name] = dict(sum_intervals(values) or {}, busy=max(value["busy"] for value in values))
        else:
            total[name] = None if None in values else sum(values)
    return total


def attempt_read() -> Reading | None:
    """Return ``read()``, None if this machine has no counters for threads."""
    return attempt(read)
