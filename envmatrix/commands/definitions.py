"""``envmatrix definitions``."""

from __future__ import annotations

import argparse
from pathlib import Path

from envmatrix.commands import arguments as shared
from envmatrix.commands import common
from envmatrix.commands.grammar import Parser


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    shared.add_output(parser, "DIR", "where to (default: containers/ beside the matrix)")
    shared.add_matrix(parser)
    parser.examples("envmatrix definitions", "envmatrix definitions --output build/containers")


def run(arguments: argparse.Namespace) -> int:
    """Write the Dockerfile and the Apptainer definition of every named environment."""
    from envmatrix.api.places import load_matrix
    from envmatrix.images.generated import definition_files
    from envmatrix.store import write_whole

    matrix = load_matrix(arguments.matrix)
    folder = arguments.output or Path(matrix.path).resolve().parent / "containers"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in definition_files(matrix).items():
        write_whole(folder / name, text)
        common.print_text(str(folder / name))
    return 0
