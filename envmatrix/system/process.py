"""Commands of this machine: argument lists, never a shell; always a time limit; what did not start says why."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from envmatrix.block import process
from envmatrix.block.process import ENDED_S, Exit, NotStartedError, Order, Place
from envmatrix.errors import NoTrialError
from envmatrix.system.start_errors import start_remedy

__all__ = [
    "Exit", "Finished", "Order", "Place", "SupervisedProcess", "log_or_inherited_streams", "parse_last_json", "run",
    "run_logged",
]  # fmt: skip


@dataclass(frozen=True)
class Finished:
    """The result of a short command, with its output as text."""

    argv: tuple[str, ...]
    exit: Exit
    stdout: str
    stderr: str

    def last_words(self, lines: int = 5) -> str:
        """Return the last lines of output, for an error message."""
        output_lines = (self.stderr.strip() or self.stdout.strip()).splitlines()
        return "\n".join(output_lines[-lines:])


def parse_last_json(text: str) -> Any:
    """Return the value of the last line that is a list or an object in JSON.

    Skips other lines, which a ``sitecustomize`` may print before or after it. Raises ValueError if there is none.
    """
    for line in reversed(text.splitlines()):
        if line.lstrip().startswith(("[", "{")):
            with contextlib.suppress(ValueError):
                return json.loads(line)
    msg = "there is no line of JSON"
    raise ValueError(msg)


@contextlib.contextmanager
def _with_remedy(folder: Path | None) -> Iterator[None]:
    try:
        yield
    except NotStartedError as error:
        where, remedy = "", start_remedy(error.number, error.program, folder)
        if error.where is not None:
            where = f" on CPUs {error.where} with its limits"
            remedy = "check that these CPUs and memory nodes exist and may be used here"
        message = f"cannot start {error.program}{where}: {os.strerror(error.number)}"
        raise NoTrialError(message, remedy=remedy) from error


class SupervisedProcess(process.SupervisedProcess):
    """A program under a supervisor; a NoTrialError says why one did not start, and what to do."""

    def __init__(self, order: Order, streams: process.Streams) -> None:
        with _with_remedy(order.cwd):
            super().__init__(order, streams)

    def __enter__(self) -> SupervisedProcess:  # noqa: PYI034 - typing.Self is Python 3.11
        return self

    def answer(self) -> Exit:
        """Wait until the program and its descendants have ended; return its exit."""
        with _with_remedy(self.order.cwd):
            return super().answer()


def log_or_inherited_streams(log: IO[bytes] | None) -> process.Streams:
    """Return the streams of a program with its output in ``log``; without one it uses our stdin, stdout and stderr."""
    return (subprocess.DEVNULL, log, log) if log else (None, None, None)


def run_logged(order: Order, log: IO[bytes] | None) -> Exit:
    """Run a program with the ``log_or_inherited_streams`` of ``log``.

    Its descendants end with it: at its own end, at the time limit, and when this call is interrupted or this process is
    killed.
    """
    with SupervisedProcess(order, log_or_inherited_streams(log)) as program:
        return program.answer()


def run(
    argv: Sequence[str],
    *,
    limit_s: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    input_text: str | None = None,
) -> Finished:
    """Run a short command and return its output; ``env`` None means this process's environment.

    Raises NoTrialError if the program cannot start; the caller must check its exit status.
    """
    standard_input = subprocess.DEVNULL if input_text is None else subprocess.PIPE
    streams = (standard_input, subprocess.PIPE, subprocess.PIPE)
    with SupervisedProcess(Order(argv, env, cwd, limit_s), streams) as supervisor:
        input_bytes = None if input_text is None else input_text.encode()
        try:
            stdout_bytes, stderr_bytes = supervisor.process.communicate(input_bytes, timeout=limit_s + ENDED_S)
        except subprocess.TimeoutExpired as stuck:  # the supervisor hangs; its program is killed with it
            return Finished(tuple(argv), Exit(-signal.SIGKILL, stuck.timeout, timed_out=True), "", "")
        exit_status = supervisor.answer()
    return Finished(
        tuple(argv), exit_status, stdout_bytes.decode(errors="replace"), stderr_bytes.decode(errors="replace")
    )
