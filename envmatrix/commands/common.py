"""What several commands read and print."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from envmatrix.errors import InputError, suggestion

_WIDE = 140

if TYPE_CHECKING:
    from rich.console import Console

    from envmatrix.matrix import Matrix
    from envmatrix.store import RunFolder


def load_matrix(arguments: argparse.Namespace) -> Matrix:
    """Load the matrix named, or ./matrix.yaml, or the one that comes with envmatrix."""
    from envmatrix.matrix import load

    return load(matrix_path(arguments))


def matrix_path(arguments: argparse.Namespace) -> Path:
    """Return the path of the matrix that ``load_matrix`` reads."""
    from envmatrix.project import default_matrix

    here = Path("matrix.yaml")
    named: Path | None = arguments.matrix
    return named or (here if here.exists() else default_matrix())


def print_json(body: object) -> None:
    """Print a JSON document."""
    sys.stdout.write(json.dumps(body, indent=2, sort_keys=False) + "\n")


def print_text(text: str) -> None:
    """Print plain text as it is, for pipes and files."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def console(*, stderr: bool = False) -> Console:
    """Return a console; a file or pipe gets lines that are wide enough for every table."""
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False)
    return console if console.is_terminal else Console(stderr=stderr, highlight=False, width=_WIDE)


def say_to_stderr(text: str) -> None:
    """Print one line of progress."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - progress of a command


def ask(question: str) -> bool:
    """Ask a yes-or-no question on the terminal; no answer is no."""
    say_to_stderr(f"{question} [y/N] ")
    try:
        return input().strip().lower() in ("y", "yes")
    except (EOFError, KeyboardInterrupt):
        return False


def find_run(results: Path, name: str | None) -> RunFolder:
    """Return the run's folder: a path, a name under ``results``, or the newest run when no name is given."""
    from envmatrix.store import RunFolder

    if name is None:
        runs = [file.parent for file in results.glob("*/run.json")]
        if not runs:
            raise InputError(f"there is no run in {results}", remedy="make one: `envmatrix bench`")
        return RunFolder(max(runs, key=lambda path: (path / "run.json").stat().st_mtime))
    for path in (Path(name), results / name) if name else ():
        if (path / "run.json").exists():
            return RunFolder(path)
    known = [file.parent.name for file in results.glob("*/run.json")]
    raise InputError(f"no run {name!r}", remedy=suggestion(name, known))
