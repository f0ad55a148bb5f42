"""``envmatrix report``."""

from __future__ import annotations

import argparse

from envmatrix.commands import answer, common
from envmatrix.commands import arguments as shared
from envmatrix.commands.grammar import Parser
from envmatrix.report.catalog import REPORTS


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    shared.add_run(parser)
    parser.add_argument(
        "--as", dest="form", metavar="FORM", help=f"print it in this form instead: {', '.join(REPORTS.names())}"
    )
    parser.add_argument("--environment", default="baseline", metavar="ENV", help="for pyperf: whose trials")
    shared.add_results(parser)
    shared.add_json(parser)
    parser.examples("envmatrix report", "envmatrix report reference-default --as csv")


def run(arguments: argparse.Namespace) -> int:
    """Write summary.json, report.md and report.html again and print the answer."""
    from envmatrix.api import answers

    if arguments.form:
        common.print_text(
            answers.report_as(arguments.form, arguments.run_name, arguments.environment, arguments.results)
        )
        return 0
    result = answers.write_report(arguments.run_name, arguments.results, common.say_to_stderr)
    answer.show(result, as_json=arguments.json)
    return 0
