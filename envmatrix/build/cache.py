"""The cache: content-addressed files and folders that are complete or absent, safe for concurrent builders."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from envmatrix.block.available_memory import free_memory
from envmatrix.errors import EngineError, Where
from envmatrix.system.atomic_files import whole_file
from envmatrix.system.regular_files import open_regular

#: The tmpfs that every Linux has; it may be smaller in a container or a job.
MEMORY_FOLDER = Path("/dev/shm")  # noqa: S108 (mkdtemp makes the names)
_DISK_FULL = re.compile(r"no space left|enough free space|disk quota exceeded|wrote only \d+ of", re.IGNORECASE)
_FREE_SPACE = "free some space there, or set ENVMATRIX_CACHE to a folder on a larger disk; no half-built files are left"
_REMEDIES = {
    errno.ENOSPC: _FREE_SPACE,
    errno.EDQUOT: _FREE_SPACE,
    errno.EACCES: "set ENVMATRIX_CACHE to a folder that you can write to",
    errno.EPERM: "set ENVMATRIX_CACHE to a folder that you can write to",
    errno.EROFS: "set ENVMATRIX_CACHE to a folder that you can write to",
    errno.EEXIST: "set ENVMATRIX_CACHE to a folder, not to a file",
    errno.ENOTDIR: "set ENVMATRIX_CACHE to a folder, not to a file",
}


def json_digest(*parts: object) -> str:
    """Return the sha256 (hex) of values that JSON can represent."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def file_digest(path: Path) -> str:
    """Return the sha256 (hex) of a regular file."""
    sha256 = hashlib.sha256()
    with open_regular(path) as file:
        while chunk := file.read(2**20):
            sha256.update(chunk)
    return sha256.hexdigest()


def file_stamp(path: Path) -> str:
    """Return a file's size and modification time, to recognise it without reading it.

    Uses whole seconds and no inode number, so that copies that keep times, and shared file systems, still match.
    """
    status = path.stat()
    return f"{status.st_size} {int(status.st_mtime)}"


def has_stamp(path: Path, stamp: str) -> bool:
    """Return whether a file exists and has this stamp ('': any)."""
    try:
        return file_stamp(path) == stamp or not stamp
    except OSError:
        return False


@contextlib.contextmanager
def disk_errors(place: Path) -> Iterator[None]:
    """Convert an OSError about ``place`` to an EngineError with a remedy."""
    try:
        yield
    except shutil.Error as error:  # a list of all files of a folder that could not be copied
        reason = str(error.args[0][0][-1]) if isinstance(error.args[0], list) else str(error)
        raise disk_full_error(place) if is_disk_full(reason) else EngineError(reason, where=Where(place)) from error
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, "")
        where = Where(Path(error.filename) if isinstance(error.filename, str) else place)
        raise EngineError(f"{error.strerror or error}", where=where, remedy=remedy) from error


def is_disk_full(output: str) -> bool:
    """Return whether a program's output reports a full disk or an exceeded quota."""
    return _DISK_FULL.search(output) is not None


def disk_full_error(place: Path) -> EngineError:
    """Return the error for a program that failed because the disk is full."""
    return EngineError("no space left on device", where=Where(place), remedy=_FREE_SPACE)


def tool_error(output: str, place: Path, message: str, remedy: str) -> EngineError:
    """Return the error of a program that failed: ``message``, or that the disk of ``place`` is full."""
    return disk_full_error(place) if is_disk_full(output) else EngineError(message, remedy=remedy)


