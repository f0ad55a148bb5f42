"""``envmatrix check``."""

from __future__ import annotations

import argparse

from envmatrix.cli import arguments as shared
from envmatrix.cli import common
from envmatrix.cli.grammar import Parser
from envmatrix.errors import InputError


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    shared.add_matrix(parser)
    shared.add_json(parser)
    parser.examples("envmatrix check", "envmatrix check --matrix cluster/matrix.yaml --json")


def run(arguments: argparse.Namespace) -> int:
    """Load the matrix and resolve everything in it, as a run would."""
    from envmatrix.api.plans import check_matrix
    from envmatrix.matrix.parse import MatrixError
    from envmatrix.matrix.variables import doubts

    try:
        matrix = check_matrix(arguments.matrix)
    except InputError as error:
        if arguments.json:
            mistakes = error.mistakes if isinstance(error, MatrixError) else [error]
            common.print_json({"ok": False, "mistakes": [_mistake(one) for one in mistakes]})
            return error.exit_code
        raise
    doubted = list(doubts(matrix))
    for doubt in doubted if not arguments.json else ():
        common.say_to_stderr(f"warning: {doubt}")
    counts = {key: len(getattr(matrix, key)) for key in ("factors", "environments", "workloads", "designs")}
    if arguments.json:
        warnings = [_mistake(doubt.as_mistake) for doubt in doubted]
        common.print_json({"ok": True, "matrix": matrix.path, "digest": matrix.digest, **counts, "warnings": warnings})
    else:
        listed = ", ".join(f"{number} {key if number != 1 else key[:-1]}" for key, number in counts.items())
        common.print_text(f"{matrix.path} is right: {listed}")
    return 0


def _mistake(error: InputError) -> dict[str, object]:
    where = error.where
    return {
        "message": error.message,
        "file": str(where.file) if where else None,
        "line": where.line if where else None,
        "column": where.column if where else None,
        "remedy": error.remedy,
    }
