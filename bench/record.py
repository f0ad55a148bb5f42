"""The record: its common fields, and writing it completely or not at all (docs/record.md)."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from bench import code_digest
from bench.errors import BenchError

SCHEMA = 1


def frame() -> dict[str, Any]:
    """Return the first fields of every record."""
    return {"schema": SCHEMA, "bench": {"digest": code_digest.bench_digest()}}


def check_writable(path: str | None) -> None:
    """Raise BenchError if a file cannot be written, before any work is done; None is standard output."""
    if path is None:
        return
    folder = os.path.dirname(os.path.realpath(path))
    if os.path.isdir(path):
        raise BenchError(f"{path} is a folder; name a file")
    if not os.path.isdir(folder):
        raise BenchError(f"cannot write {path}: there is no folder {folder}")
    if not os.access(folder, os.W_OK):
        raise BenchError(f"cannot write {path}: the folder {folder} cannot be written")


def write(record: Mapping[str, Any], path: str | None) -> None:
    """Write to a temporary file, then rename it to ``path``; without a path, print to standard output."""
    if path is None:
        json.dump(record, sys.stdout, indent=1, allow_nan=False)
        sys.stdout.write("\n")
        sys.stdout.flush()
        return
    path = os.path.realpath(path)
    if os.path.exists(path) and not os.path.isfile(path):  # a pipe or /dev/null, which a rename would replace
        with open(path, "w", encoding="utf-8") as device:
            json.dump(record, device, separators=(",", ":"), allow_nan=False)
            device.write("\n")
        return
    number, temporary = tempfile.mkstemp(prefix=".record.", dir=os.path.dirname(path))
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            json.dump(record, file, separators=(",", ":"), allow_nan=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException as error:
        if isinstance(error, OSError):
            error.filename = path  # errors of write have no file name
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def finite(number: float | None) -> float | None:
    """Return the number, or None if it is not finite, as JSON has no NaN."""
    return number if number is not None and number - number == 0 else None
