"""``envmatrix export``."""

from __future__ import annotations

import argparse

from envmatrix.api import FORMS
from envmatrix.commands import arguments as shared
from envmatrix.commands import common
from envmatrix.commands.grammar import Parser
from envmatrix.launchers.catalog import script_forms


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    shared.add_environment(parser)
    parser.add_argument("--as", dest="form", choices=(*FORMS, *script_forms()), default="sh", help="default: sh")
    shared.add_matrix(parser)
    shared.add_engine(parser)
    parser.examples("envmatrix export tcmalloc", "envmatrix export intel-omp --as slurm --engine apptainer")


def run(arguments: argparse.Namespace) -> int:
    """Print lines that a person can paste."""
    from envmatrix.api.environments import export

    text = export(
        arguments.environment,
        form=arguments.form,
        engine=arguments.engine,
        matrix=arguments.matrix,
        say=common.say_to_stderr,
    )
    common.print_text(text)
    return 0
