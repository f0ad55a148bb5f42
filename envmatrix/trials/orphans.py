"""What earlier trials of this machine left behind: nothing of it runs, or lies about, when a trial begins.

Whoever asks holds the lock of this cache's measuring, so nothing that is found here belongs to a run that goes on.
"""

from __future__ import annotations

import contextlib
import glob
import os
import platform
import re
import shutil
from pathlib import Path

from envmatrix.block import orphans
from envmatrix.block.orphans import TRIAL_VARIABLE
from envmatrix.build.cache import json_digest
from envmatrix.errors import EngineError
from envmatrix.plan import Slot
from envmatrix.system import project

_OWNER_PID = re.compile(r"(?:session-|bench-[a-z]+\.)(\d+)[-.]")
#: Where a trial without a container writes what is temporary (see ``base_variables``).
_TMP = Path("/tmp")  # noqa: S108


def _mark_prefix() -> str:
    """Return what the marks of this cache's trials begin with: another cache's runs are none of our business."""
    return json_digest(str(project.cache_folder()))[:12] + "/"


def trial_mark(run: str, slot: Slot) -> dict[str, str]:
    """Return the variable that marks a trial's processes."""
    return {TRIAL_VARIABLE: f"{_mark_prefix()}{run}/{slot.trial}"}


def work_folder() -> Path:
    """Return where work folders lie while their processes run; a cache may be shared with other machines."""
    return project.cache_folder() / "work" / json_digest(platform.node())[:8]


def session_prefix() -> str:
    """Return how the name of a session's work folder begins: it says whose it is."""
    return f"session-{os.getpid()}-"


def killed_runs() -> list[str]:
    """Return the names of the runs that were killed: their work folders are still there."""
    return sorted(path.name for path in work_folder().glob("*") if path.is_dir() and not _OWNER_PID.match(path.name))


def remove_files() -> None:
    """Remove the work folders of killed trials and sessions, and what the benchmark was then writing in /tmp.

    What an engine keeps of a trial lies beside them as RUN.TRIAL; that engine may never be used again.
    """
    for name in killed_runs():
        for path in (*work_folder().parent.glob(f"*/{glob.escape(name)}.*"), work_folder() / name):
            shutil.rmtree(path, ignore_errors=True)
    for path in (*work_folder().glob("session-*"), *_TMP.glob("bench-*.*")):
        owner = _OWNER_PID.match(path.name)
        with contextlib.suppress(OSError):
            if owner and not Path(f"/proc/{owner[1]}").exists() and path.lstat().st_uid == os.getuid():
                shutil.rmtree(path, ignore_errors=True)


def end_processes() -> int:
    """End every process of an earlier trial and return how many there were; EngineError when one cannot be ended."""
    try:
        return orphans.end_processes(_mark_prefix())
    except orphans.CannotEndError as error:
        raise EngineError(
            f"{error}, and trials would be measured beside it",
            remedy=f"see what it waits for: `cat /proc/{error.pid}/stack`",
        ) from error
