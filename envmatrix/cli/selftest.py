"""The ``envmatrix selftest`` command."""

from __future__ import annotations

import argparse

from envmatrix.cli import arguments as shared
from envmatrix.cli import common
from envmatrix.cli.grammar import Parser, one_name, whole_number
from envmatrix.errors import ExitCode


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    parser.add_argument("run_name", nargs="?", type=one_name, metavar="RUN", help="also relabel the trials of this run")
    parser.declare_renamed("--run", "the run as a separate word: RUN")
    parser.add_argument(
        "--aa", type=whole_number(1), default=1000, metavar="N", help="simulated A/A comparisons (default: 1000)"
    )
    shared.add_results(parser)
    shared.add_json(parser)
    parser.examples("envmatrix selftest", "envmatrix selftest reference-default --aa 5000")


def run(arguments: argparse.Namespace) -> int:
    """Print the false-alarm rate; fail if it is above the promised one."""
    from envmatrix.api.places import find_run
    from envmatrix.stats.selftest import selftest

    outcome = selftest(arguments.aa, find_run(arguments.run_name, arguments.results) if arguments.run_name else None)
    if arguments.json:
        common.print_json(outcome.to_json())
    else:
        common.print_text("\n".join(outcome.lines()))
    return ExitCode.FINE if outcome.passed else ExitCode.SOME_FAILED
