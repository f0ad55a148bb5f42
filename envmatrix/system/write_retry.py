"""Retry writes during a run while the file system is temporarily unavailable, and report it."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TypeVar

from envmatrix.block import interrupts
from envmatrix.system.progress import ProgressCallback

T = TypeVar("T")

#: Seconds that a folder may stay read-only, as during a server's failover, before the run stops.
RETRY_LIMIT_S = 120.0
_PAUSE_S = 0.5
_TRANSIENT_ERRORS = frozenset({errno.EROFS, errno.ESTALE})
_say: ContextVar[ProgressCallback | None] = ContextVar("progress", default=None)


@contextmanager
def retry_writes(progress: ProgressCallback) -> Iterator[None]:
    """Enable retries in ``insisting``, and report them to ``progress``; without it errors are raised at once."""
    token = _say.set(progress)
    try:
        yield
    finally:
        _say.reset(token)


def insisting(act: Callable[[], T], path: Path) -> T:
    """Return the result of ``act``, which is repeated while ``path`` is temporarily not writable."""
    progress = _say.get()
    began = time.monotonic()
    is_reported = False
    while True:
        try:
            result = act()
        except OSError as error:
            late = time.monotonic() - began > RETRY_LIMIT_S
            if progress is None or late or error.errno not in _TRANSIENT_ERRORS or interrupts.came():
                raise
            if not is_reported:
                progress(f"{path}: {error.strerror}; retrying for at most {RETRY_LIMIT_S:.0f} s")
            is_reported = True
            time.sleep(_PAUSE_S)
        else:
            if is_reported and progress:
                progress(f"{path} is writable again after {time.monotonic() - began:.0f} s")
            return result
