"""The ``envmatrix figure`` command."""

from __future__ import annotations

import argparse

from envmatrix.cli import arguments as shared
from envmatrix.cli import common
from envmatrix.cli.grammar import Parser, whole_number
from envmatrix.report.catalog import FIGURES


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "kind",
        choices=tuple(FIGURES),
        metavar="FIGURE",
        help="forest: speed-ups with intervals; start: the first seconds; time: every trial over time",
    )
    shared.add_run(parser)
    shared.add_output(parser, "FILE", "output file; PDF if it ends in .pdf (default: SVG, to standard output)")
    parser.add_argument(
        "--group", type=whole_number(0), default=0, metavar="N", help="number of the workload@engine, counted from 0"
    )
    shared.add_results(parser)
    parser.examples("envmatrix figure forest", "envmatrix figure time reference-default --output time.pdf")


def run(arguments: argparse.Namespace) -> int:
    """Draw one figure of a run."""
    from envmatrix.api.answers import figure

    as_pdf = arguments.output is not None and arguments.output.suffix.lower() == ".pdf"
    figure_text = figure(
        arguments.kind,
        arguments.run_name,
        group=arguments.group,
        results=arguments.results,
        form="pdf" if as_pdf else "svg",
    )
    common.write_or_print(figure_text, arguments.output)
    return 0
