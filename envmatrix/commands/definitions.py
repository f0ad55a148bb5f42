"""``envmatrix definitions``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from envmatrix.commands import arguments as shared
from envmatrix.commands import common
from envmatrix.commands.grammar import Parser, one_name

if TYPE_CHECKING:
    from envmatrix.matrix import Matrix


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "names", nargs="*", type=one_name, metavar="NAME", help="a design, or environments (default: every environment)"
    )
    shared.add_output(parser, "DIR", "where to (default: containers/ beside the matrix)")
    shared.add_matrix(parser)
    parser.examples("envmatrix definitions default", "envmatrix definitions xla horovod --output build/containers")


def run(arguments: argparse.Namespace) -> int:
    """Write the Dockerfile and the Apptainer definition of each environment."""
    from envmatrix.api.places import load_matrix
    from envmatrix.images.generated import definition_files
    from envmatrix.store import write_whole

    matrix = load_matrix(arguments.matrix)
    folder = arguments.output or Path(matrix.path).resolve().parent / "containers"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in definition_files(matrix, _environments(matrix, arguments.names)).items():
        write_whole(folder / name, text)
        common.print_text(str(folder / name))
    return 0


def _environments(matrix: Matrix, names: list[str]) -> list[str]:
    from envmatrix.trials.experiment import design_environments

    if len(names) == 1 and names[0] in matrix.designs and names[0] not in matrix.environments:
        return list(design_environments(matrix, matrix.designs[names[0]], {}))
    return names or list(matrix.environments)
