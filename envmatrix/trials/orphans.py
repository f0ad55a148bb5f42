"""Removal of processes and files that earlier trials left on this machine, before a trial begins.

Callers hold the measuring lock of this cache, so nothing found here belongs to a running run.
"""

from __future__ import annotations

import contextlib
import glob
import os
import platform
import re
from pathlib import Path

from envmatrix.block import orphans
from envmatrix.block.orphans import TRIAL_VARIABLE
from envmatrix.block.program_overlay import remove_folder
from envmatrix.build.cache import json_digest
from envmatrix.errors import EngineError
from envmatrix.plan import Slot
from envmatrix.system import resource_paths

_OWNER_PID = re.compile(r"(?:session-|bench-[a-z]+\.)(\d+)[-.]")
#: Where a trial without a container writes temporary files (see ``base_variables``).
_TMP = Path("/tmp")  # noqa: S108


def _mark_prefix() -> str:
    """Return the prefix of the marks of this cache's trials; runs of other caches are left alone."""
    return json_digest(str(resource_paths.cache_folder()))[:12] + "/"


def trial_mark(run: str, slot: Slot) -> dict[str, str]:
    """Return the variable that marks a trial's processes."""
    return {TRIAL_VARIABLE: f"{_mark_prefix()}{run}/{slot.trial}"}


def work_folder() -> Path:
    """Return the folder of the work folders of running processes, per machine, as a cache may be shared."""
    return resource_paths.cache_folder() / "work" / json_digest(platform.node())[:8]


def session_prefix() -> str:
    """Return the prefix of a session's work folder, with its owner's process id."""
    return f"session-{os.getpid()}-"


def killed_runs() -> list[str]:
    """Return the names of killed runs, whose work folders still exist."""
    return sorted(path.name for path in work_folder().glob("*") if path.is_dir() and not _OWNER_PID.match(path.name))


def remove_files() -> None:
    """Remove the work folders of killed trials and sessions, and the benchmark's temporary files in /tmp.

    An engine's data of a trial, RUN.TRIAL, is removed too, as that engine may never be used again.
    """
    for name in killed_runs():
        for path in (*work_folder().parent.glob(f"*/{glob.escape(name)}.*"), work_folder() / name):
            remove_folder(path)
    for path in (*work_folder().glob("session-*"), *_TMP.glob("bench-*.*")):
        owner = _OWNER_PID.match(path.name)
        with contextlib.suppress(OSError):
            if owner and not Path(f"/proc/{owner[1]}").exists() and path.lstat().st_uid == os.getuid():
                remove_folder(path)


def end_processes() -> int:
    """End every process of earlier trials and return their number. Raises EngineError if one cannot be ended."""
    try:
        return orphans.end_processes(_mark_prefix())
    except orphans.CannotEndError as error:
        raise EngineError(
            f"{error}, and it would disturb new trials", remedy=f"see what it waits for: `cat /proc/{error.pid}/stack`"
        ) from error
