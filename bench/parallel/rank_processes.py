"""The rank processes of one job: started together and ended together, even if their supervisor is killed."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Optional

_PR_SET_PDEATHSIG = 1
_POLL_S = 0.02
#: Seconds to wait after a failure: the other ranks soon fail too, and the report must name the first.
_GATHER_S = 1.0
#: Seconds to wait after a time-out: ranks waiting in the same collective time out in turn, the missing one does not.
_TIME_OUT_GATHER_S = 3.0
_LOG_BYTES = 20_000


#: The operation that waited, and its limit in seconds.
Timeout = tuple[str, float]

_WORDS = (
    # NCCL's watchdog thread, which then ends the process with SIGABRT.
    re.compile(r"collective operation timeout: Work\w*\(SeqNum=\d+, OpType=(?P<what>\w+),.*?Timeout\(ms\)=(?P<ms>\d+)"),
    # Gloo, also Horovod's, in a rank that waits for another's data.
    re.compile(r"Timed out waiting (?P<ms>\d+)ms for (?:recv|send) operation"),
    # torch's store, in which ranks publish their addresses.
    re.compile(r"wait timeout after (?P<ms>\d+)ms"),
)


def find_timeout(text: str) -> Timeout | None:
    """Return (operation, limit in seconds) if ``text`` reports a time-out, otherwise None."""
    for pattern in _WORDS:
        match = pattern.search(text)
        if match:
            return match.groupdict().get("what") or "a collective", int(match["ms"]) / 1000
    return None


def timeout_message(timeout: Timeout, waiting: int, missing: Sequence[int], world: int) -> str:
    """Return a message with the ranks that did not take part (``missing``, if known) and the rank that waited."""
    operation, seconds = timeout
    if not missing:
        return f"time-out: {operation} was not over within {seconds:g} s, for which rank {waiting} of {world} waited"
    names = ", ".join(map(str, missing))
    return (
        f"time-out: rank {names} of {world} took no part in {operation} within {seconds:g} s, "
        f"for which rank {waiting} of {world} waited (still running then: rank {names})"
    )


class Failure(NamedTuple):
    """A failure: which rank failed first, how, and which ranks still ran; ``guilt``: 0 killed, 1 error, 2 lost a peer.

    ``timeout`` is set if it waited for others in vain (``find_timeout``). Then ``running`` are the ranks for
    which it may have waited, without those whose logs show that they waited too.
    """

    rank: int
    how: str
    running: Sequence[int]
    guilt: int
    timeout: Optional[Timeout] = None  # noqa: UP045 - a NamedTuple of Python 3.9


class Ranks:
    """The processes ``argv_of(rank)`` for ranks 0 to ``count`` - 1, each with a log file in ``folder``."""

    def __init__(self, argv_of: Callable[[int], Sequence[str]], count: int, folder: str, cwd: str) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(count):
                self.processes.append(self._start(argv_of(rank), rank, cwd))
        except BaseException:
            self.end()
            raise

    def _start(self, argv: Sequence[str], rank: int, cwd: str) -> subprocess.Popen[bytes]:
        with open(self.log_path(rank), "wb") as log:
            return subprocess.Popen(
                argv,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_die_with(os.getpid()),  # noqa: PLW1509 - only system calls in it
            )

    def log_path(self, rank: int) -> str:
        """Return the path of a rank's log."""
        return os.path.join(self.folder, f"rank-{rank}.log")

    def last_words(self, rank: int) -> str:
        """Return the end of a rank's log as text."""
        with open(self.log_path(rank), "rb") as file:
            file.seek(max(0, os.path.getsize(self.log_path(rank)) - _LOG_BYTES))
            return file.read().decode(errors="replace").strip()

    def wait(self) -> Failure | None:
        """Wait for all ranks. If one fails, end the others and return the Failure, otherwise return None."""
        while True:
            codes = [process.poll() for process in self.processes]
            if any(code not in (None, 0) for code in codes):
                return self._failed()
            if None not in codes:
                return None
            time.sleep(_POLL_S)

    def _failed(self) -> Failure:
        """Find the rank that failed first; one killed by a signal has priority over one that only lost its peer."""
        self._gather(_GATHER_S, lambda: any((process.poll() or 0) < 0 for process in self.processes))
        rank = self._first_broken()
        timeout = find_timeout(self.last_words(rank))
        if timeout:
            self._gather(_TIME_OUT_GATHER_S, lambda: None not in [process.poll() for process in self.processes])
            rank = self._first_broken()
            timeout = find_timeout(self.last_words(rank))
        running = [
            rank
            for rank, process in enumerate(self.processes)
            if process.poll() is None and not (timeout and self._waited(rank))
        ]
        ending, (guilt, _, _) = exit_description(self._code(rank)), self._innocence(rank)
        self.end()
        return Failure(rank, ending, running, guilt, timeout)

    def _gather(self, seconds: float, enough: Callable[[], bool]) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not enough():
            time.sleep(_POLL_S)

    def _first_broken(self) -> int:
        return min((rank for rank, process in enumerate(self.processes) if process.poll()), key=self._innocence)

    def _waited(self, rank: int) -> bool:
        log_tail = self.last_words(rank)
        return bool(find_timeout(log_tail)) or any(word in log_tail for word in _CONNECTION_LOST)

    def _innocence(self, rank: int) -> tuple[int, int, int]:
        log_tail = self.last_words(rank)
        if find_timeout(log_tail):  # also if NCCL then ends the process with a signal
            return (2, 0, rank)
        if self._code(rank) < 0:
            return (0, 0, rank)
        return (2, 1, rank) if any(word in log_tail for word in _LOST_A_PEER) else (1, 0, rank)

    def _code(self, rank: int) -> int:
        return self.processes[rank].returncode or 0

    def end(self) -> None:
        """Kill all running ranks, and wait until they are gone."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
        for process in self.processes:
            process.wait()


_CONNECTION_LOST = ("Connection closed by peer", "Connection reset", "Broken pipe")
#: Messages of Gloo, NCCL and the store after the other side is gone.
_LOST_A_PEER = (
    *_CONNECTION_LOST,
    "Timed out waiting",
    "NCCL",
    "failed to recv",
    "remote peer",
    "Horovod has been shut down",
)


def exit_description(code: int) -> str:
    """Return how a process with this return code ended, as text."""
    if code >= 0:
        return f"ended with exit status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _die_with(parent: int) -> Callable[[], None]:
    """Return a function that makes a child end with its parent, even after SIGKILL (prctl(2), PR_SET_PDEATHSIG)."""
    libc = ctypes.CDLL(None)

    def prepare() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return prepare


def python() -> list[str]:
    """Return the command line of this interpreter, with its warning options."""
    return [sys.executable, *(f"-W{option}" for option in sys.warnoptions)]
