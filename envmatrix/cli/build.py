"""The ``envmatrix build`` command."""

from __future__ import annotations

import argparse

from envmatrix.cli import arguments as shared
from envmatrix.cli import common
from envmatrix.cli.grammar import Parser, one_name
from envmatrix.errors import ExitCode


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "names",
        nargs="*",
        type=one_name,
        metavar="NAME",
        help="a design, or environments; design:NAME if an environment has the same name (default: default)",
    )
    parser.declare_renamed("--design", "the design as a separate word: `envmatrix build DESIGN`")
    shared.add_matrix(parser)
    shared.add_engine(parser)
    parser.examples("envmatrix build quick", "envmatrix build tcmalloc intel-omp --engine apptainer")


def run(arguments: argparse.Namespace) -> int:
    """Build the missing images and print the references of all."""
    from envmatrix.api.images import build

    built = build(arguments.names, engine=arguments.engine, matrix=arguments.matrix, progress=common.print_progress)
    for line in built.starts:
        common.print_text(line)
    for image, reference in built.ready.items():
        common.print_text(f"{image}@{built.engine}: {reference}")
    for environment, reason in built.missing.items():
        common.print_progress(f"not built: {environment}@{built.engine}: {reason}")
    if not (built.ready or built.starts):
        return ExitCode.NOTHING_RAN
    return ExitCode.SOME_FAILED if built.missing else ExitCode.FINE
