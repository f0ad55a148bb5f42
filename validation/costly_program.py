"""A program that adds a cost of a known kind and size to each step, and prints the total in seconds."""

from __future__ import annotations

import hashlib
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

STEPS = 25
_BUFFER = bytearray(1 << 20)
_DATA = bytes(3 << 20)
_PIECE = bytes(1 << 19)


def _faults(size: float) -> None:
    pages = round(size / 2e-6)
    with mmap.mmap(-1, pages * mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        memory[:: mmap.PAGESIZE] = bytes(pages)


def _user(size: float) -> None:
    until = time.thread_time() + size
    while time.thread_time() < until:
        hashlib.sha256(_PIECE)


def _kernel(size: float) -> None:
    until = time.thread_time() + size
    with Path("/dev/zero").open("rb", buffering=0) as zeros:
        while time.thread_time() < until:
            zeros.readinto(_BUFFER)


#: How each cost is caused, and the clock that measures it.
COSTS: dict[str, tuple[Callable[[float], object], Callable[[], float]]] = {
    "faults": (_faults, time.thread_time),
    "user": (_user, time.thread_time),
    "kernel": (_kernel, time.thread_time),
    "sleep": (time.sleep, time.perf_counter),
    "none": (lambda _: None, time.perf_counter),
}


def _spin(over: threading.Event) -> None:
    while not over.is_set():
        hashlib.sha256(_DATA)


def steps(kind: str, size: float) -> Iterator[float]:
    """Run the steps and yield the cost added to each."""
    pay, clock = COSTS[kind]
    for _ in range(STEPS):
        hashlib.sha256(_DATA)
        began = clock()
        pay(size)
        yield size if kind == "sleep" else clock() - began


def main() -> None:
    """Run all steps next to a second thread that waits for them by spinning or sleeping."""
    kind, size, waits = os.environ.get("ENVMATRIX_COST", "none:0:sleep").split(":")
    over = threading.Event()
    other = threading.Thread(target=_spin if waits == "spin" else threading.Event.wait, args=(over,))
    other.start()
    paid = sum(steps(kind, float(size)))
    over.set()
    other.join()
    print(f"paid: {paid:.6f}")


if __name__ == "__main__":
    sys.exit(main())
