"""The user's own program in a trial's work folder, where it may also write: copies and links of its files."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

#: The file that a trial's process writes into its work folder (docs/record.md).
RECORD = "record.json"
#: Files up to this size (bytes) are copied into the work folder, larger ones linked (docs/workloads.md).
MAX_COPIED_BYTES = 2**20
#: Links are looked for among this many entries of the program's folder, as a folder of data may have millions.
_MOST_ENTRIES = 20_000


def link_program_files(work: Path, files: Path, inside: str, metric: str = "") -> None:
    """Make every entry of the program's folder appear in ``work``.

    The folder itself is mounted read-only at ``inside``. Small files are copied, so that a program can write to them
    without changing the user's files. Large files and folders are linked, by their paths inside the environment. An
    old ``metric`` file (or record) is left out, so that it cannot be read as this trial's. Folders with links that lead
    out of the program's folder are real folders with the links' targets, as such a link would lead elsewhere from
    ``inside``.
    """
    made = set() if inside == str(files) else set(_folders_of_links_out(files))
    _link_tree(work, files, inside, PurePosixPath(metric).parts, files.resolve(), made)
    (work / RECORD).unlink(missing_ok=True)


def find_links(folder: Path) -> Iterator[Path]:
    """Yield the links among the first entries of a program's folder and of the folders below it."""
    remaining = _MOST_ENTRIES
    for place, folders, names in os.walk(folder):
        entries = [Path(place, name) for name in (*folders, *names)[:remaining]]
        yield from (entry for entry in entries if entry.is_symlink())
        remaining -= len(entries)
        folders[:] = [name for name in folders if remaining and name != ".git"]


def _folders_of_links_out(files: Path) -> Iterator[Path]:
    root = files.resolve()
    for link in find_links(files):
        if not os.path.isabs(os.readlink(link)) and not _target(link).is_relative_to(root):
            yield from itertools.takewhile(lambda folder: folder != files, link.parents)


def _target(link: Path) -> Path:
    return Path(os.path.realpath(link))  # ``resolve`` raises for a link that leads to itself


def _link_tree(
    work: Path, files: Path, inner_path: str, left_out: tuple[str, ...], root: Path, made: set[Path]
) -> None:
    """Place a folder's entries into ``work``; the way to the ``left_out`` file, and ``made``, become real folders."""
    for entry in files.iterdir():
        target, on_the_way = work / entry.name, left_out[:1] == (entry.name,)
        if (on_the_way and entry.is_dir()) or entry in made:
            target.mkdir()
            below = left_out[1:] if on_the_way else ()
            _link_tree(target, entry, f"{inner_path}/{entry.name}", below, root, made)
        elif on_the_way:
            continue
        elif _is_small(entry):
            shutil.copy2(entry, target)
        else:
            real = _target(entry)  # a link that leaves the folder would lead elsewhere from where this is mounted
            target.symlink_to(f"{inner_path}/{entry.name}" if real.is_relative_to(root) else real)


def _is_small(entry: Path) -> bool:
    if entry.is_symlink() or not entry.is_file() or not os.access(entry, os.R_OK):
        return False
    return entry.stat().st_size <= MAX_COPIED_BYTES
