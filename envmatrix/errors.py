"""The errors a user can meet: each says what happened, where, and what to do. Only ``__main__`` prints them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from enum import IntEnum
from pathlib import Path


class ExitCode(IntEnum):
    """Exit codes of the ``envmatrix`` command (docs/how-to/gate.md has the table).

    If several apply, the first of INTERRUPTED, NOTHING_RAN, OTHER_WORK, SLOWER, UNDECIDED, SOME_FAILED is used.
    """

    FINE = 0
    BAD_INPUT = 2
    SOME_FAILED = 3
    NOTHING_RAN = 4
    SLOWER = 5
    UNDECIDED = 6
    OTHER_WORK = 7
    INTERRUPTED = 130


#: Which code ends a command if several apply, the first one first.
_FIRST = (
    ExitCode.INTERRUPTED, ExitCode.BAD_INPUT, ExitCode.NOTHING_RAN, ExitCode.OTHER_WORK, ExitCode.SLOWER,
    ExitCode.UNDECIDED, ExitCode.SOME_FAILED,
)  # fmt: skip


def first_code(*codes: ExitCode) -> ExitCode:
    """Return the exit code that stands for several."""
    return next((code for code in _FIRST if code in codes), ExitCode.FINE)


@dataclass(frozen=True)
class Where:
    """A place in a file; ``line`` and ``column`` count from 1 as editors do."""

    file: Path
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        return ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)


def where_in(file: Path, text: str, position: int) -> Where:
    """Return the place of the character at ``position`` of a file's text."""
    start = text.rfind("\n", 0, position) + 1
    return Where(file, text.count("\n", 0, start) + 1, position - start + 1)


class EnvmatrixError(Exception):
    """Base of every error shown to a user.

    ``message`` says what happened, ``where`` the place, ``remedy`` what to change; ``exit_code`` is the
    command's exit code when this error ends it, ``topic`` what ``envmatrix docs`` explains it under ('': the message
    says it all).
    """

    exit_code = ExitCode.BAD_INPUT
    topic = ""

    def __init__(self, message: str, *, remedy: str = "", where: Where | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.where = where

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        remedy = f"\n  -> {self.remedy}" if self.remedy else ""
        return f"{place}{self.message}{remedy}"


class InputError(EnvmatrixError):
    """Something the user wrote (matrix.yaml, an argument, a file) cannot be used as it is."""


class StoreError(EnvmatrixError):
    """A results folder cannot be read or written; what is on disk is left as it is."""

    topic = "results-folder"


class StoppedRunError(EnvmatrixError):
    """A run cannot go on (its folder cannot be written or read); what has ended is kept, the remedy says how to resume.

    It is no bad input, so it has the exit code of an engine that went away.
    """

    exit_code = ExitCode.NOTHING_RAN
    topic = "stopped-run"


class NothingRanError(EnvmatrixError):
    """Not one trial could be run."""

    exit_code = ExitCode.NOTHING_RAN
    topic = "nothing-ran"


class InterruptedRunError(EnvmatrixError):
    """A run was interrupted before its answer; the remedy says how to go on."""

    exit_code = ExitCode.INTERRUPTED
    topic = "interrupted-run"


class EngineError(EnvmatrixError):
    """An engine is not there, does not answer, or could not build."""

    exit_code = ExitCode.NOTHING_RAN
    topic = "engine-error"


class NoTrialError(EngineError):
    """A process was not started, or its engine went away while it ran: nothing can be said of it."""


class EngineGoneError(EngineError):
    """A run was stopped because its engine, or an image that cannot be made again, is gone."""

    topic = "engine-gone"


class SkipEnvironmentError(EnvmatrixError):
    """This environment cannot be had on this machine; the others go on. The message is the skip reason."""

    exit_code = ExitCode.NOTHING_RAN
    topic = "skipped-environment"


def suggestion(word: str, known: Iterable[str]) -> str:
    """Say which known word was probably meant, or list them all when none is near."""
    words = sorted(set(known))
    near = get_close_matches(word, words, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"known: {', '.join(words)}" if words else "there is none yet"
