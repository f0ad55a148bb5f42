"""The one way to start a process: argument lists, never a shell; always a time limit; a kill that escalates."""

from __future__ import annotations

import contextlib
import errno
import json
import marshal
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from envmatrix.errors import NoTrialError
from envmatrix.system import interrupts
from envmatrix.system.supervisor import HOLD, RELEASE

#: stdin, stdout and stderr as ``subprocess`` takes them.
_Streams = tuple[int | IO[bytes] | None, int | IO[bytes] | None, int | IO[bytes] | None]
_SUPERVISOR, _CLEANUP_WATCHER = (Path(__file__).with_name(name) for name in ("supervisor.py", "cleanup_watcher.py"))
#: Seconds that the supervisor may take to end a program and what is left of it; then it is killed itself.
_ENDED_S = 20.0
_PROC = Path("/proc")
#: Seconds that a program's start may take in the kernel, which reads its file meanwhile.
_STARTED_S = 5.0
_REMEDIES = {
    errno.ENOENT: "install it, or add its folder to PATH",
    errno.EACCES: "check that the file is executable, and that its file system is not mounted noexec",
    errno.ENOEXEC: "its file is for another processor, or a script without #! in the first line",
    errno.EAGAIN: "stop other processes, or raise the limit on them (ulimit -u, pids of the cgroup)",
    errno.ENOMEM: "free some memory",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.E2BIG: "start envmatrix with fewer environment variables: its arguments and variables are too long",
}


@dataclass(frozen=True)
class Exit:
    """How a process ended. ``code`` is negative for a signal, as in ``subprocess``; ``wall_s`` is in seconds.

    ``stops`` is how often it was stopped meanwhile, as far as whoever ran it saw that.
    """

    code: int
    wall_s: float
    timed_out: bool = False
    out_of_memory: bool = False
    stops: int = 0

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with status 0."""
        return self.code == 0 and not self.timed_out

    def __str__(self) -> str:
        if self.timed_out:
            return f"ran past its limit and was ended after {self.wall_s:.0f} s"
        if self.out_of_memory:
            return "was killed because it ran out of memory"
        if self.code < 0:
            return f"was killed by {_signal_name(-self.code)}"
        return f"ended with exit status {self.code}"


@dataclass(frozen=True)
class Finished:
    """A short command's result, with its output as text."""

    argv: tuple[str, ...]
    exit: Exit
    stdout: str
    stderr: str

    def last_words(self, lines: int = 5) -> str:
        """Return the last lines it printed, for an error message."""
        output_lines = (self.stderr.strip() or self.stdout.strip()).splitlines()
        return "\n".join(output_lines[-lines:])


def parse_last_json(text: str) -> Any:
    """Return what the last line of a text that is a list or a mapping in JSON says.

    A ``sitecustomize`` of the Python that was asked may print before it, and at its end. Raises ValueError for none.
    """
    for line in reversed(text.splitlines()):
        if line.lstrip().startswith(("[", "{")):
            with contextlib.suppress(ValueError):
                return json.loads(line)
    msg = "there is no line of JSON"
    raise ValueError(msg)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _start_error(program: str, number: int) -> NoTrialError:
    remedy = _REMEDIES.get(number, "`envmatrix doctor` looks at what is missing here")
    return NoTrialError(f"cannot start {program}: {os.strerror(number)}", remedy=remedy)


@dataclass(frozen=True)
class Place:
    """Where a program runs, and its limits. ``groups`` are the cgroups it enters, ``data_bytes`` its RLIMIT_DATA."""

    cpus: tuple[int, ...] = ()
    memory_nodes: tuple[int, ...] = ()
    groups: tuple[Path, ...] = ()
    data_bytes: int | None = None

    def plain(self) -> tuple[tuple[int, ...], int, tuple[str, ...], int]:
        """Return what the supervisor takes."""
        groups = tuple(str(group / "cgroup.procs") for group in self.groups)
        return tuple(self.cpus), sum(1 << node for node in self.memory_nodes), groups, self.data_bytes or 0


