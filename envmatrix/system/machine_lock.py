"""A lock that allows one measuring envmatrix per machine, because concurrent runs would disturb each other."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator

from envmatrix.system import resource_paths
from envmatrix.system.progress import ProgressCallback


@contextlib.contextmanager
def alone_on_machine(progress: ProgressCallback) -> Iterator[None]:
    """Take the lock, and wait if another envmatrix with this cache is measuring."""
    folder = resource_paths.cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / "measuring.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        progress("another envmatrix is measuring on this machine; waiting for it to end")
        began = time.monotonic()
        fcntl.flock(handle, fcntl.LOCK_EX)
        progress(f"waited {time.monotonic() - began:.0f} s")
    try:
        yield
    finally:
        os.close(handle)
