"""``envmatrix report``."""

from __future__ import annotations

import argparse

from envmatrix.commands import arguments as shared
from envmatrix.commands import bench, common
from envmatrix.commands.grammar import Parser


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    shared.add_run(parser)
    parser.add_argument(
        "--as", dest="form", choices=("csv", "trials-csv", "markdown", "pyperf"), help="print it in this form instead"
    )
    parser.add_argument("--environment", default="baseline", metavar="ENV", help="for pyperf: whose trials")
    shared.add_results(parser)
    shared.add_json(parser)
    parser.examples("envmatrix report", "envmatrix report reference-default --as csv")


def run(arguments: argparse.Namespace) -> int:
    """Write summary.json, report.md and report.html again and print the answer."""
    folder = common.find_run(arguments.results, arguments.run_name)
    if arguments.form:
        from envmatrix.report import summarise
        from envmatrix.report.exports import EXPORTS, pyperf_json

        summary = summarise(folder)
        pyperf = arguments.form == "pyperf"
        common.print_text(pyperf_json(summary, arguments.environment) if pyperf else EXPORTS[arguments.form](summary))
        return 0
    bench.show(folder, as_json=arguments.json)
    return 0
