"""Find processes that earlier trials left running on this machine, by their variables, and end them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from envmatrix.block.process import STARTER, WATCHER

#: The variable that identifies a trial's processes, including daemons.
TRIAL_VARIABLE = "ENVMATRIX_TRIAL"
#: How long (seconds) killed processes may take to end.
_KILL_WAIT_S = 10.0
#: How long (seconds) the supervisors of a killed owner may take to end their descendants.
_SUPERVISOR_WAIT_S = 20.0
#: Seconds that exec may take while the kernel reads the program's file.
_STARTED_S = 5.0
_NAMES = (os.fsencode(STARTER.name), os.fsencode(WATCHER.name))
_PROC = Path("/proc")


class CannotEndError(Exception):
    """A process of an earlier trial cannot be ended."""

    def __init__(self, pid: int) -> None:
        super().__init__(f"process {pid} of an earlier trial cannot be ended")
        self.pid = pid


def end_processes(beginning: str) -> int:
    """End every process of an earlier trial whose ``TRIAL_VARIABLE`` has this prefix; return how many there were."""
    ended = set(_end_orphans())
    deadline = time.monotonic() + _KILL_WAIT_S
    while remaining := processes_with_variable(TRIAL_VARIABLE, beginning):
        if time.monotonic() > deadline:
            raise CannotEndError(remaining[0])
        _signal(remaining, signal.SIGKILL)
        ended |= set(remaining)
        time.sleep(0.01)
    return len(ended)


def _end_orphans() -> set[int]:
    """Resume the supervisors of a killed owner, so that they end their programs; kill the rest. Return their ids."""
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


def orphaned_supervisors() -> list[int]:
    """Return this user's supervisors and cleanup watchers whose owner was killed.

    They end their programs by themselves unless they are stopped. One that is ending this process is not waited for.

    Skips processes of other PID namespaces, whose parent ids have no meaning here.
    """
    own_namespace, pids = os.readlink(_PROC / "self/ns/pid"), []
    for pid, folder in _own_processes():
        with contextlib.suppress(OSError, ValueError, IndexError):
            command_line = _read(f"{folder}/cmdline").split(b"\0")
            if command_line[1:3] != [b"-I", b"-S"] or os.path.basename(command_line[3]) not in _NAMES:
                continue
            state, parent = _read(f"{folder}/stat").rpartition(b")")[2].split()[:2]
            is_orphan = state != b"Z" and parent != command_line[5] and command_line[5].isdigit()
            if is_orphan and os.readlink(f"{folder}/ns/pid") == own_namespace:
                pids.append(pid)
    return [pid for pid in pids if pid != os.getppid()]


def processes_with_variable(variable: str, beginning: str) -> list[int]:
    """Return this user's processes in which ``variable`` has a value with this prefix."""
    entry = f"\0{variable}={beginning}".encode()
    pids = []
    for pid, folder in _own_processes():
        with contextlib.suppress(OSError):
            if entry in b"\0" + _read_variables(folder):
                pids.append(pid)
    return [pid for pid in pids if pid != os.getpid()]


def _own_processes() -> Iterator[tuple[int, str]]:
    """Yield this user's processes with their folders: as text, since a machine may have many, and trials are short."""
    user = os.getuid()
    for name in filter(str.isdigit, os.listdir(_PROC)):
        folder = f"{_PROC}/{name}"
        with contextlib.suppress(OSError):
            if os.stat(folder).st_uid == user:
                yield int(name), folder


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


def _read_variables(folder: str) -> bytes:
    """Return a process's variables; wait for a process in exec, which has none yet."""
    deadline = time.monotonic() + _STARTED_S
    while True:
        if environ := _read(f"{folder}/environ"):
            return environ
        if not _is_starting(folder) or time.monotonic() > deadline:
            return _read(f"{folder}/environ")
        time.sleep(0.001)


def _is_starting(folder: str) -> bool:
    """Return whether a process is in exec: it has a program, but env_end is still 0 (proc_pid_stat(5))."""
    try:
        os.readlink(f"{folder}/exe")
        fields = _read(f"{folder}/stat").rpartition(b")")[2].split()
    except OSError:
        return False
    return fields[48:49] == [b"0"]
