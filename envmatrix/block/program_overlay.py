"""The folder of the user's own program as it is, at its own path: an overlay catches what a trial writes there.

The supervisor mounts it for the trial's processes only (``process_supervisor.mount_overlay``). It covers the
repository of the program, if there is one; what a trial writes elsewhere, such as the user's home, is real.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from envmatrix.block.process import NotStartedError, Order, Overlay, SupervisedProcess

#: The folder of caught writes in a trial's work folder.
SCRATCH = ".overlay"
_TRIED_S = 30.0


def make_overlay(folder: Path, work: Path, metric: str = "") -> Overlay | None:
    """Return the overlay for a program's folder, with a fresh scratch folder in ``work``; None if there can be none.

    An old ``metric`` file is absent in it, so that it cannot be read as this trial's.
    """
    root, _ = overlay_root_or_reason(folder, work.parent)
    stale = os.path.join(folder, metric) if metric else ""
    if not root or not _is_below(Path(os.path.realpath(os.path.dirname(stale) or folder)), root):
        return None
    return _with_scratch(root, work, stale)


@lru_cache(maxsize=64)
def overlay_root_or_reason(folder: Path, place: Path) -> tuple[str, str]:
    """Return the root of an overlay for ``folder`` if trials work in ``place``; otherwise '' and the reason.

    The first call mounts it for a process that writes a file.
    """
    root = next(_possible_roots(folder), "")
    if not root:
        return "", f"{folder} is a home, a folder of the system, or has other file systems in it"
    if os.geteuid() and _has_foreign_entries(folder):
        return "", f"files in {folder} belong to another user or group"
    work = Path(tempfile.mkdtemp(prefix=f"session-{os.getpid()}-", dir=place))
    script = ": >.envmatrix-writes" if os.access(folder, os.W_OK) else ":"
    try:
        order = Order(["/bin/sh", "-c", script], {}, folder, _TRIED_S, overlay=_with_scratch(root, work))
        with SupervisedProcess(order, (subprocess.DEVNULL,) * 3) as process:
            return (root, "") if process.answer().ok else ("", f"an overlay on {root} cannot be written to")
    except NotStartedError as error:
        reason = "its limit on namespaces is reached" if error.number == errno.ENOSPC else os.strerror(error.number)
        return "", f"this system refuses an overlay on {root} ({reason})"
    finally:
        remove_folder(work)


def remove_folder(folder: Path) -> None:
    """Remove a work folder as far as possible, with what a trial made unreadable in it."""
    shutil.rmtree(folder, ignore_errors=True)
    if not folder.exists():
        return
    for place, names, _ in os.walk(folder):
        for path in (os.path.join(place, name) for name in names):
            if not os.path.islink(path):
                os.chmod(path, stat.S_IRWXU)
    shutil.rmtree(folder, ignore_errors=True)


def _with_scratch(root: str, work: Path, stale: str = "") -> Overlay:
    scratch = work / SCRATCH
    for name in ("upper", "work"):
        (scratch / name).mkdir(parents=True)
    shutil.copymode(root, scratch / "upper")  # it becomes the root's
    return Overlay(root, str(scratch), str(work), stale)


def _possible_roots(folder: Path) -> Iterator[str]:
    """Yield the folders that an overlay for ``folder`` may cover, the largest first."""
    repository = next((path for path in (folder, *folder.parents) if (path / ".git").exists()), folder)
    shared = [Path(path) for path in (os.path.expanduser("~"), tempfile.gettempdir(), "/tmp", "/")]  # noqa: S108
    mounts = _mount_points()
    for path in dict.fromkeys((repository, folder)):
        is_shared = any(_is_below(place, str(path)) for place in shared)
        if not is_shared and not any(_is_below(mount.parent, str(path)) for mount in mounts):
            yield str(path)


def _is_below(path: Path, root: str) -> bool:
    """Return whether a path is ``root`` or below it."""
    return Path(root) in (path, *path.parents)


def _mount_points() -> list[Path]:
    text = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    escaped = [line.split()[4] for line in text.splitlines()]
    return [Path(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), path)) for path in escaped]


def _has_foreign_entries(folder: Path) -> bool:
    """Return whether a folder, or a direct entry of it, has an owner that a user namespace does not know."""
    with os.scandir(folder) as entries:
        statuses = [os.stat(folder), *(entry.stat(follow_symlinks=False) for entry in entries)]
    return any((status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()) for status in statuses)
