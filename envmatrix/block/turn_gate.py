"""The runner's end of the gate, where a trial's process waits for its turns (docs/record.md)."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

#: The folder of the pipes in a trial's work folder. User programs do not use this name.
FOLDER = ".envmatrix-gate"
_READY, _GO = "ready", "go"
_READY_MESSAGE = re.compile(rb"ready (\d{1,9})\n")


class GateError(Exception):
    """A process sent an invalid message at its gate."""


class Gate:
    """Two named pipes between the host and a trial's process; readable when the process has sent a message.

    Both pipes are opened for reading and writing here, so that neither side blocks until the other opens its end.
    """

    def __init__(self, ready: int, go: int) -> None:
        self._ready, self._go = ready, go
        self._received = b""

    def fileno(self) -> int:
        """Return the file descriptor that becomes readable when the process has sent a message."""
        return self._ready

    def remaining_steps(self) -> int | None:
        """Return how many timed steps the waiting process has left; None if its message is incomplete."""
        with contextlib.suppress(BlockingIOError):
            self._received += os.read(self._ready, 4096)
        if b"\n" not in self._received and len(self._received) < 64:
            return None
        message, self._received = self._received, b""
        match = _READY_MESSAGE.fullmatch(message)
        if not match:
            raise GateError(f"unexpected message at the start barrier: {message[:64]!r}")
        return int(match[1])

    def go(self, discarded_steps: int, timed_steps: int) -> None:
        """Give the process a turn, which starts when the process is continued."""
        self._send(f"go {discarded_steps} {timed_steps}\n")

    def end(self, later_s: float | None = None) -> None:
        """Let the process finish its trial, and go on for ``later_s`` seconds of steps (None: end)."""
        self._send("end\n" if later_s is None else f"end {round(1000 * later_s)}\n")

    def _send(self, text: str) -> None:
        os.write(self._go, text.encode())


@contextlib.contextmanager
def open_gate(work: Path) -> Iterator[Gate]:
    """Make the gate of a trial in its work folder. Raises OSError if the file system does not support it."""
    folder = work / FOLDER
    with contextlib.ExitStack() as stack:
        folder.mkdir()
        handles = []
        for name in (_READY, _GO):
            os.mkfifo(folder / name, 0o600)
            handles.append(os.open(folder / name, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
            stack.callback(os.close, handles[-1])
        yield Gate(*handles)
