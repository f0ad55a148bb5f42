"""Where things are: the benchmark's folder, the matrix, the cache. A checkout comes before the installed copy."""

from __future__ import annotations

import hashlib
import json
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).resolve().parent


def bench_folder() -> Path:
    """Return the folder ``bench`` (the checkout's, or the copy inside the installed package)."""
    checkout = _PACKAGE.parent / "bench"
    return checkout if (checkout / "options.json").exists() else _PACKAGE / "_project" / "bench"


def default_matrix() -> Path:
    """Return the matrix.yaml that comes with envmatrix."""
    checkout = _PACKAGE.parent / "matrix.yaml"
    return checkout if checkout.exists() else _PACKAGE / "_project" / "matrix.yaml"


def locks_folder() -> Path:
    """Return the folder of the committed locks."""
    checkout = _PACKAGE.parent / "containers" / "locks"
    return checkout if checkout.is_dir() else _PACKAGE / "_project" / "containers" / "locks"


def cache_folder() -> Path:
    """Return $ENVMATRIX_CACHE, else the user's cache folder for envmatrix."""
    if named := os.environ.get("ENVMATRIX_CACHE"):
        return Path(named).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(base).absolute() / "envmatrix"


@lru_cache(maxsize=1)
def bench_options() -> dict[str, Any]:
    """Return bench/options.json: the options of the built-in workloads, read as data (never imported)."""
    body: dict[str, Any] = json.loads((bench_folder() / "options.json").read_text(encoding="utf-8"))
    return body


def bench_digest(folder: Path) -> str:
    """Return the digest of a ``bench`` folder, by the algorithm of docs/record.md."""
    total = hashlib.sha256()
    names = [
        file.relative_to(folder).as_posix()
        for file in folder.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts and file.suffix != ".pyc"
    ]
    for name in sorted(names, key=os.fsencode):
        body = (folder / name).read_bytes()
        total.update(os.fsencode(name) + b"\0" + str(len(body)).encode() + b"\0" + body)
    return "sha256:" + total.hexdigest()
