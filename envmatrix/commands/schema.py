"""``envmatrix schema``."""

from __future__ import annotations

import argparse

from envmatrix.commands import common
from envmatrix.commands.grammar import Parser


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--document", choices=("matrix", "run"), default="matrix", metavar="NAME",
        help="matrix: matrix.yaml (the default); run: run.json and the lines of history.jsonl and trials.jsonl",
    )  # fmt: skip
    parser.examples("envmatrix schema", "envmatrix schema --document run")


def run(arguments: argparse.Namespace) -> int:
    """Print the schema."""
    from envmatrix.matrix.schema import json_schema as schema_of_matrix
    from envmatrix.store.schema import json_schema as schema_of_run

    common.print_json(schema_of_run() if arguments.document == "run" else schema_of_matrix())
    return 0
