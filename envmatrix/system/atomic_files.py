"""Write files of a results folder atomically, retry while it is unavailable, and report disk errors with remedies."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import IO, TypeVar

from pydantic import JsonValue

from envmatrix.block import interrupts
from envmatrix.errors import StoreError, Where
from envmatrix.system.json_parsing import parse_json
from envmatrix.system.progress import ProgressCallback
from envmatrix.system.regular_files import (
    RefusedFileError,
    decode_error_position,
    open_regular,
    packed,
    read_bytes,
    read_lines,
)

T = TypeVar("T")
_CHUNK_BYTES = 2**16
_RESTORE = "restore it from a copy"
_REMEDIES = {
    errno.ENOSPC: "free some space, then `envmatrix resume`",
    errno.EDQUOT: "your disk quota there is used up: free some space, then `envmatrix resume`",
    errno.EACCES: "check the permissions of its folder",
    errno.EROFS: "its file system is read-only: make it writable, or name another folder",
    errno.ENOENT: "check the name, and that its folder exists",
    errno.EISDIR: "it is a folder: name a file",
    errno.ENAMETOOLONG: "use a shorter name",
    errno.ENOLCK: "its file system does not support locks: mount it with them (flock), or use another folder: --output",
    errno.ESTALE: "its file system is unavailable: when it is back, run `envmatrix resume`",
}
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


def store_error(error: OSError, path: Path, line: int | None = None) -> StoreError:
    """Return an OSError about a file as a StoreError, with a remedy if one is known."""
    remedy = _RESTORE if isinstance(error, RefusedFileError) else _REMEDIES.get(error.errno or 0, "")
    return StoreError(f"{error.strerror}", where=Where(path, line), remedy=remedy)


@contextmanager
def store_errors(path: Path) -> Iterator[None]:
    """Convert an OSError about ``path`` to a StoreError."""
    try:
        yield
    except OSError as error:
        raise store_error(error, path) from error


def write_with_retry(act: Callable[[], T], path: Path) -> T:
    """Return the result of ``act``, repeated while ``path`` is temporarily not writable. Raises StoreError."""
    with store_errors(path):
        return insisting(act, path)


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file to write atomically: temporary file, fsync, rename. Readers see the old or the new content."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def open_user_path(path: Path) -> Iterator[IO[bytes]]:
    """Like ``whole_file`` for a path that the user named; links, pipes and /dev/null are kept."""
    real_path = Path(os.path.realpath(path))
    if real_path.exists() and not real_path.is_file():
        with real_path.open("wb") as file:
            yield file
        return
    with whole_file(real_path) as file:
        yield file


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()


def write_whole(path: Path, text: str | bytes) -> None:
    """Write a file atomically. Raises StoreError if it cannot be written."""

    def write() -> None:
        with whole_file(path) as file:
            file.write(_bytes(text))

    write_with_retry(write, path)


def write_user_path(path: Path, text: str | bytes) -> None:
    """Write to a path that the user named. Raises StoreError like ``write_whole``."""
    with store_errors(path), open_user_path(path) as file:
        file.write(_bytes(text))


def append_line(path: Path, line: str) -> None:
    """Append one line; return after it is on disk."""
    size_before: list[int] = []

    def append() -> None:
        with path.open("ab") as file:
            if size_before:  # a failed attempt may have written part of it
                file.truncate(size_before[0])
            size_before[:] = [file.tell()]
            file.write(line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    write_with_retry(append, path)


@contextmanager
def full_disk_errors(place: Path) -> Iterator[None]:
    """Convert an OSError for a full disk or quota to a StoreError, which stops a run; a trial is not at fault."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise store_error(error, place) from error
        raise


def check_free_space(folder: Path) -> None:
    """Raise StoreError if the disk is full: files just written there may be truncated."""
    with suppress(OSError), full_disk_errors(folder), tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(_CHUNK_BYTES))
        file.flush()


def remove_partial_line(path: Path, aside: Path) -> bool:
    """Move an incomplete last line, left by a crash, to ``aside``; return whether there was one."""
    with store_errors(path), suppress(FileNotFoundError), open_regular(path, to_change=True) as file:
        whole_bytes = _end_of_last_line(file)
        if whole_bytes == file.seek(0, os.SEEK_END):
            return False
        file.seek(whole_bytes)
        with aside.open("ab") as aside_file:
            shutil.copyfileobj(file, aside_file)
            aside_file.write(b"\n")
        file.truncate(whole_bytes)
        os.fsync(file.fileno())
        return True
    return False


def _end_of_last_line(file: IO[bytes]) -> int:
    """Return the position after the last line break, searching from the end."""
    end = file.seek(0, os.SEEK_END)
    while end > 0:
        start = max(0, end - _CHUNK_BYTES)
        file.seek(start)
        line_break = file.read(end - start).rfind(b"\n")
        if line_break >= 0:
            return start + line_break + 1
        end = start
    return 0


def move_lines(path: Path, numbers: Collection[int], aside: Path) -> None:
    """Move lines by number, from 1, to ``aside``; they are on disk there before the file is replaced."""
    with store_errors(path), path.open("rb") as file, whole_file(path) as remaining, aside.open("ab") as aside_file:
        for number, line in enumerate(file, 1):
            (aside_file if number in numbers else remaining).write(line)
        aside_file.flush()
        os.fsync(aside_file.fileno())


def unpack_lines(path: Path) -> None:
    """Replace a compressed file of lines by the plain one, whole or not at all."""
    if path.exists() or not packed(path).exists():
        return
    with store_errors(path):
        with whole_file(path) as plain:
            plain.writelines(read_lines(path))
        packed(path).unlink()


def read_text(file: Path) -> str:
    """Read a text file. Raises StoreError if it cannot be read."""
    try:
        with store_errors(file):
            return read_bytes(file).decode()
    except UnicodeDecodeError as error:
        message, where = f"not UTF-8 text (byte {error.start})", decode_error_position(error, file)
        raise StoreError(message, where=where, remedy=_RESTORE) from error


def read_whole_lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (number, bytes) of each complete line; nothing if the file does not exist."""
    number = 0
    try:
        for number, line in enumerate(read_lines(file), 1):
            yield number, line
    except FileNotFoundError:
        return
    except OSError as error:
        raise store_error(error, file, number + 1) from error


def read_json(file: Path) -> JsonValue:
    """Read a JSON file. Raises StoreError if it is invalid."""
    return parse_json(read_text(file), file)
