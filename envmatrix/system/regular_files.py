"""Read files safely: regular files only, with a size limit.

A pipe or a terminal would block the reader, and a device or a sparse file would fill the memory. Refused files raise an
OSError subclass, so that callers report all read errors in the same way.
"""

from __future__ import annotations

import errno
import gzip
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from envmatrix.errors import Where, where_in

MIB = 2**20
#: For files that people write, and for locks.
MAX_TEXT_BYTES = 4 * MIB
#: Read at once: the 8 KiB that Python reads by default are less than one line of a trial.
_BUFFER_BYTES = MIB // 4
#: For documents of programs, and for single lines: the times of millions of steps.
MAX_DOCUMENT_BYTES = 64 * MIB


class RefusedFileError(OSError):
    """The file is of another kind, or larger, than expected."""


def open_regular(file: Path, *, to_change: bool = False) -> IO[bytes]:
    """Open a regular file without blocking. Raises OSError for anything else."""
    _check_regular(file.stat(), file)  # before opening, because opening a device can have effects
    flags = os.O_RDWR if to_change else os.O_RDONLY
    handle = os.open(file, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        _check_regular(os.fstat(handle), file)
        return os.fdopen(handle, "rb+" if to_change else "rb", _BUFFER_BYTES)
    except OSError:
        os.close(handle)
        raise


def _check_regular(status: os.stat_result, file: Path) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise RefusedFileError(errno.EISDIR, "is a folder, not a file", str(file))
    if not stat.S_ISREG(status.st_mode):
        raise RefusedFileError(errno.EINVAL, "is not a regular file, but a device, a pipe or a socket", str(file))


def read_bytes(file: Path, most: int = MAX_DOCUMENT_BYTES, *, pipe: bool = False) -> bytes:
    """Return the content of a regular file (or a ``pipe``). Raises OSError beyond ``most`` bytes."""
    with open_regular(file) if not pipe or not file.is_fifo() else file.open("rb") as opened:
        content = opened.read(most + 1)
    if len(content) > most:
        raise RefusedFileError(errno.EFBIG, f"has more than {most // MIB} MiB, the limit for such files", str(file))
    return content


def read_lines(file: Path, max_bytes: int = MAX_DOCUMENT_BYTES) -> Iterator[bytes]:
    """Yield the lines of a regular file that end with a line break; a last one without is passed over.

    A file that is only there compressed (``packed``) is read as if it were not.
    """
    with _open_lines(file) as opened:
        try:
            while line := opened.readline(max_bytes + 1):
                if len(line) > max_bytes:
                    raise RefusedFileError(errno.EFBIG, f"has a line of more than {max_bytes // MIB} MiB", str(file))
                if line.endswith(b"\n"):
                    yield line
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise RefusedFileError(errno.EIO, f"{packed(file).name} is damaged: {error}", str(file)) from error


def packed(file: Path) -> Path:
    """Return the name of a file of lines that was compressed by gzip, to keep it."""
    return file.with_name(f"{file.name}.gz")


@contextmanager
def _open_lines(file: Path) -> Iterator[IO[bytes] | gzip.GzipFile]:
    if file.exists() or not packed(file).exists():
        with open_regular(file) as opened:
            yield opened
    else:
        with open_regular(packed(file)) as opened, gzip.GzipFile(fileobj=opened) as unpacked:
            yield unpacked


def decode_error_position(error: UnicodeDecodeError, file: Path) -> Where:
    """Return the position of the first byte of a file that is not UTF-8."""
    valid_text = error.object[: error.start].decode()
    return where_in(file, valid_text, len(valid_text))
