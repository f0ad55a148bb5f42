"""The ``envmatrix history`` command."""

from __future__ import annotations

import os

from envmatrix.cli import console_io, shared_options
from envmatrix.cli.argument_parser import Arguments, Parser


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    shared_options.add(parser, "--results", "--json")
    shared_options.add_output(parser, "FILE", "write an HTML page instead")
    parser.examples("envmatrix history", "envmatrix history --results /shared/results --output history.html")


def run(arguments: Arguments) -> None:
    """Read every run's summary and show each series with its change points."""
    from envmatrix.api.run_results import history
    from envmatrix.report.formats.history_page import to_html
    from envmatrix.report.tables.history import print_history

    run_history = history(arguments.results)
    if arguments.output:
        results = os.path.relpath(arguments.results, arguments.output.parent)
        console_io.write_or_print(to_html(run_history, results), arguments.output)
        console_io.print_text(str(arguments.output))
    elif arguments.json:
        console_io.print_json(run_history.to_json())
    else:
        print_history(run_history, console_io.stdout_console())
