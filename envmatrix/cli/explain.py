"""``envmatrix explain``."""

from __future__ import annotations

import argparse

from envmatrix.cli import arguments as shared
from envmatrix.cli import common
from envmatrix.cli.grammar import Parser, one_name


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    shared.add_run(parser)
    parser.add_argument(
        "environment", nargs="?", type=one_name, metavar="ENV", help="one environment (default: all that differ)"
    )
    shared.add_results(parser)
    shared.add_json(parser)
    parser.examples("envmatrix explain", "envmatrix explain reference-default tcmalloc")


def run(arguments: argparse.Namespace) -> int:
    """Print the parts of each difference, their causes, and what is unknown."""
    from envmatrix.api.answers import explain
    from envmatrix.report.explanation import notes_of, tree_of
    from envmatrix.stats.explanation import to_json

    found, silent = explain(arguments.run_name, arguments.environment, results=arguments.results)
    if arguments.json:
        common.print_json({"why": [to_json(one) for one in found], "not_explained": silent})
        return 0
    for note in notes_of(found)[1:]:
        common.print_text(note)
    for one in found:
        common.print_text("\n".join(f"{'  ' * depth}{text}" for depth, text in tree_of(one)))
    for name, reason in silent.items():
        common.print_text(f"{name}: {reason}")
    return 0
