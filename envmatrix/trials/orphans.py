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

from envmatrix.build.cache import digest_of
from envmatrix.errors import EngineError
from envmatrix.plan import Slot
from envmatrix.system import project
from envmatrix.system.process import carriers, orphans

#: The variable by which a trial's processes are found again, daemons too.
MARK = "ENVMATRIX_TRIAL"
#: How long (seconds) the system may take to end what was killed.
_ENDED_S = 10.0
#: How long (seconds) the supervisors of a killed envmatrix may take to end what is below them.
_LET_END_S = 20.0
_OWNER = re.compile(r"(?:session-|bench-[a-z]+\.)(\d+)[-.]")
#: Where a trial without a container writes what is temporary (see ``base_variables``).
_TMP = Path("/tmp")  # noqa: S108


def _beginning() -> str:
    """Return what the marks of this cache's trials begin with: another cache's runs are none of our business."""
    return digest_of(str(project.cache_folder()))[:12] + "/"


def mark(run: str, slot: Slot) -> dict[str, str]:
    """Return the variable that marks a trial's processes."""
    return {MARK: f"{_beginning()}{run}/{slot.trial}"}


def folder() -> Path:
    """Return where work folders lie while their processes run; a cache may be shared with other machines."""
    return project.cache_folder() / "work" / digest_of(platform.node())[:8]


def session_prefix() -> str:
    """Return how the name of a session's work folder begins: it says whose it is."""
    return f"session-{os.getpid()}-"


def killed_runs() -> list[str]:
    """Return the names of the runs that were killed: their work folders are still there."""
    return sorted(path.name for path in folder().glob("*") if path.is_dir() and not _OWNER.match(path.name))


def remove_files() -> None:
    """Remove the work folders of killed trials and sessions, and what the benchmark was then writing in /tmp.

    What an engine keeps of a trial lies beside them as RUN.TRIAL; that engine may never be used again.
    """
    for name in killed_runs():
        for path in (*folder().parent.glob(f"*/{glob.escape(name)}.*"), folder() / name):
            shutil.rmtree(path, ignore_errors=True)
    for path in (*folder().glob("session-*"), *_TMP.glob("bench-*.*")):
        owner = _OWNER.match(path.name)
        with contextlib.suppress(OSError):
            if owner and not Path(f"/proc/{owner[1]}").exists() and path.lstat().st_uid == os.getuid():
                shutil.rmtree(path, ignore_errors=True)


def end_processes() -> int:
    """End every process of an earlier trial and return how many there were; EngineError when one cannot be ended."""
    ended = set(_let_orphans_end())
    deadline = time.monotonic() + _ENDED_S
    while left := carriers(MARK, _beginning()):
        if time.monotonic() > deadline:
            raise EngineError(
                f"process {left[0]} of an earlier trial cannot be ended, and trials would be measured beside it",
                remedy=f"see what it waits for: `cat /proc/{left[0]}/stack`",
            )
        _signal(left, signal.SIGKILL)
        ended |= set(left)
        time.sleep(0.01)
    return len(ended)


def _let_orphans_end() -> set[int]:
    """Let the supervisors of a killed envmatrix end what they started; return those that are stopped and cannot."""
    deadline, found = time.monotonic() + _LET_END_S, set()
    while (left := orphans()) and time.monotonic() < deadline + _ENDED_S:
        found |= set(left)
        _signal(left, signal.SIGCONT if time.monotonic() < deadline else signal.SIGKILL)
        time.sleep(0.01)
    return found


def _signal(processes: Iterable[int], number: signal.Signals) -> None:
    for pid in processes:
        with contextlib.suppress(OSError):
            os.kill(pid, number)
