"""Counts of the system calls of memory (mmap, munmap, madvise, brk) of one thread, by strace if it is on the path.

A preloaded counter would miss the calls of glibc's allocator, which do not go through symbols that it can replace.
"""

from __future__ import annotations

import ctypes
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable

from bench.evidence.reading import attempt, fields

CALLS = ("mmap", "munmap", "madvise", "brk")
#: Seconds that strace gets to attach, to report, and between two checks.
_ATTACH_S, _REPORT_S, _CHECK_S = 2.0, 10.0, 0.005
#: prctl: let any process of this user trace this one, as Yama asks for.
_SET_TRACER, _ANY, _NOBODY = 0x59616D61, -1, 0


def count(work: Callable[[], None]) -> dict[str, int] | None:
    """Run ``work`` slowly and return the calls that this thread made; None if it could not be traced."""
    tracer = attempt(_attach)
    try:
        work()
    finally:
        report = _end(tracer) if tracer else None
    return None if report is None else _calls(report)


def _attach() -> subprocess.Popen[bytes] | None:
    strace, thread = shutil.which("strace"), threading.get_native_id()
    if strace is None:
        return None
    argv = [strace, "-qq", "-c", "-e", f"trace={','.join(CALLS)}", "-p", str(thread)]
    _let_trace(_ANY)
    # No variables: a preloaded library is for the benchmark alone.
    tracer = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={})
    until = time.monotonic() + _ATTACH_S
    while time.monotonic() < until and tracer.poll() is None:
        if fields(f"/proc/self/task/{thread}/status").get("TracerPid") == str(tracer.pid):
            return tracer
        time.sleep(_CHECK_S)
    _end(tracer)
    return None


def _end(tracer: subprocess.Popen[bytes]) -> str | None:
    """Detach strace and return its report, which is empty if there were no calls; None if it had ended before."""
    tracer.send_signal(signal.SIGTERM)
    try:
        report = tracer.communicate(timeout=_REPORT_S)[1]
    except subprocess.TimeoutExpired:
        tracer.kill()
        report = tracer.communicate()[1]
    _let_trace(_NOBODY)
    return report.decode(errors="replace") if tracer.returncode in (0, -signal.SIGTERM) else None


def _calls(report: str) -> dict[str, int]:
    """Return the calls of each kind from strace's table; a kind that is not in it did not occur."""
    rows = [line.split() for line in report.splitlines()]
    counts = {row[-1]: int(row[3]) for row in rows if len(row) > 4 and row[-1] in CALLS and row[3].isdecimal()}
    return {name: counts.get(name, 0) for name in CALLS}


def _let_trace(tracer: int) -> None:
    ctypes.CDLL(None).prctl(_SET_TRACER, ctypes.c_long(tracer), 0, 0, 0)
