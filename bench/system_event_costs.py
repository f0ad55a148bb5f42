"""Cost of single events on this machine, measured in the trial's process: a page fault, a wake-up, a system call."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import statistics
import threading
import time
from collections.abc import Callable

from bench.evidence.reading import attempt

_PAGE = mmap.PAGESIZE
_PAGES, _ROUNDS = 2048, 5
_WAKE_UPS, _CALLS = 200, 200


def measure() -> dict[str, float | None]:
    """Return the cost of each event in nanoseconds, None if it cannot be measured. Takes about 50 ms."""
    measured = {"minor_fault_ns": minor_fault_ns, "wake_up_ns": wake_up_ns, "memory_call_ns": memory_call_ns}
    return {name: attempt(price) for name, price in measured.items()}


def minor_fault_ns() -> float:
    """Return the CPU time to map, first write and unmap one page (not huge).

    Uses CPU time because other threads may run meanwhile. Subtracts the cost of the same writes without faults.
    """
    return statistics.median(_fault_ns() for _ in range(_ROUNDS))


def _fault_ns() -> float:
    start = time.thread_time_ns()
    memory = mmap.mmap(-1, _PAGES * _PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    buffer = ctypes.c_char.from_buffer(memory)
    address, faults = ctypes.addressof(buffer), resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    ctypes.memset(address, 1, _PAGES * _PAGE)
    faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - faults
    written = time.thread_time_ns()
    ctypes.memset(address, 2, _PAGES * _PAGE)
    again = time.thread_time_ns()
    del buffer
    memory.close()
    return (written - start - (again - written) + time.thread_time_ns() - again) / faults


def memory_call_ns() -> float:
    """Return the CPU time of one mmap or munmap of a page that is never touched; subtracts the calls from Python."""
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    size, access, kind = ctypes.c_size_t(_PAGE), mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    nowhere, no_file, start_at = ctypes.c_void_p(None), ctypes.c_int(-1), ctypes.c_long(0)

    def mapped() -> None:
        libc.munmap(ctypes.c_void_p(libc.mmap(nowhere, size, access, kind, no_file, start_at)), size)

    def neither() -> None:
        libc.abs(ctypes.c_void_p(libc.abs(nowhere, size, access, kind, no_file, start_at)), size)

    return statistics.median(max(0.0, _thread_ns(mapped) - _thread_ns(neither)) / 2 for _ in range(_ROUNDS))


def _thread_ns(call: Callable[[], None]) -> float:
    start = time.thread_time_ns()
    for _ in range(_CALLS):
        call()
    return (time.thread_time_ns() - start) / _CALLS


def wake_up_ns() -> float:
    """Return the time from a write until the waiting thread runs: the 10th percentile of many.

    Slower wake-ups also waited for a CPU, which is another part of a step.
    """
    there, back = os.pipe(), os.pipe()

    def answer() -> None:
        while os.read(there[0], 1) == b"+":
            os.write(back[1], b"+")

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    try:
        durations = []
        for _ in range(_WAKE_UPS):
            start = time.perf_counter_ns()
            os.write(there[1], b"+")
            os.read(back[0], 1)
            durations.append(time.perf_counter_ns() - start)
    finally:
        os.write(there[1], b"-")
        thread.join()
        for file in (*there, *back):
            os.close(file)
    return sorted(durations)[_WAKE_UPS // 10] / 2
