"""``envmatrix compare``."""

from __future__ import annotations

import argparse

from envmatrix.commands import arguments as shared
from envmatrix.commands import common
from envmatrix.commands.grammar import Parser, one_name, tolerance
from envmatrix.errors import ExitCode


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    parser.add_argument("old", type=one_name, metavar="RUN", help="the run, or the older one of two")
    parser.add_argument("new", nargs="?", type=one_name, metavar="NEWER", help="the newer run")
    parser.add_list("--environments", "ENV", "OLD,NEW within one run; of two runs: only these")
    parser.add_argument(
        "--fail-slower",
        type=tolerance,
        metavar="PERCENT",
        help="exit code 5 when the interval says slower by more than this (0: at all)",
    )
    parser.add_argument("--anyway", action="store_true", help="compare what is not comparable, and say so")
    shared.add_results(parser)
    shared.add_json(parser)
    parser.examples(
        "envmatrix compare reference-default --environments baseline,tcmalloc",
        "envmatrix compare before after --fail-slower 3%",
    )


def run(arguments: argparse.Namespace) -> int:
    """Compare two environments of one run, or two runs."""
    from envmatrix.api.answers import compare
    from envmatrix.printable import one_line

    found = compare(
        arguments.old,
        arguments.new,
        environments=arguments.environments,
        allowed=arguments.fail_slower or 0.0,
        anyway=arguments.anyway,
        results=arguments.results,
    )
    if arguments.json:
        common.print_json(found.to_json())
    else:
        common.print_text("\n".join(one_line(line, 1000) for line in found.lines()))
    return found.exit_code if arguments.fail_slower is not None else ExitCode.FINE
