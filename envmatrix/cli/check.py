"""The ``envmatrix check`` command."""

from __future__ import annotations

from envmatrix.cli import console_io, shared_options
from envmatrix.cli.argument_parser import Arguments, Parser
from envmatrix.errors import ExitCode, InputError


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    shared_options.add(parser, "--matrix", "--json")
    parser.examples("envmatrix check", "envmatrix check --matrix cluster/matrix.yaml --json")


def run(arguments: Arguments) -> int:
    """Load the matrix and resolve everything in it, as a run does."""
    from envmatrix.api.plans import check_matrix
    from envmatrix.matrix.known_variables import find_unread_variables
    from envmatrix.matrix.parse import MatrixError

    try:
        matrix = check_matrix(arguments.matrix)
    except InputError as error:
        if not arguments.json:
            raise
        mistakes = error.mistakes if isinstance(error, MatrixError) else [error]
        console_io.print_json({"ok": False, "mistakes": list(map(_mistake_json, mistakes))})
        return error.exit_code
    doubts = [doubt for _, doubt in find_unread_variables(matrix)]
    for doubt in doubts if not arguments.json else ():
        console_io.print_progress(f"warning: {doubt}")
    counts = {key: len(getattr(matrix, key)) for key in ("factors", "environments", "workloads", "designs")}
    listed = ", ".join(f"{number} {key if number != 1 else key[:-1]}" for key, number in counts.items())
    warnings = list(map(_mistake_json, doubts))
    document = {"ok": True, "matrix": matrix.path, "digest": matrix.digest, **counts, "warnings": warnings}
    console_io.print_answer(arguments, document, f"{matrix.path} is valid: {listed}")
    return ExitCode.FINE


def _mistake_json(error: InputError) -> dict[str, object]:
    location = error.where
    return {
        "message": error.message,
        "file": str(location.file) if location else None,
        "line": location.line if location else None,
        "column": location.column if location else None,
        "remedy": error.remedy,
    }
