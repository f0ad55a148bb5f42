"""``envmatrix selftest``."""

from __future__ import annotations

import argparse

from envmatrix.commands import common
from envmatrix.errors import ExitCode, InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--aa", type=int, default=1000, metavar="N", help="simulated A/A comparisons (default: 1000)")
    parser.add_argument("--run", dest="run_name", metavar="RUN", help="also re-label the trials of this run")
    common.add_results(parser)
    common.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the false-alarm rate; it is a failure when it is above what is promised."""
    from envmatrix.stats.selftest_report import selftest

    if arguments.aa < 1:
        raise InputError("--aa: at least one comparison is needed")
    folder = common.find_run(arguments.results, arguments.run_name) if arguments.run_name else None
    found = selftest(arguments.aa, folder)
    if arguments.json:
        common.print_json(found.to_json())
    else:
        common.print_text("\n".join(found.lines()))
    return ExitCode.FINE if found.passed else ExitCode.SOME_FAILED
