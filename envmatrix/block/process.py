"""Run programs under a supervisor: argument lists without a shell, always a time limit, escalating kills."""

from __future__ import annotations

import contextlib
import marshal
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NamedTuple

from envmatrix.block import fork_limit, interrupts, process_supervisor

#: stdin, stdout and stderr, as for ``subprocess``.
Streams = tuple["int | IO[bytes] | None", "int | IO[bytes] | None", "int | IO[bytes] | None"]
#: Seconds for the supervisor to end a program and its descendants before it is killed.
ENDED_S = 20.0
STARTER, WATCHER = (Path(__file__).with_name(name) for name in ("supervisor_entry.py", "cleanup_watcher.py"))


class NotStartedError(Exception):
    """A program could not be started; ``where`` lists its CPUs if placing it failed, otherwise None."""

    def __init__(self, program: str, number: int, where: str | None = None) -> None:
        super().__init__(f"cannot start {program}: {os.strerror(number)}")
        self.program, self.number, self.where = program, number, where


@dataclass(frozen=True)
class Exit:
    """How a process ended. ``code`` is negative for a signal, as in ``subprocess``; ``wall_s`` is in seconds.

    ``stops`` is how often it was stopped in the meantime, as far as known. ``processes`` is how many it had when it was
    ended.
    """

    code: int
    wall_s: float
    timed_out: bool = False
    out_of_memory: bool = False
    stops: int = 0
    processes: int = field(default=0, compare=False)

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with status 0."""
        return self.code == 0 and not self.timed_out

    def __str__(self) -> str:
        if self.timed_out:
            crowded = f", with {self.processes} processes" if self.processes > fork_limit.MANY else ""
            return f"ran past its limit and was ended after {self.wall_s:.0f} s{crowded}"
        if self.out_of_memory:
            return "was killed because it ran out of memory"
        if self.code < 0:
            return f"was killed by {_signal_name(-self.code)}"
        return f"ended with exit status {self.code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@dataclass(frozen=True)
class Place:
    """CPUs and limits of a program. ``groups`` are the cgroups it enters, ``data_bytes`` its RLIMIT_DATA."""

    cpus: tuple[int, ...] = ()
    memory_nodes: tuple[int, ...] = ()
    groups: tuple[Path, ...] = ()
    data_bytes: int | None = None

    def plain(self) -> tuple[tuple[int, ...], int, tuple[str, ...], int, int]:
        """Return the values in the form that the supervisor expects."""
        groups = tuple(str(group / "cgroup.procs") for group in self.groups)
        nodes = sum(1 << node for node in self.memory_nodes)
        return tuple(self.cpus), nodes, groups, self.data_bytes or 0, fork_limit.process_limit_for_program()


class Overlay(NamedTuple):
    """An overlay on ``root``: writes go to ``scratch``, except those to ``work``. A ``stale`` file is absent in it."""

    root: str
    scratch: str
    work: str
    stale: str = ""


@dataclass(frozen=True)
class Order:
    """A program to start: ``argv`` with exactly ``env`` (None: this process's), for at most ``limit_s`` seconds.

    ``grace_s``: seconds it may take after a first SIGTERM, to end its processes on other machines. ``overlay``: catches
    what it writes to its folder.
    """

    argv: Sequence[str]
    env: Mapping[str, str] | None
    cwd: Path | None
    limit_s: float
    place: Place = Place()
    grace_s: float = 0.0
    overlay: Overlay | None = None

    def encoded(self) -> bytes:
        """Return the order as the bytes that the supervisor reads."""
        variables = os.environ if self.env is None else self.env
        argv = [os.fsencode(word) for word in self.argv]
        env = {os.fsencode(name): os.fsencode(value) for name, value in variables.items()}
        overlay = (*self.overlay, str(self.cwd)) if self.overlay else None
        order = marshal.dumps((argv, env, self.place.plain(), overlay, self.limit_s, self.grace_s))
        return len(order).to_bytes(8, "big") + order


class SupervisedProcess:
    """A program started by a supervisor, which ends it and all its descendants (see ``process_supervisor.py``).

    Its file descriptor becomes readable when it has ended.
    """

    def __init__(self, order: Order, streams: Streams) -> None:
        self.order = order
        self._said = b""
        self._line, its = socket.socketpair()
        try:
            with interrupts.held():
                self.process = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(STARTER), str(its.fileno()), str(os.getpid())],
                    cwd=order.cwd,
                    stdin=streams[0],
                    stdout=streams[1],
                    stderr=streams[2],
                    start_new_session=True,
                    pass_fds=[its.fileno()],
                )
        except OSError as error:
            self._line.close()
            raise NotStartedError(order.argv[0], error.errno or 0) from error
        finally:
            its.close()
        with contextlib.suppress(BrokenPipeError):  # reported by the missing answer
            self._line.sendall(order.encoded())

    def __enter__(self) -> SupervisedProcess:
        return self

    def fileno(self) -> int:
        """Return the file descriptor that becomes readable when it ends."""
        return self._line.fileno()

    def hold(self) -> None:
        """Stop the program and its descendants; returns after they have stopped or ended."""
        self._send_command(process_supervisor.HOLD)

    def release(self) -> None:
        """Resume the program and its descendants."""
        self._send_command(process_supervisor.RELEASE)

    def _send_command(self, command: bytes) -> None:
        """Send a command to the supervisor; if the program has ended, keep its answer for ``answer``."""
        if self._said:
            return
        self._line.settimeout(ENDED_S)
        try:
            self._line.sendall(command)
            answer_byte = self._line.recv(1)
            self._said = b"" if answer_byte == command else answer_byte
        except TimeoutError:
            self.process.kill()  # its program is killed with it
        except OSError:  # it has ended: see its answer
            pass

    def end(self) -> None:
        """Start ending it without waiting, so that several can end at the same time."""
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_WR)

    def __exit__(self, *_: object) -> None:
        """End the program if it still runs."""
        with interrupts.held(), self._line:
            self.end()
            try:
                self.process.wait(ENDED_S)
            except subprocess.TimeoutExpired:
                self.process.kill()  # its program is killed with it
                self.process.wait()

    def answer(self) -> Exit:
        """Wait until the program and its descendants have ended; return its exit."""
        message = self._said
        if not message:
            interrupts.wait_readable([self._line], self.order.limit_s + ENDED_S)
        self._line.settimeout(ENDED_S)
        with contextlib.suppress(TimeoutError, ConnectionError):
            while chunk := self._line.recv(4096):
                message += chunk
        if not message:
            return Exit(-signal.SIGKILL, 0.0)
        ending, number, *details = marshal.loads(message)  # noqa: S302 - our own process's
        if ending == "ended":
            wall_s, timed_out, processes = details
            return Exit(number, wall_s, timed_out, processes=processes)
        program = self.order.argv[0]
        cpus = ", ".join(map(str, self.order.place.cpus)) or "of this process"
        raise NotStartedError(program, number, None if ending == "refused" else cpus)


@contextlib.contextmanager
def cleanup_watcher(argv: Sequence[str]) -> Iterator[None]:
    """Run ``argv`` if this process is killed within the context (see ``cleanup_watcher.py``)."""
    read_end, write_end = os.pipe()
    with interrupts.held():
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(WATCHER), str(read_end), str(os.getpid()), *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=[read_end],
        )
        os.close(read_end)
    try:
        yield
    finally:
        with interrupts.held():
            with contextlib.suppress(BrokenPipeError):  # it was killed
                os.write(write_end, b".")
            os.close(write_end)
            process.wait()
