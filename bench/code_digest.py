"""Digests of this benchmark and of a workload's options. The host computes the same ones (docs/record.md)."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping


def folder_digest(folder: str) -> str:
    """Return ``sha256:`` and the hash of every file below ``folder``, to prove that environments ran the same code.

    Files are taken in the byte order of their relative POSIX names; each adds
    ``<name> NUL <size in decimal> NUL <bytes>``. ``__pycache__`` folders and ``.pyc`` files are left out.
    """
    sha256 = hashlib.sha256()
    for name in sorted(_relative_names(folder), key=os.fsencode):
        with open(os.path.join(folder, *name.split("/")), "rb") as file:
            content = file.read()
        sha256.update(os.fsencode(name) + b"\0" + str(len(content)).encode() + b"\0" + content)
    return "sha256:" + sha256.hexdigest()


def _relative_names(folder: str) -> Iterator[str]:
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        relative = os.path.relpath(parent, folder).replace(os.sep, "/")
        for name in files:
            if not name.endswith(".pyc"):
                yield name if relative == "." else f"{relative}/{name}"


def bench_digest() -> str:
    """Return the digest of the ``bench`` folder that this code runs from."""
    return folder_digest(os.path.dirname(os.path.abspath(__file__)))


def options_digest(options: Mapping[str, object]) -> str:
    """Return ``sha256:`` and the hash of the options as JSON with sorted keys, no spaces and ASCII escapes."""
    canonical_json = json.dumps(options, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return "sha256:" + hashlib.sha256(canonical_json.encode()).hexdigest()
