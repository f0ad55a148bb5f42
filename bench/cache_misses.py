"""Hardware counters of one thread in user mode: misses of the data TLB and of the last-level cache."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import threading
from functools import cache, partial

from bench.evidence.reading import attempt

#: Name -> (type, config) of ``perf_event_open(2)``: reads that miss the data TLB, and misses of the last-level cache.
EVENTS = {"dtlb_misses": (3, 3 | 1 << 16), "cache_misses": (0, 3)}
_SYSTEM_CALL = {"x86_64": 298, "aarch64": 241}
#: struct perf_event_attr, first version: type, size, config, period, sample type, format of a reading, flags, no more.
_ATTRIBUTES, _SIZE = struct.Struct("=IIQQQQQ16x"), 64
#: A reading is the count, and nanoseconds for which it was wanted and for which it was counted.
_TIMES, _READING = 1 | 2, struct.Struct("=QQQ")
_USER_MODE_ONLY, _CLOSE_ON_EXEC = 1 << 5 | 1 << 6, 8
Counts = dict[str, tuple[int, int, int]]


def read() -> Counts:
    """Return a reading of each event of the calling thread that this machine counts."""
    files = _files(os.getpid(), threading.get_native_id())
    counts = {name: attempt(partial(_reading, file)) for name, file in files.items()}
    return {name: count for name, count in counts.items() if count is not None}


def _reading(file: int) -> tuple[int, int, int]:
    count, wanted_ns, counted_ns = _READING.unpack(os.read(file, _READING.size))
    return count, wanted_ns, counted_ns


def between(before: Counts, after: Counts) -> dict[str, int | None]:
    """Return the events between two readings, None if an event was not counted.

    Events share the processor's counters, so one may be counted for only a part of the time; it is then extrapolated.
    """
    return {name: _grown(before.get(name), after.get(name)) for name in EVENTS}


def _grown(before: tuple[int, int, int] | None, after: tuple[int, int, int] | None) -> int | None:
    if before is None or after is None:
        return None
    count, wanted_ns, counted_ns = (late - early for early, late in zip(before, after))
    return round(count * wanted_ns / counted_ns) if count >= 0 and 0 < counted_ns <= wanted_ns else None


@cache
def _files(_process: int, _thread: int) -> dict[str, int]:
    """Open the counters of the calling thread once; the kernel closes them with the process."""
    opened = {name: attempt(partial(open_counter, *event)) for name, event in EVENTS.items()}
    return {name: file for name, file in opened.items() if file is not None}


def open_counter(kind: int, config: int) -> int:
    """Return a file that counts an event of the calling thread. Raises OSError or KeyError if this machine does not."""
    attributes = _ATTRIBUTES.pack(kind, _SIZE, config, 0, 0, _TIMES, _USER_MODE_ONLY)
    numbers = (_SYSTEM_CALL[platform.machine()], ctypes.c_char_p(attributes), 0, -1, -1, _CLOSE_ON_EXEC)
    libc = ctypes.CDLL(None, use_errno=True)
    file: int = libc.syscall(*(ctypes.c_long(number) if isinstance(number, int) else number for number in numbers))
    if file < 0:
        raise OSError(ctypes.get_errno(), "perf_event_open")
    return file
