"""The ``envmatrix selftest`` command."""

from __future__ import annotations

from envmatrix.cli import console_io, shared_options
from envmatrix.cli.argument_parser import Arguments, Parser, declare, nonempty_name, whole_number
from envmatrix.errors import ExitCode


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    declare(parser, "run", "RUN", "also relabel the trials of this run", nonempty_name, nargs="?")
    parser.declare_remedies({"--run": "write the run as a separate word: RUN"})
    declare(parser, "--aa", "N", "simulated A/A comparisons (default: 1000)", whole_number(1), default=1000)
    shared_options.add(parser, "--results", "--json")
    parser.examples("envmatrix selftest", "envmatrix selftest reference-default --aa 5000")


def run(arguments: Arguments) -> int:
    """Print the false-alarm rate; fail if it is above the promised one."""
    from envmatrix.api.matrix_and_run_lookup import find_run
    from envmatrix.stats.selftest import selftest

    outcome = selftest(arguments.aa, find_run(arguments.run, arguments.results) if arguments.run else None)
    console_io.print_answer(arguments, outcome.to_json(), "\n".join(outcome.lines()))
    return ExitCode.FINE if outcome.passed else ExitCode.SOME_FAILED
