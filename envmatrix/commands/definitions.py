"""``envmatrix definitions``."""

from __future__ import annotations

import argparse
from pathlib import Path

from envmatrix.commands import common


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--output", type=Path, metavar="DIR", help="where to (default: containers/ beside the matrix)")
    common.add_matrix(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write the Dockerfile and the Apptainer definition of every named environment."""
    from envmatrix.images.generated import definition_files
    from envmatrix.store import write_whole

    matrix = common.load_matrix(arguments)
    folder = arguments.output or Path(matrix.path).resolve().parent / "containers"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in definition_files(matrix).items():
        write_whole(folder / name, text)
        common.print_text(str(folder / name))
    return 0