@dataclass(frozen=True)
class Order:
    """What is to be started: ``argv`` with exactly ``env`` (None: this process's), for at most ``limit_s`` seconds."""

    argv: Sequence[str]
    env: Mapping[str, str] | None
    cwd: Path | None
    limit_s: float
    place: Place = Place()

    def encoded(self) -> bytes:
        """Return what the supervisor reads."""
        variables = os.environ if self.env is None else self.env
        order = marshal.dumps(
            (
                [os.fsencode(word) for word in self.argv],
                {os.fsencode(name): os.fsencode(value) for name, value in variables.items()},
                self.place.plain(),
                self.limit_s,
            )
        )
        return len(order).to_bytes(8, "big") + order


class SupervisedProcess:
    """A program that a supervisor started, and with which it ends all that came of it (see ``supervisor.py``).

    It can be read (``fileno``) when it has ended.
    """

    def __init__(self, order: Order, streams: _Streams) -> None:
        self.order = order
        self._said = b""
        self._line, its = socket.socketpair()
        try:
            with interrupts.held():
                self.process = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(_SUPERVISOR), str(its.fileno()), str(os.getpid())],
                    cwd=order.cwd, stdin=streams[0], stdout=streams[1], stderr=streams[2],
                    start_new_session=True, pass_fds=[its.fileno()],
                )  # fmt: skip
        except OSError as error:
            self._line.close()
            raise _start_error(order.argv[0], error.errno or 0) from error
        finally:
            its.close()
        with contextlib.suppress(BrokenPipeError):  # the answer that is not there says it
            self._line.sendall(order.encoded())

    def __enter__(self) -> SupervisedProcess:  # noqa: PYI034 - typing.Self is Python 3.11
        return self

    def fileno(self) -> int:
        """Return what can be read when it has ended."""
        return self._line.fileno()

    def hold(self) -> None:
        """Stop every process that came of it; they are stopped when this returns, or have ended."""
        self._send_command(HOLD)

    def release(self) -> None:
        """Let every process that came of it go on."""
        self._send_command(RELEASE)

    def _send_command(self, command: bytes) -> None:
        """Let the supervisor do something; what it says instead when the program has ended is kept for ``answer``."""
        if self._said:
            return
        self._line.settimeout(_ENDED_S)
        try:
            self._line.sendall(command)
            answer_byte = self._line.recv(1)
            self._said = b"" if answer_byte == command else answer_byte
        except TimeoutError:
            self.process.kill()  # its program dies with it, and is known to have been killed
        except OSError:  # it has ended: the answer says how
            pass

    def end(self) -> None:
        """Begin to end what still runs; whoever ends several waits for none of them before it has told all."""
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_WR)

    def __exit__(self, *_: object) -> None:
        """End what still runs."""
        with interrupts.held(), self._line:
            self.end()
            try:
                self.process.wait(_ENDED_S)
            except subprocess.TimeoutExpired:
                self.process.kill()  # its program dies with it
                self.process.wait()

    def answer(self) -> Exit:
        """Wait until the program has ended and nothing of it is left; return how it ended."""
        message = self._said
        if not message:
            interrupts.wait_readable([self._line], self.order.limit_s + _ENDED_S)
        self._line.settimeout(_ENDED_S)
        with contextlib.suppress(TimeoutError, ConnectionError):
            while chunk := self._line.recv(4096):
                message += chunk
        if not message:
            return Exit(-signal.SIGKILL, 0.0)
        ending, number, *details = marshal.loads(message)  # noqa: S302 - our own process's
        if ending == "ended":
            return Exit(number, *details)
        program = self.order.argv[0]
        if ending == "refused":
            raise _start_error(program, number)
        cpus = ", ".join(map(str, self.order.place.cpus)) or "of this process"
        raise NoTrialError(
            f"cannot start {program} on CPUs {cpus} with its limits: {os.strerror(number)}",
            remedy="check that these CPUs and memory nodes exist and may be used here",
        )


def run_logged(order: Order, log: IO[bytes] | None) -> Exit:
    """Run a program, its output into ``log``; without one it has our own stdin, stdout and stderr.

    Whatever it starts ends with it: at its own end, at the time limit, when this call is interrupted, and when this
    process is killed.
    """
    with started(order, log) as program:
        return program.answer()


