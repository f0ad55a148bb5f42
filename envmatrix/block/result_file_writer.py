"""Files that a job writes into its block's folder for the host to read; each is complete or absent."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from envmatrix.block.block_instructions import CANNOT_WRITE

T = TypeVar("T")
_LOCK_S = 0.5
#: Errors of a file system that is temporarily not writable.
WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ESTALE, errno.EIO)


class StopError(Exception):
    """Stops a job before its block is done: the exit status, the node, and what is missing there."""

    def __init__(self, status: int, what: str = "", node: str = "") -> None:
        super().__init__(what)
        self.status, self.what, self.node = status, what, node


@dataclass(frozen=True)
class JobFiles:
    """The folder of a block. Failed reads and writes are retried once a second for ``patience_s`` seconds."""

    folder: Path
    attempt: int
    patience_s: float
    say: Callable[[str], None]

    def retry(self, what: str, action: Callable[[], T]) -> T:
        """Return the result of ``action``. Raises StopError if the folder stays inaccessible for too long."""
        deadline = time.monotonic() + self.patience_s
        reported = False
        while True:
            try:
                return action()
            except OSError as error:
                if not reported:
                    self.say(f"{error}: this failed, and is tried again: {what}")
                reported = True
                if time.monotonic() > deadline:
                    raise StopError(CANNOT_WRITE, str(error)) from error
                time.sleep(1)

    def write_whole(self, name: str, text: str) -> None:
        """Write a file atomically, by a rename."""
        file, draft = self.folder / name, self.folder / f".{name}.{self.attempt}"

        def write() -> None:
            draft.write_text(f"{text}\n", encoding="utf-8")
            os.replace(draft, file)

        self.retry(f"write {name}", write)

    def append(self, name: str, text: str) -> None:
        """Append lines to a file in one write."""

        def write() -> None:
            with (self.folder / name).open("ab", buffering=0) as file:
                file.write(f"{text}\n".encode())

        self.retry(f"write {name}", write)

    def read(self, name: str) -> str:
        """Return the content of a file, '' if there is none."""

        def read() -> str:
            try:
                return (self.folder / name).read_text(encoding="utf-8").strip()
            except FileNotFoundError:
                return ""

        return self.retry(f"read {name}", read)

    def holds(self, name: str) -> bool:
        """Return whether such a file or folder exists."""

        def stat() -> bool:
            try:
                (self.folder / name).stat()
            except FileNotFoundError:
                return False
            return True

        return self.retry(f"look at {name}", stat)


def lock_host(say: Callable[[str], None]) -> socket.socket:
    """Wait until no other job of this user runs on this machine; others wait while the returned socket is open.

    Its name, which is in no folder, is the lock: it is gone when the process ends, however that happens.
    """
    lock, is_reported = socket.socket(socket.AF_UNIX), False
    while True:
        try:
            lock.bind(f"\0envmatrix-{os.getuid()}")
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            return lock
        if not is_reported:
            say("another run measures on this machine: waiting until it has ended")
        is_reported = True
        time.sleep(_LOCK_S)
