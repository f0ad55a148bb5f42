"""The ``envmatrix definitions`` command."""

from __future__ import annotations

from envmatrix.cli import console_io, shared_options
from envmatrix.cli.argument_parser import Arguments, Parser, declare, nonempty_name


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    declare(parser, "names", "NAME", "a design, or environments (default: every environment)", nonempty_name, nargs="*")
    shared_options.add_output(parser, "DIR", "output folder (default: containers/ next to the matrix)")
    shared_options.add(parser, "--matrix")
    parser.examples("envmatrix definitions default", "envmatrix definitions xla horovod --output build/containers")


def run(arguments: Arguments) -> None:
    """Write the Dockerfile and the Apptainer definition of each environment."""
    from envmatrix.api.locks_and_images import write_definitions

    for file in console_io.call(write_definitions, arguments):
        console_io.print_text(str(file))
