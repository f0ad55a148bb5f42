"""Cost of single events on this machine, measured in the trial's process: a page fault and a wake-up."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import statistics
import threading
import time

from bench.evidence.reading import attempt

_PAGE = mmap.PAGESIZE
_PAGES, _ROUNDS = 2048, 5
_WAKE_UPS = 200


def measure() -> dict[str, float | None]:
    """Return the cost of each event in nanoseconds, None if it cannot be measured. Takes about 20 ms."""
    return {"minor_fault_ns": attempt(minor_fault_ns), "wake_up_ns": attempt(wake_up_ns)}


def minor_fault_ns() -> float:
    """Return the CPU time to map, first write and unmap one page (not huge).

    Uses CPU time because other threads may run meanwhile. Subtracts the cost of the same writes without faults.
    """
    return statistics.median(_of_faults() for _ in range(_ROUNDS))


def _of_faults() -> float:
    start = time.thread_time_ns()
    memory = mmap.mmap(-1, _PAGES * _PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    held = ctypes.c_char.from_buffer(memory)
    address, faults = ctypes.addressof(held), resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    ctypes.memset(address, 1, _PAGES * _PAGE)
    faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - faults
    written = time.thread_time_ns()
    ctypes.memset(address, 2, _PAGES * _PAGE)
    again = time.thread_time_ns()
    del held
    memory.close()
    return (written - start - (again - written) + time.thread_time_ns() - again) / faults


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
        taken = []
        for _ in range(_WAKE_UPS):
            start = time.perf_counter_ns()
            os.write(there[1], b"+")
            os.read(back[0], 1)
            taken.append(time.perf_counter_ns() - start)
    finally:
        os.write(there[1], b"-")
        thread.join()
        for file in (*there, *back):
            os.close(file)
    return sorted(taken)[_WAKE_UPS // 10] / 2
