"""Input and output functions that several commands share."""

from __future__ import annotations

import inspect
import json
import shutil
import sys
import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from envmatrix.errors import InputError

_PIPE_WIDTH = 140
#: Begins the names of the launchers' options in the namespace.
LAUNCHER_PREFIX = "launcher_option_"
Answer = TypeVar("Answer")

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from envmatrix.cli.argument_parser import Arguments
    from envmatrix.results.run_model import LauncherOptions


def print_json(body: object) -> None:
    """Print a JSON document."""
    sys.stdout.write(json.dumps(body, indent=2, sort_keys=False) + "\n")


def print_text(text: str) -> None:
    """Print plain text unchanged, for pipes and files."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def print_folded(text: str) -> None:
    """Print text; on a terminal, fold long lines between words, below the beginning of their first word."""
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        text = "\n".join(_fold(line, width) for line in text.splitlines())
    print_text(text)


def _fold(line: str, width: int) -> str:
    if len(line) <= width:
        return line
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def print_answer(arguments: Arguments, document: object, text: str) -> None:
    """Print the JSON document if --json was given, otherwise the text."""
    if arguments.json:
        print_json(document)
    elif text:
        print_folded(text)


def write_or_print(text: str | bytes, output: Path | None) -> None:
    """Write text or bytes to a file, completely or not at all; print them without a file."""
    if output is not None:
        from envmatrix.results import write_user_path

        write_user_path(output, text if isinstance(text, bytes) or text.endswith("\n") else text + "\n")
    elif isinstance(text, str):
        print_text(text)
    elif sys.stdout.isatty():
        raise InputError("this format is binary and not for a terminal", remedy="--output FILE")
    else:
        sys.stdout.buffer.write(text)


def stdout_console() -> Console:
    """Return a console; for a file or pipe, its lines are wide enough for every table."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_PIPE_WIDTH)


def print_progress(text: str) -> None:
    """Print one line of progress."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - progress of a command


def ask(question: str) -> bool:
    """Ask a yes-or-no question on the terminal; without an answer, return False."""
    print_progress(f"{question} [y/N] ")
    try:
        return input().strip().lower() in ("y", "yes")
    except (EOFError, KeyboardInterrupt):
        return False


def read_launcher_options(arguments: Arguments) -> LauncherOptions:
    """Return the given launcher options."""
    given = {
        key: value for key, value in vars(arguments).items() if key.startswith(LAUNCHER_PREFIX) and value is not None
    }
    return {
        key.removeprefix(LAUNCHER_PREFIX): tuple(value) if isinstance(value, list) else value
        for key, value in given.items()
    }


def call(function: Callable[..., Answer], arguments: Arguments, **more: Any) -> Answer:
    """Call a function of the API with ``more``, and with the arguments and options named like its other parameters.

    It also gets the command line, the options of the launcher and the progress display, if it takes them. An option
    that was not given (None) leaves the function's default.
    """
    options = {
        **vars(arguments),
        "command": tuple(sys.argv[1:]),
        "progress": print_progress,
        "launcher_options": read_launcher_options(arguments),
    }
    parameters = inspect.signature(function).parameters.items()
    given = {
        name for name, parameter in parameters if options.get(name) is not None or parameter.default is parameter.empty
    }
    return function(**{name: options[name] for name in given - more.keys() if name in options}, **more)
