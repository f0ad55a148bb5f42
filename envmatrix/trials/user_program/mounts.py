"""Folders that a program in a container needs at their own paths, read-only."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from envmatrix.block.program_folder import find_links

#: Folders that a container has of its own: they are never mounted, nor is anything in the first ones.
_OF_THE_SYSTEM = tuple(map(Path, ("/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/opt", "/proc", "/run", "/sbin",
                                  "/sys", "/usr")))  # fmt: skip
_NOT_WHOLE = frozenset(map(Path, ("/", "/home", "/mnt", "/root", "/srv", "/tmp", "/var", "/var/tmp", "/work")))  # noqa: S108
#: What separates the options of a mount.
_SEPARATORS = re.compile(r"[:,\\\s]")


def folders_to_mount(folder: Path, words: Iterable[str], variables: Iterable[str]) -> tuple[str, ...]:
    """Return the program's folder, and the folders that its command line, variables and links name.

    If the folder above it is the user's, that is returned instead, for a program that reads ``../data``. ``variables``
    are the names of those that it gets. A folder that cannot be mounted is left out, and so is the home if only a link
    or a file in it leads there.
    """
    named = [
        _folder_of(path)
        for path in _named_paths(words, variables)
        if _exists(path) and (path.is_dir() or path.parent != Path.home())
    ]
    linked = {_folder_of(path) for path in _link_targets(folder) if _exists(path)} - {Path.home()}
    top = folder.parent if _is_mountable(folder.parent) and _is_users(folder.parent) else folder
    folders: list[Path] = []
    for path in (top, *named, *sorted(linked)):
        if _is_mountable(path) and not any(path.is_relative_to(other) for other in folders):
            folders.append(path)
    return tuple(map(str, folders))


def _named_paths(words: Iterable[str], variables: Iterable[str]) -> Iterator[Path]:
    values = (part for name in variables for part in os.environ.get(name, "").split(":"))
    for text in (*(word.rpartition("=")[2] for word in words), *values):
        if text.startswith("/"):
            yield Path(os.path.normpath(text))


def _link_targets(folder: Path) -> Iterator[Path]:
    return (Path(os.path.realpath(link)) for link in find_links(folder))


def _folder_of(path: Path) -> Path:
    return path if path.is_dir() else path.parent


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a word that is too long for a path
        return False


def _is_mountable(path: Path) -> bool:
    is_system = any(path.is_relative_to(place) for place in _OF_THE_SYSTEM)
    return not is_system and path not in _NOT_WHOLE and not _SEPARATORS.search(str(path))


def _is_users(path: Path) -> bool:
    """Return whether a folder is this user's, but not the home, and a container's user can read it."""
    status = path.stat()
    is_open = os.geteuid() != 0 or status.st_mode & 0o005 == 0o005  # a container that root starts has another user
    return status.st_uid == os.geteuid() and is_open and path != Path.home()
