"""Files of a results folder: written whole or not at all, and what to do when the disk says no."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

from pydantic import JsonValue

from envmatrix.errors import StoreError, Where

_REMEDIES = {
    errno.ENOSPC: "free some space, then `envmatrix resume`",
    errno.EDQUOT: "your quota there is full: free some space, then `envmatrix resume`",
    errno.EACCES: "check who may write there",
    errno.ESTALE: "the file system that holds it went away: when it is back, `envmatrix resume`",
}


def os_error(error: OSError, path: Path) -> StoreError:
    """Return what the system said of a file, with its remedy where there is one."""
    return StoreError(f"{error.strerror}", where=Where(path), remedy=_REMEDIES.get(error.errno or 0, ""))


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader sees all of it or the old one: temporary file, fsync, rename."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise os_error(error, path) from error


def append_line(path: Path, line: str) -> None:
    """Append one line and make sure that it is on disk before returning."""
    try:
        with path.open("ab") as file:
            file.write(line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise os_error(error, path) from error


def mend_lines(path: Path, aside: Path) -> bool:
    """Move a last line that a crash left half-written to ``aside``; say whether there was one."""
    if not path.exists():
        return False
    with path.open("rb+") as file:
        body = file.read()
        whole = body.rfind(b"\n") + 1
        if whole == len(body):
            return False
        with aside.open("ab") as left:
            left.write(body[whole:] + b"\n")
        file.truncate(whole)
        os.fsync(file.fileno())
    return True


def read_text(file: Path) -> str:
    """Read a text file; a StoreError says why it cannot be read."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise os_error(error, file) from error
    except UnicodeDecodeError as error:
        raise StoreError(f"not UTF-8 text (byte {error.start})", where=Where(file)) from error


def read_json(file: Path) -> JsonValue:
    """Read a JSON file; a StoreError says what is wrong with it."""
    try:
        body: JsonValue = json.loads(read_text(file))
    except (ValueError, RecursionError) as error:
        raise StoreError(
            f"not readable as JSON ({error})", where=Where(file), remedy="restore it from a copy"
        ) from error
    return body
