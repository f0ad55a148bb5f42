"""Standard input of a command with a program: no trial gets it, so what was meant for the program is reported."""

from __future__ import annotations

import fcntl
import os
import shlex
import stat
import sys
import termios
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from envmatrix.cli.console_io import print_progress
from envmatrix.errors import InputError

_INPUT = 0


@contextmanager
def check_unused_input(words: Sequence[str]) -> Iterator[None]:
    """Refuse a file that was redirected to this command for its program ``words``; at the end, report other data.

    A shell's own script, or the list of its loop, may be standard input as well: they are not meant for the program.
    """
    if words and _waiting_input() == "file" and not _is_shared_with_parent():
        raise _file_error(words)
    try:
        yield
    finally:
        if words and _waiting_input() and not _is_shared_with_shell():
            print_progress(
                "note: standard input has data, which no run of your program gets. If it needs them, write them into a "
                "file: -- sh -c 'PROGRAM <FILE'"
            )


def _file_error(words: Sequence[str]) -> InputError:
    from envmatrix.trials.user_program.command_line_check import reads_program_from_input

    name = str(Path(f"/proc/self/fd/{_INPUT}").readlink())
    if name.endswith(" (deleted)"):  # a text in the command line itself (<<END)
        name = "FILE"
    elif Path(name).is_relative_to(Path.cwd()):
        name = str(Path(name).relative_to(Path.cwd()))
    if reads_program_from_input(tuple(words)):
        remedy = f"name it: -- {words[0]} {shlex.quote(name)}"
    else:
        remedy = f"let each run open it: -- sh -c {shlex.quote(f'{shlex.join(words)} <{shlex.quote(name)}')}"
    return InputError(f"standard input is {name}, which no run of your program gets", remedy=remedy)


def _waiting_input() -> str:
    """Return what standard input has: a 'file' that is not at its end, 'data' of a pipe or a socket, or ''."""
    if sys.stdin is None:  # closed: the descriptor may belong to another file by now
        return ""
    with suppress(OSError):
        status = os.fstat(_INPUT)
        if stat.S_ISREG(status.st_mode) and os.lseek(_INPUT, 0, os.SEEK_CUR) < status.st_size:
            return "file"
        is_stream = stat.S_ISFIFO(status.st_mode) or stat.S_ISSOCK(status.st_mode)
        if is_stream and any(fcntl.ioctl(_INPUT, termios.FIONREAD, bytes(4))):
            return "data"
    return ""


def _is_shared_with_parent() -> bool:
    """Return whether our parent has the same standard input, or might have it."""
    try:
        theirs, ours = Path(f"/proc/{os.getppid()}/fd/{_INPUT}").stat(), os.fstat(_INPUT)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return (theirs.st_dev, theirs.st_ino) == (ours.st_dev, ours.st_ino)


def _is_shared_with_shell() -> bool:
    """Return whether our parent is a shell with the same standard input: perhaps it reads its own script from it."""
    from envmatrix.trials.user_program.command_line_check import SHELLS

    with suppress(OSError):
        name = Path(f"/proc/{os.getppid()}/comm").read_text(encoding="utf-8", errors="replace").strip()
        return name in SHELLS and _is_shared_with_parent()
    return False
