"""The ``envmatrix context`` command."""

from __future__ import annotations

import argparse
from pathlib import Path

from envmatrix.cli import arguments as shared
from envmatrix.cli import common
from envmatrix.cli.grammar import Parser


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    shared.add_environment(parser)
    shared.add_output(parser, "DIR", "a new or empty folder (default: build/context)", Path("build/context"))
    parser.declare_renamed("DIR", "--output DIR")
    shared.add_matrix(parser)
    parser.examples("envmatrix context intel-omp --output build/context")


def run(arguments: argparse.Namespace) -> int:
    """Download and verify all parts of an environment's image, for a manual build without network."""
    from envmatrix.api.images import write_build_context

    context = write_build_context(
        arguments.environment, arguments.output, matrix=arguments.matrix, progress=common.print_progress
    )
    common.print_text(
        f"{context.folder}: the build context; {context.archive}: a base image for machines without a "
        f"registry ({context.base}); {context.arguments}: build arguments for it"
    )
    return 0
