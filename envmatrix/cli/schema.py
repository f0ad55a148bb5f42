"""The ``envmatrix schema`` command."""

from __future__ import annotations

import json

from envmatrix.cli import console_io, shared_options
from envmatrix.cli.argument_parser import Arguments, Parser, declare


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    text = "matrix: matrix.yaml (the default); run: run.json and the lines of history.jsonl and trials.jsonl"
    declare(parser, "--document", "NAME", text, choices=("matrix", "run"), default="matrix")
    shared_options.add_output(parser, "FILE", "output file (default: standard output)")
    parser.examples("envmatrix schema", "envmatrix schema --document run --output run.schema.json")


def run(arguments: Arguments) -> None:
    """Print the schema."""
    from envmatrix.matrix.schema import json_schema as schema_of_matrix
    from envmatrix.results.schema import json_schema as schema_of_run

    document = schema_of_run() if arguments.document == "run" else schema_of_matrix()
    console_io.write_or_print(json.dumps(document, indent=2), arguments.output)
