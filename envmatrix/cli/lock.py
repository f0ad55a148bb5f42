"""The ``envmatrix lock`` command."""

from __future__ import annotations

import argparse

from envmatrix.cli import arguments as shared
from envmatrix.cli import common
from envmatrix.cli.grammar import Parser, one_name
from envmatrix.system.architectures import PACKAGE_NAMES


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "environments", nargs="*", type=one_name, metavar="ENV", help="environments to lock (default: all)"
    )
    shared.add_matrix(parser)
    parser.add_argument(
        "--engine", type=one_name, metavar="NAME", help="pin the system packages of this engine's images instead"
    )
    parser.add_argument(
        "--architecture",
        choices=tuple(PACKAGE_NAMES),
        help="lock for this architecture too (default: this machine's, and those that have locks)",
    )
    parser.examples(
        "envmatrix lock tcmalloc jemalloc --engine docker",
        "envmatrix lock --architecture aarch64",
    )


def run(arguments: argparse.Namespace) -> int:
    """Resolve images and libraries with the host's pip and apt, and write containers/locks/."""
    from envmatrix.api.images import lock

    written_files = lock(
        arguments.environments,
        engine=arguments.engine,
        architecture=arguments.architecture,
        matrix=arguments.matrix,
        progress=common.print_progress,
    )
    for path in written_files:
        common.print_text(str(path))
    return 0
