"""Files on a file system that several machines share: what cannot be read for a moment is not gone, nor damaged."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from envmatrix.errors import StoreError, Where
from envmatrix.system.atomic_files import store_error
from envmatrix.system.regular_files import RefusedFileError

T = TypeVar("T")

#: Seconds before each further try, 16 in all: a server of NFS that fails over takes some.
PAUSES_S = (0.1, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0)


def read_with_retry(ask: Callable[[], T], path: Path) -> T | None:
    """Return what ``ask`` learns of ``path``; None only where the system says that there is no such file.

    An error is asked again for some seconds (ESTALE, EIO and EMFILE pass), then it is a StoreError that names the path.
    A file of another kind or size is a RefusedFileError at once.
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
    """Return what is said of a file that could not be read in all that time."""
    final_error = store_error(error, path)
    remedy = final_error.remedy or "nothing in it is lost: when it is readable again, run `envmatrix resume`"
    return StoreError(final_error.message, where=Where(path), remedy=remedy)


def exists(path: Path) -> bool:
    """Say whether there is such a file or folder; what cannot be told is a StoreError."""
    return read_with_retry(path.stat, path) is not None
