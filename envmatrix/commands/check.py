"""``envmatrix check``."""

from __future__ import annotations

import argparse

from envmatrix.commands import arguments as shared
from envmatrix.commands import common
from envmatrix.commands.grammar import Parser


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    shared.add_matrix(parser)
    shared.add_json(parser)
    parser.examples("envmatrix check", "envmatrix check --matrix cluster/matrix.yaml --json")


def run(arguments: argparse.Namespace) -> int:
    """Load the matrix and resolve everything in it, as a run would."""
    from envmatrix.api.places import load_matrix
    from envmatrix.engines.catalog import check_engine
    from envmatrix.host import this_host
    from envmatrix.matrix.parse import MatrixError
    from envmatrix.plan.environment import resolve
    from envmatrix.trials.experiment import confined, design_environments

    try:
        matrix = load_matrix(arguments.matrix)
    except MatrixError as error:
        if arguments.json:
            common.print_json({"ok": False, "mistakes": [_mistake(one) for one in error.mistakes]})
            return error.exit_code
        raise
    host = this_host()
    for name in matrix.environments:
        resolve(matrix, name, host.facts())
    for design in matrix.designs.values():
        for name in design.engines:
            check_engine(name, f"design {design.name!r}")
        design_environments(matrix, design, host.facts(confined(design, host)))
    counts = {key: len(getattr(matrix, key)) for key in ("factors", "environments", "workloads", "designs")}
    if arguments.json:
        common.print_json({"ok": True, "matrix": matrix.path, "digest": matrix.digest, **counts})
    else:
        listed = ", ".join(f"{number} {key}" for key, number in counts.items())
        common.print_text(f"{matrix.path} is right: {listed}")
    return 0


def _mistake(error: object) -> dict[str, object]:
    where = getattr(error, "where", None)
    return {
        "message": getattr(error, "message", str(error)),
        "file": str(where.file) if where else None,
        "line": where.line if where else None,
        "column": where.column if where else None,
        "remedy": getattr(error, "remedy", ""),
    }
