"""The ``envmatrix init`` command."""

from __future__ import annotations

from pathlib import Path

from envmatrix.cli import console_io, shared_options
from envmatrix.cli.argument_parser import Arguments, Parser, declare
from envmatrix.cli.unused_stdin import check_unused_input


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    shared_options.add_output(parser, "FILE", "default: ./matrix.yaml", Path("matrix.yaml"))
    declare(parser, "--interpreter", "PYTHON", "default: the Python that your program uses here")
    text = "install these requirements on top of that Python, in a venv (requirements.txt, pyproject.toml)"
    declare(parser, "-r --requirements", "FILE", text, Path, action="append")
    parser.accept_command("the command that starts your program (default: python train.py)")
    parser.examples("envmatrix init -- python train.py --epochs 1", "envmatrix init --interpreter .venv/bin/python")


def run(arguments: Arguments) -> None:
    """Write a new matrix.yaml; never overwrite an existing file."""
    from envmatrix.api.user_program import matrix_for_program
    from envmatrix.api.user_program.program_options import ProgramRequest

    words = tuple(arguments.command or ("python", "train.py"))
    request = ProgramRequest(words, requirements=tuple(arguments.requirements or ()))
    with check_unused_input(request.words):
        text = matrix_for_program.draft_matrix(
            request, arguments.interpreter, arguments.output, console_io.print_progress
        )
    matrix_for_program.write_new_file(arguments.output, text)
    console_io.print_text(f"wrote {arguments.output}: check it, then run `envmatrix bench`")
