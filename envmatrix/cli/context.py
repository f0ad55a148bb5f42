"""The ``envmatrix context`` command."""

from __future__ import annotations

from pathlib import Path

from envmatrix.cli import console_io, shared_options
from envmatrix.cli.argument_parser import Arguments, Parser


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    shared_options.add(parser, "environment")
    shared_options.add_output(parser, "DIR", "a new or empty folder (default: build/context)", Path("build/context"))
    parser.declare_remedies({"DIR": "write --output DIR"})
    shared_options.add(parser, "--matrix")
    parser.examples("envmatrix context intel-omp --output build/context")


def run(arguments: Arguments) -> None:
    """Download and verify all parts of an environment's image, for a manual build without network."""
    from envmatrix.api.locks_and_images import write_build_context

    context = console_io.call(write_build_context, arguments, folder=arguments.output)
    console_io.print_text(
        f"{context.folder}: the build context; {context.archive}: a base image for machines without a "
        f"registry ({context.base}); {context.arguments}: build arguments for it"
    )
