"""The ``envmatrix init`` command."""

from __future__ import annotations

import argparse
from pathlib import Path

from envmatrix.cli import arguments as shared
from envmatrix.cli import common
from envmatrix.cli.grammar import Parser
from envmatrix.cli.standard_input import check_unused_input


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    shared.add_output(parser, "FILE", "default: ./matrix.yaml", Path("matrix.yaml"))
    parser.add_argument("--interpreter", metavar="PYTHON", help="default: the Python that your program uses here")
    parser.add_argument(
        "-r",
        "--requirements",
        type=Path,
        action="append",
        metavar="FILE",
        help="install these requirements on top of that Python, in a venv (requirements.txt, pyproject.toml)",
    )
    parser.accept_command("the command that starts your program (default: python train.py)")
    parser.examples("envmatrix init -- python train.py --epochs 1", "envmatrix init --interpreter .venv/bin/python")


def run(arguments: argparse.Namespace) -> int:
    """Write a new matrix.yaml; never overwrite an existing file."""
    from envmatrix.api.program import bench
    from envmatrix.api.program.request import ProgramRequest

    words = tuple(arguments.command or ("python", "train.py"))
    request = ProgramRequest(words, requirements=tuple(arguments.requirements or ()))
    with check_unused_input(request.words):
        text = bench.draft_matrix(request, arguments.interpreter, arguments.output, common.print_progress)
    bench.write_new_file(arguments.output, text)
    common.print_text(f"wrote {arguments.output}: check it, then run `envmatrix bench`")
    return 0
