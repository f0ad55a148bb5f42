"""A program that adds a cost of a known kind and size to each step, and prints the total in seconds."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import mmap
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

STEPS = 25
#: Work of a step that others or a quota slow down: some periods of a quota in all.
_LONG_S = 20e-3
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


@contextlib.contextmanager
def _beside(work: Callable[[], object], number: int = 1) -> Iterator[None]:
    """Run ``work`` in other processes meanwhile."""
    others = []
    for _ in range(number):
        other = os.fork()
        if not other:
            with contextlib.suppress(BaseException):
                work()
            os._exit(0)
        others.append(other)
    try:
        yield
    finally:
        for other in others:
            os.kill(other, signal.SIGKILL)
            os.waitpid(other, 0)


def _hash_on() -> None:
    while True:
        hashlib.sha256(_DATA)


class _Lock:
    """A lock of the kernel (of a file), which another process holds for a while whenever it is asked to."""

    def __init__(self, size: float) -> None:
        self._file = tempfile.NamedTemporaryFile()  # noqa: SIM115 - as long as the program
        self._size = size
        self._asked, self._held = os.pipe(), os.pipe()

    def hold(self) -> None:
        """Take the lock, report it, and give it back after a while, again and again."""
        with Path(self._file.name).open("rb") as file:
            while os.read(self._asked[0], 1):
                fcntl.flock(file, fcntl.LOCK_EX)
                os.write(self._held[1], b"+")
                time.sleep(self._size)
                fcntl.flock(file, fcntl.LOCK_UN)

    def wait(self, _size: float) -> None:
        """Ask for it to be held, then take it."""
        os.write(self._asked[1], b"+")
        os.read(self._held[0], 1)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        fcntl.flock(self._file, fcntl.LOCK_UN)


def _lost() -> float:
    """Return the time in which this thread, which never waits by itself, was not on a CPU."""
    return time.perf_counter() - time.thread_time()


#: How each cost is caused, and the clock that measures it. The last two slow down all work, by others or by a quota.
COSTS: dict[str, tuple[Callable[[float], object], Callable[[], float]]] = {
    "faults": (_faults, time.thread_time),
    "user": (_user, time.thread_time),
    "kernel": (_kernel, time.thread_time),
    "sleep": (time.sleep, time.perf_counter),
    "none": (lambda _: None, time.perf_counter),
    "others": (lambda _: _user(_LONG_S), _lost),
    "quota": (lambda _: _user(_LONG_S), _lost),
}


def _spin(over: threading.Event) -> None:
    while not over.is_set():
        hashlib.sha256(_DATA)


def steps(kind: str, size: float) -> Iterator[float]:
    """Run the steps and yield the cost added to each."""
    pay, clock = COSTS[kind]
    for _ in range(STEPS):
        began = clock()
        hashlib.sha256(_DATA)
        if clock is not _lost:
            began = clock()
        pay(size)
        yield size if kind == "sleep" else clock() - began


def main() -> None:
    """Run all steps next to a second thread that waits for them by spinning or sleeping."""
    kind, size, waits = os.environ.get("ENVMATRIX_COST", "none:0:sleep").split(":")
    over = threading.Event()
    other = threading.Thread(target=_spin if waits == "spin" else threading.Event.wait, args=(over,))
    beside: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if kind == "lock":
        lock = _Lock(float(size))
        COSTS["lock"], beside = (lock.wait, time.perf_counter), _beside(lock.hold)
    elif kind == "others":
        beside = _beside(_hash_on, int(float(size)))
    with beside:  # forks before there is a second thread
        other.start()
        paid = sum(steps(kind, float(size)))
    over.set()
    other.join()
    print(f"paid: {max(0.0, paid):.6f}")


if __name__ == "__main__":
    sys.exit(main())
