"""The ``envmatrix figure`` command."""

from __future__ import annotations

from envmatrix.cli import console_io, shared_options
from envmatrix.cli.argument_parser import Arguments, Parser, declare, whole_number
from envmatrix.report.catalog import FIGURES


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    text = "forest: speed-ups with intervals; start: the first seconds; time: every trial over time"
    declare(parser, "kind", "FIGURE", text, choices=tuple(FIGURES))
    shared_options.add(parser, "run")
    shared_options.add_output(parser, "FILE", "output file; PDF if it ends in .pdf (default: SVG, to standard output)")
    declare(parser, "--group", "N", "number of the workload@engine, counted from 0", whole_number(0), default=0)
    shared_options.add(parser, "--results")
    parser.examples("envmatrix figure forest", "envmatrix figure time reference-default --output time.pdf")


def run(arguments: Arguments) -> None:
    """Draw one figure of a run."""
    from envmatrix.api.run_results import figure

    as_pdf = arguments.output is not None and arguments.output.suffix.lower() == ".pdf"
    drawing = console_io.call(figure, arguments, form="pdf" if as_pdf else "svg")
    console_io.write_or_print(drawing, arguments.output)
