"""Read files on a shared file system, and retry temporary errors."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from envmatrix.errors import StoreError, Where
from envmatrix.system.atomic_files import store_error
from envmatrix.system.regular_files import RefusedFileError

T = TypeVar("T")

#: Seconds before each retry, 16 in all: an NFS server needs some time to fail over.
PAUSES_S = (0.1, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0)


def read_with_retry(ask: Callable[[], T], path: Path) -> T | None:
    """Return the result of ``ask`` about ``path``; None only if the file does not exist.

    Retries other errors for some seconds (ESTALE, EIO and EMFILE pass), then raises StoreError with the path. Raises
    RefusedFileError at once for a file of another kind or size.
    """
    for pause in (*PAUSES_S, None):
        try:
            return ask()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except RefusedFileError:
            raise
        except OSError as error:
            if pause is None or isinstance(error, PermissionError):
                raise unreadable_error(error, path) from error
            time.sleep(pause)
    raise AssertionError


def unreadable_error(error: OSError, path: Path) -> StoreError:
    """Return the error for a file that stayed unreadable."""
    final_error = store_error(error, path)
    remedy = final_error.remedy or "nothing in it is lost: when it is readable again, run `envmatrix resume`"
    return StoreError(final_error.message, where=Where(path), remedy=remedy)


def exists(path: Path) -> bool:
    """Return whether a file or folder exists. Raises StoreError if that cannot be determined."""
    return read_with_retry(path.stat, path) is not None