@dataclass(frozen=True)
class Cache:
    """The folder of downloads and everything built from them. Each entry's path contains a digest of its content."""

    root: Path

    @contextlib.contextmanager
    def exclusive_lock(self, name: str) -> Iterator[None]:
        """Take the named lock. A second builder waits for it, then finds the work done."""
        with disk_errors(self.root):
            folder = self.root / "building"
            folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(folder / f"{json_digest(name)[:16]}.lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def folder(self, path: Path, build: Callable[[Path], object]) -> bool:
        """Make sure the folder ``path`` exists; ``build`` fills a new one. Return whether it was built now.

        The folder is built under a temporary name in the same parent folder and then renamed. Leftovers of a killed
        builder are removed by the next one. Part of a cache may be a link into another cache with its own locks; if two
        builders meet there, the first to finish wins.
        """
        if path.is_dir():
            return False
        with self.exclusive_lock(str(path.resolve())), disk_errors(path):
            if path.is_dir():
                return False
            temporary = _new_folder(path.parent, f".{path.name}.")
            try:
                with _folder_in_use(temporary):
                    temporary.chmod(0o755)
                    build(temporary)
                    return _rename_into_place(temporary, path)
            finally:
                remove_tree(temporary)

    def scratch(self, name: str) -> AbstractContextManager[Path]:
        """Make a temporary folder inside the cache, so that a rename out of it works; it is removed afterwards."""
        return self._temporary_folder(self.root / "scratch", f"{name}.")

    def quick_scratch(self, name: str, room: int) -> AbstractContextManager[Path]:
        """Like ``scratch``, but in memory if ``room`` (bytes) is at most half of the free memory there.

        An image has about 20,000 files; writing and reading them is several times faster there than on most disks.
        """
        prefix = f"envmatrix-{os.getuid()}-{json_digest(str(self.root.resolve()))[:12]}."
        return self._temporary_folder(MEMORY_FOLDER, prefix) if fits_in_memory(room) else self.scratch(name)

    @contextlib.contextmanager
    def _temporary_folder(self, folder: Path, prefix: str) -> Iterator[Path]:
        """Yield a new folder and remove it afterwards; remove leftovers of killed processes first."""
        with contextlib.ExitStack() as held:
            with self.exclusive_lock("scratch"), disk_errors(folder):
                path = _new_folder(folder, prefix)
                held.enter_context(_folder_in_use(path))
            held.callback(remove_tree, path)
            yield path

    def write(self, path: Path, text: str) -> None:
        """Write a small file atomically: a reader sees all of it or nothing."""
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(path) as file:
                file.write(text.encode())

    def read_json(self, path: Path) -> dict[str, object] | None:
        """Read a build record; None if it is absent or damaged (the caller then rebuilds it)."""
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return document if isinstance(document, dict) else None


def fits_in_memory(room: int) -> bool:
    """Return whether ``room`` bytes are at most half of the free memory for files (tmpfs(5))."""
    try:
        file_system, free_bytes = os.statvfs(MEMORY_FOLDER), free_memory()
    except (OSError, ValueError):
        return False
    usable = os.access(MEMORY_FOLDER, os.W_OK) and not file_system.f_flag & os.ST_NOEXEC
    return usable and 2 * room <= min(free_bytes, file_system.f_bavail * file_system.f_frsize)


def _new_folder(parent: Path, prefix: str) -> Path:
    """Make a temporary folder with a unique name, and remove those that killed processes left."""
    parent.mkdir(parents=True, exist_ok=True)
    for leftover in parent.glob(f"{prefix}*"):
        _remove_unheld(leftover)
    return Path(tempfile.mkdtemp(prefix=prefix, dir=parent))


@contextlib.contextmanager
def _folder_in_use(folder: Path) -> Iterator[None]:
    """Mark a folder as in use: ``_remove_unheld`` skips it."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH)
        yield
    finally:
        os.close(handle)


def _rename_into_place(built: Path, target: Path) -> bool:
    """Rename a folder into its place and return True; return False if another process was first."""
    try:
        built.rename(target)
    except OSError:
        if target.is_dir():
            return False
        raise
    return True


def _remove_unheld(path: Path) -> None:
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_tree(path)
        finally:
            os.close(handle)


def remove_tree(path: Path) -> None:
    """Remove a folder, including read-only subfolders."""
    if not path.exists():
        return
    for folder, names, _ in os.walk(path):
        for name in names:
            child = Path(folder) / name
            if not child.is_symlink():
                with contextlib.suppress(OSError):
                    child.chmod(0o700)
    shutil.rmtree(path, ignore_errors=True)
