"""``envmatrix diff``."""

from __future__ import annotations

from pathlib import Path

from envmatrix.cli import console_io, shared_options
from envmatrix.cli.argument_parser import Arguments, Parser, declare, nonempty_name

_WIDEST = 48


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    declare(parser, "first", "ENV", "an environment", nonempty_name)
    declare(parser, "second", "OTHER", "the one to compare it with", nonempty_name)
    declare(parser, "--matrix", "FILE", "their matrix (default: ./matrix.yaml, otherwise that of the newest run)", Path)
    declare(parser, "--run", "RUN", "compare what this run recorded; start nothing", nonempty_name)
    shared_options.add(parser, "--results")
    shared_options.add_engine(parser, of_run=True)
    shared_options.add(parser, "--json")
    parser.examples("envmatrix diff baseline intel-omp", "envmatrix diff baseline tcmalloc --run reference-default")


def run(arguments: Arguments) -> None:
    """Print the differences between two environments."""
    from envmatrix.api.differences import diff

    first, second = arguments.first, arguments.second
    differences = console_io.call(diff, arguments)
    rows = [("", first, second), *(tuple(text or "-" for text in item) for item in differences)]
    console_io.print_answer(
        arguments,
        {"first": first, "second": second, "differences": [item._asdict() for item in differences]},
        _aligned(rows) if differences else f"{first} and {second} differ in nothing that was read back",
    )


def _aligned(rows: list[tuple[str, ...]]) -> str:
    """Return aligned columns; long texts are shortened (--json has the full texts)."""
    cut = [tuple(text if len(text) <= _WIDEST else f"{text[: _WIDEST - 3]}..." for text in row) for row in rows]
    widths = [max(len(row[column]) for row in cut) for column in (0, 1)]
    return "\n".join(f"{path:{widths[0]}}  {first:{widths[1]}}  {second}".rstrip() for path, first, second in cut)
