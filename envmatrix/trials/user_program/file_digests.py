"""Digests of the files of the user's own program, and changes to them since the run began."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath

from envmatrix.matrix.model import Workload
from envmatrix.system.reading_with_retries import read_with_retry
from envmatrix.system.regular_files import RefusedFileError, open_regular

#: Larger files that a command names are data, and would take long to read for every trial.
LARGEST_BYTES = 16 * 2**20
_MOST_FILES = 2000


def program_files(workload: Workload) -> dict[str, str]:
    """Return the sha256 of each file of a program, by its path in the program's folder.

    These are the files that its command names and the Python files next to them (of the folder itself if it names
    none), including packages. Data and files outside the folder are not included.
    """
    if not workload.command or not workload.files:
        return {}
    root = Path(workload.files)
    output_file = root / workload.json_file
    named_files = [file for file in _named_files(workload.command, root) if file != output_file]
    folders = dict.fromkeys(file.parent for file in named_files if file.suffix == ".py") or {root: None}
    sources = (file for folder in folders for file in _python_files(folder))
    digests: dict[str, str] = {}
    for file in (*named_files, *sources):
        if len(digests) >= _MOST_FILES:
            break
        digest = _file_digest(file)
        if digest:
            digests.setdefault(file.relative_to(root).as_posix(), digest)
    return digests


def changed_file_texts(workload: Workload, began: Mapping[str, str]) -> list[str]:
    """Return a sentence for each program file that no longer matches ``began`` (path -> sha256)."""
    root = Path(workload.files or "")
    current_digests = {name: _file_digest(root / name) for name in began}
    return [
        f"{name} {'was edited' if current_digests[name] else 'was deleted'} since the run started: later "
        "trials do other work"
        for name in began
        if current_digests[name] != began[name]
    ]


def _named_files(command: tuple[str, ...], root: Path) -> Iterator[Path]:
    for word in command:
        is_inside = not PurePath(word).is_absolute() and ".." not in PurePath(word).parts
        file = root / word
        if is_inside and word and file.is_file():
            yield file


def _python_files(folder: Path) -> Iterator[Path]:
    """Yield the Python files of a folder, and those of the packages in it."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if entry.name.endswith(".py") and entry.is_file():
            yield Path(entry.path)
        elif entry.is_dir(follow_symlinks=False) and (Path(entry.path) / "__init__.py").is_file():
            yield from _python_files(Path(entry.path))


def _file_digest(file: Path) -> str:
    """Return the digest of a file; '' if it is large, missing or not readable for this user.

    Raises StoreError for a temporary read error: an unreachable file server does not mean that a file was edited.
    """
    text = read_with_retry(lambda: _read_head(file), file)
    if text is None:
        return ""
    return "" if len(text) > LARGEST_BYTES else f"sha256:{hashlib.sha256(text).hexdigest()}"


def _read_head(file: Path) -> bytes | None:
    try:
        with open_regular(file) as body:
            return body.read(LARGEST_BYTES + 1)
    except (RefusedFileError, PermissionError):
        return None
