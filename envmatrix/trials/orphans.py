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
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from envmatrix.build.cache import json_digest
from envmatrix.errors import EngineError
from envmatrix.plan import Slot
from envmatrix.system import project
from envmatrix.system.process import orphaned_supervisors, processes_with_variable

#: The variable by which a trial's processes are found again, daemons too.
TRIAL_VARIABLE = "ENVMATRIX_TRIAL"
#: How long (seconds) the system may take to end what was killed.
_KILL_WAIT_S = 10.0
#: How long (seconds) the supervisors of a killed envmatrix may take to end what is below them.
_SUPERVISOR_WAIT_S = 20.0
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
    ended = set(_end_orphans())
    deadline = time.monotonic() + _KILL_WAIT_S
    while remaining := processes_with_variable(TRIAL_VARIABLE, _mark_prefix()):
        if time.monotonic() > deadline:
            raise EngineError(
                f"process {remaining[0]} of an earlier trial cannot be stopped, and it would disturb new trials",
                remedy=f"see what it waits for: `cat /proc/{remaining[0]}/stack`",
            )
        _signal(remaining, signal.SIGKILL)
        ended |= set(remaining)
        time.sleep(0.01)
    return len(ended)


def _end_orphans() -> set[int]:
    """Let the supervisors of a killed envmatrix end what they started; return those that are stopped and cannot."""
    deadline, orphan_ids = time.monotonic() + _SUPERVISOR_WAIT_S, set()
    while (remaining := orphaned_supervisors()) and time.monotonic() < deadline + _KILL_WAIT_S:
        orphan_ids |= set(remaining)
        _signal(remaining, signal.SIGCONT if time.monotonic() < deadline else signal.SIGKILL)
        time.sleep(0.01)
    return orphan_ids


def _signal(processes: Iterable[int], number: signal.Signals) -> None:
    for pid in processes:
        with contextlib.suppress(OSError):
            os.kill(pid, number)