def started(order: Order, log: IO[bytes] | None) -> SupervisedProcess:
    """Start what ``run_logged`` runs. It is a context manager, and ends with it."""
    return SupervisedProcess(order, (subprocess.DEVNULL, log, log) if log else (None, None, None))


def run(
    argv: Sequence[str],
    *,
    limit_s: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    input_text: str | None = None,
) -> Finished:
    """Run a short command and return its output; ``env`` None means this process's environment.

    Raises NoTrialError when the program cannot be started; a non-zero status is the caller's to judge.
    """
    standard_input = subprocess.DEVNULL if input_text is None else subprocess.PIPE
    streams = (standard_input, subprocess.PIPE, subprocess.PIPE)
    with SupervisedProcess(Order(argv, env, cwd, limit_s), streams) as supervisor:
        input_bytes = None if input_text is None else input_text.encode()
        try:
            stdout_bytes, stderr_bytes = supervisor.process.communicate(input_bytes, timeout=limit_s + _ENDED_S)
        except subprocess.TimeoutExpired as stuck:  # the supervisor itself: it is killed, and its program with it
            return Finished(tuple(argv), Exit(-signal.SIGKILL, stuck.timeout, timed_out=True), "", "")
        exit_status = supervisor.answer()
    return Finished(
        tuple(argv), exit_status, stdout_bytes.decode(errors="replace"), stderr_bytes.decode(errors="replace")
    )


@contextlib.contextmanager
def cleanup_watcher(argv: Sequence[str]) -> Iterator[None]:
    """See to it that ``argv`` is run should this process be killed meanwhile (see ``cleanup_watcher.py``)."""
    read_end, write_end = os.pipe()
    with interrupts.held():
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_CLEANUP_WATCHER), str(read_end), str(os.getpid()), *argv],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True, pass_fds=[read_end],
        )  # fmt: skip
        os.close(read_end)
    try:
        yield
    finally:
        with interrupts.held():
            with contextlib.suppress(BrokenPipeError):  # it was killed
                os.write(write_end, b".")
            os.close(write_end)
            process.wait()


def orphaned_supervisors() -> list[int]:
    """Return this user's supervisors and cleanup watchers whose envmatrix was killed.

    They end what is left, unless they are stopped.

    Processes of other PID namespaces are left alone: their numbers say nothing here.
    """
    own_namespace, pids = (_PROC / "self/ns/pid").readlink(), []
    for folder in _PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            if folder.stat().st_uid != os.getuid() or (folder / "ns/pid").readlink() != own_namespace:
                continue
            command_line = (folder / "cmdline").read_bytes().split(b"\0")
            if command_line[1:3] != [b"-I", b"-S"] or Path(os.fsdecode(command_line[3])).name not in (
                _SUPERVISOR.name,
                _CLEANUP_WATCHER.name,
            ):
                continue
            state, parent = (folder / "stat").read_bytes().rpartition(b")")[2].split()[:2]
            if state != b"Z" and parent != command_line[5] and command_line[5].isdigit():
                pids.append(int(folder.name))
    return pids


def processes_with_variable(variable: str, beginning: str) -> list[int]:
    """Return this user's processes in whose environment ``variable`` has a value that begins so."""
    entry = f"\0{variable}={beginning}".encode()
    pids = []
    for folder in _PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if folder.stat().st_uid == os.getuid() and entry in b"\0" + _read_variables(folder):
                pids.append(int(folder.name))
    return [pid for pid in pids if pid != os.getpid()]


def _read_variables(folder: Path) -> bytes:
    """Return a process's variables. One whose program is just being started has none yet: that is waited for."""
    deadline = time.monotonic() + _STARTED_S
    while True:
        if environ := (folder / "environ").read_bytes():
            return environ
        if not _is_starting(folder) or time.monotonic() > deadline:
            return (folder / "environ").read_bytes()
        time.sleep(0.001)


def _is_starting(folder: Path) -> bool:
    """Whether a process has a program (the kernel's own have none) whose variables have no end: proc_pid_stat(5)."""
    try:
        (folder / "exe").readlink()
        fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return False
    return fields[48:49] == [b"0"]
