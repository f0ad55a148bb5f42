"""The one way to start a process: argument lists, never a shell; always a time limit; a kill that escalates."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from envmatrix.errors import EnvmatrixError

#: Seconds between interrupt, terminate and kill.
GRACE_S = 2.0
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Exit:
    """How a process ended. ``code`` is negative for a signal, as in ``subprocess``; ``wall_s`` is in seconds."""

    code: int
    wall_s: float
    timed_out: bool = False
    out_of_memory: bool = False

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
        text = (self.stderr.strip() or self.stdout.strip()).splitlines()
        return "\n".join(text[-lines:])


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _die_with_parent(cpus: Sequence[int], confine: Callable[[], None] | None = None) -> Callable[[], None]:
    """Make the child end when this process is killed, and pin and confine it before the program starts."""
    libc = ctypes.CDLL(None)
    parent = os.getpid()

    def prepare() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
        if cpus:
            os.sched_setaffinity(0, cpus)
        if confine:
            confine()

    return prepare


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        _signal_group(process, number)
        try:
            process.wait(GRACE_S)
            break
        except subprocess.TimeoutExpired:
            continue
    _signal_group(process, signal.SIGKILL)
    process.wait()


def run_logged(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    log: IO[bytes] | None,
    limit_s: float,
    cpus: Sequence[int] = (),
    confine: Callable[[], None] | None = None,
) -> Exit:
    """Run ``argv`` with exactly ``env``, its output into ``log``, for at most ``limit_s`` seconds.

    Without a ``log`` it has our own stdin, stdout and stderr. ``cpus`` is the CPU set the program starts with (empty:
    as this process); ``confine`` is called in the child just before the program starts (for memory limits and nodes).
    The process leads a group of its own; the whole group is ended at the time limit, and when this call is interrupted.
    """
    started = time.monotonic()
    stdin, out = (subprocess.DEVNULL, log) if log else (None, None)
    try:
        process = subprocess.Popen(
            list(argv), env=dict(env), cwd=cwd, stdin=stdin, stdout=out, stderr=out,
            start_new_session=True, preexec_fn=_die_with_parent(cpus, confine),  # noqa: PLW1509 - only system calls in it
        )  # fmt: skip
    except OSError as error:
        raise EnvmatrixError(f"cannot start {argv[0]}: {error.strerror or error}") from error
    except subprocess.SubprocessError as error:
        raise EnvmatrixError(
            f"cannot start {argv[0]} on CPUs {', '.join(map(str, cpus)) or 'of this process'} with its limits",
            remedy="check that these CPUs and memory nodes exist and may be used here",
        ) from error
    try:
        code = process.wait(limit_s)
        timed_out = False
    except subprocess.TimeoutExpired:
        _end(process)
        code, timed_out = process.returncode, True
    except BaseException:
        _end(process)
        raise
    _signal_group(process, signal.SIGKILL)
    return Exit(code, time.monotonic() - started, timed_out)


def run(
    argv: Sequence[str],
    *,
    limit_s: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    input_text: str | None = None,
) -> Finished:
    """Run a short command and return its output; ``env`` None means this process's environment.

    Raises EnvmatrixError when the program cannot be started; a non-zero status is the caller's to judge.
    """
    started = time.monotonic()
    try:
        process = subprocess.Popen(
            list(argv), env=None if env is None else dict(env), cwd=cwd, start_new_session=True,
            stdin=subprocess.DEVNULL if input_text is None else subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=_die_with_parent(()),  # noqa: PLW1509
        )  # fmt: skip
    except OSError as error:
        raise EnvmatrixError(f"cannot start {argv[0]}: {error.strerror or error}") from error
    try:
        out, err = process.communicate(None if input_text is None else input_text.encode(), timeout=limit_s)
        timed_out = False
    except subprocess.TimeoutExpired:
        _end(process)
        out, err = process.communicate()
        timed_out = True
    except BaseException:
        _end(process)
        raise
    ended = Exit(process.returncode, time.monotonic() - started, timed_out)
    return Finished(tuple(argv), ended, out.decode(errors="replace"), err.decode(errors="replace"))
