"""The ``envmatrix lock`` command."""

from __future__ import annotations

from envmatrix.cli import console_io, shared_options
from envmatrix.cli.argument_parser import Arguments, Parser, declare, nonempty_name
from envmatrix.system.architectures import PACKAGE_NAMES


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    declare(parser, "environments", "ENV", "environments to lock (default: all)", nonempty_name, nargs="*")
    shared_options.add(parser, "--matrix")
    declare(parser, "--engine", "NAME", "pin the system packages of this engine's images instead", nonempty_name)
    parser.add_argument(
        "--architecture",
        choices=tuple(PACKAGE_NAMES),
        help="lock for this architecture too (default: this machine's, and those that have locks)",
    )
    parser.examples(
        "envmatrix lock tcmalloc jemalloc --engine docker",
        "envmatrix lock --architecture aarch64",
    )


def run(arguments: Arguments) -> None:
    """Resolve images and libraries with the host's pip and apt, and write containers/locks/."""
    from envmatrix.api.locks_and_images import lock

    for path in console_io.call(lock, arguments):
        console_io.print_text(str(path))
