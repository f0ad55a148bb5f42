"""The ``envmatrix definitions`` command."""

from __future__ import annotations

import argparse

from envmatrix.cli import arguments as shared
from envmatrix.cli import common
from envmatrix.cli.grammar import Parser, one_name


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "names", nargs="*", type=one_name, metavar="NAME", help="a design, or environments (default: every environment)"
    )
    shared.add_output(parser, "DIR", "output folder (default: containers/ next to the matrix)")
    shared.add_matrix(parser)
    parser.examples("envmatrix definitions default", "envmatrix definitions xla horovod --output build/containers")


def run(arguments: argparse.Namespace) -> int:
    """Write the Dockerfile and the Apptainer definition of each environment."""
    from envmatrix.api.images import write_definitions

    for file in write_definitions(
        arguments.names, output=arguments.output, matrix=arguments.matrix, progress=common.print_progress
    ):
        common.print_text(str(file))
    return 0
