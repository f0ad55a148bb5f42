"""The user's own program in a trial's work folder, where it may also write: copies and links of its files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path, PurePosixPath

#: The file that a trial's process writes into its work folder (docs/record.md).
RECORD = "record.json"
#: Files up to this size (bytes) are copied into the work folder, larger ones linked (docs/workloads.md).
MAX_COPIED_BYTES = 2**20


def lay_out(work: Path, files: Path, inside: str, metric: str = "") -> None:
    """Make every entry of the program's folder appear in ``work``.

    The folder itself is mounted read-only at ``inside``. Small files are copied, so that a program can write to them
    without changing the user's files. Large files and folders are linked, by their paths inside the environment. An
    old ``metric`` file (or record) is left out, so that it cannot be read as this trial's.
    """
    _link_tree(work, files, inside, PurePosixPath(metric).parts, files.resolve())
    (work / RECORD).unlink(missing_ok=True)


def _link_tree(work: Path, files: Path, inner_path: str, left_out: tuple[str, ...], root: Path) -> None:
    """Place a folder's entries into ``work``; create real folders on the path to the ``left_out`` file."""
    for entry in files.iterdir():
        target, on_the_way = work / entry.name, left_out[:1] == (entry.name,)
        if on_the_way and entry.is_dir():
            target.mkdir()
            _link_tree(target, entry, f"{inner_path}/{entry.name}", left_out[1:], root)
        elif on_the_way:
            continue
        elif _is_small(entry):
            shutil.copy2(entry, target)
        else:
            real = entry.resolve()  # a link that leaves the folder would lead elsewhere from where this is mounted
            target.symlink_to(f"{inner_path}/{entry.name}" if real.is_relative_to(root) else real)


def _is_small(entry: Path) -> bool:
    if entry.is_symlink() or not entry.is_file() or not os.access(entry, os.R_OK):
        return False
    return entry.stat().st_size <= MAX_COPIED_BYTES
