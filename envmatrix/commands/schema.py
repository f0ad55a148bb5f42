"""``envmatrix schema``."""

from __future__ import annotations

import argparse

from envmatrix.commands import common
from envmatrix.commands.grammar import Parser


def add_arguments(parser: Parser) -> None:
    """Declare the arguments: there are none."""
    parser.examples("envmatrix schema")


def run(arguments: argparse.Namespace) -> int:
    """Print the schema."""
    from envmatrix.matrix.schema import json_schema

    del arguments
    common.print_json(json_schema())
    return 0
