"""``envmatrix diff``."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from envmatrix.cli import arguments as shared
from envmatrix.cli import common
from envmatrix.cli.grammar import Parser, one_name

_WIDEST = 48


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    parser.add_argument("first", type=one_name, metavar="ENV", help="an environment")
    parser.add_argument("second", type=one_name, metavar="OTHER", help="the one to compare it with")
    parser.add_argument(
        "--matrix",
        type=Path,
        metavar="FILE",
        help="their matrix (default: ./matrix.yaml, otherwise that of the newest run)",
    )
    parser.add_argument(
        "--run", dest="of_run", type=one_name, metavar="RUN", help="compare what this run recorded; start nothing"
    )
    shared.add_results(parser)
    shared.add_engine(parser, of_run=True)
    shared.add_json(parser)
    parser.examples("envmatrix diff baseline intel-omp", "envmatrix diff baseline tcmalloc --run reference-default")


def run(arguments: argparse.Namespace) -> int:
    """Print the differences between two environments."""
    from envmatrix.api.differences import diff

    first, second = arguments.first, arguments.second
    differences = diff(
        first,
        second,
        engine=arguments.engine,
        matrix=arguments.matrix,
        run=arguments.of_run,
        results=arguments.results,
        progress=common.print_progress,
    )
    if arguments.json:
        common.print_json({"first": first, "second": second, "differences": [asdict(one) for one in differences]})
    elif not differences:
        common.print_text(f"{first} and {second} differ in nothing that was read back")
    else:
        rows = [("", first, second), *((one.path, one.first or "-", one.second or "-") for one in differences)]
        common.print_text("\n".join(_lines(rows)))
    return 0


def _lines(rows: list[tuple[str, str, str]]) -> list[str]:
    """Return aligned columns; long texts are shortened (--json has the full texts)."""
    cut = [tuple(text if len(text) <= _WIDEST else f"{text[: _WIDEST - 3]}..." for text in row) for row in rows]
    widths = [max(len(row[column]) for row in cut) for column in (0, 1)]
    return [f"{path:{widths[0]}}  {first:{widths[1]}}  {second}".rstrip() for path, first, second in cut]
