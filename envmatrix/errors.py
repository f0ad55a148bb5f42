"""The errors that users see: what happened, the place and the remedy. Only ``__main__`` prints them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
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


#: Order of precedence of exit codes if several apply.
_FIRST = (
    ExitCode.INTERRUPTED,
    ExitCode.BAD_INPUT,
    ExitCode.NOTHING_RAN,
    ExitCode.OTHER_WORK,
    ExitCode.SLOWER,
    ExitCode.UNDECIDED,
    ExitCode.SOME_FAILED,
)


def most_important_code(*codes: ExitCode) -> ExitCode:
    """Return the exit code to use if several apply."""
    return next((code for code in _FIRST if code in codes), ExitCode.FINE)


@dataclass(frozen=True)
class Where:
    """A place in a file; ``line`` and ``column`` count from 1, as in editors."""

    file: Path
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        return ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)


def where_in(file: Path, text: str, position: int) -> Where:
    """Return the place in ``file`` of the character at ``position`` of its text."""
    start = text.rfind("\n", 0, position) + 1
    return Where(file, text.count("\n", 0, start) + 1, position - start + 1)


class EnvmatrixError(Exception):
    """Base class of every error shown to users.

    ``message`` is what happened, ``where`` the place and ``remedy`` what to change. If the error ends the command,
    ``exit_code`` is its exit code. ``topic`` is the entry of ``envmatrix docs`` that explains it ('': none).
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
    """Something that the user wrote (matrix.yaml, an argument, a file) cannot be used."""


class StoreError(EnvmatrixError):
    """A results folder or an archive cannot be read or written; the files on disk are unchanged."""

    topic = "results-folder"


class StoppedRunError(EnvmatrixError):
    """A run cannot continue because its folder cannot be read or written; finished trials are kept.

    The exit code is that of a lost engine, because the input was not at fault.
    """

    exit_code = ExitCode.NOTHING_RAN
    topic = "stopped-run"


class NothingRanError(EnvmatrixError):
    """No trial could be run."""

    exit_code = ExitCode.NOTHING_RAN
    topic = "nothing-ran"


class InterruptedRunError(EnvmatrixError):
    """A run was interrupted before it had a result; the remedy is the command that continues it."""

    exit_code = ExitCode.INTERRUPTED
    topic = "interrupted-run"


class EngineError(EnvmatrixError):
    """An engine is missing, does not answer, or could not build."""

    exit_code = ExitCode.NOTHING_RAN
    topic = "engine-error"


class NoTrialError(EngineError):
    """A process could not be started or its engine was lost while it ran, so there is no trial to record."""


class EngineGoneError(EngineError):
    """A run stopped because its engine is gone, or an image that cannot be rebuilt."""

    topic = "engine-gone"


class SkipEnvironmentError(EnvmatrixError):
    """This environment is not available on this machine; the others continue. The message is the skip reason."""

    exit_code = ExitCode.NOTHING_RAN
    topic = "skipped-environment"


def or_else(remedy: str, other: str) -> str:
    """Return a remedy with another one behind it; the first may be a question."""
    return f"{remedy} Or {other}" if remedy.endswith("?") else f"{remedy}; or {other}"


def suggestion(word: str, known: Iterable[str]) -> str:
    """Suggest the known word closest to ``word``, or list all known words if none is close."""
    from difflib import get_close_matches

    words = sorted(set(known))
    near = get_close_matches(word, words, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"known: {', '.join(words)}" if words else "there is none yet"
