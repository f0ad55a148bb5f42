"""``envmatrix export``."""

from __future__ import annotations

import argparse

from envmatrix.commands import arguments as shared
from envmatrix.commands import common
from envmatrix.commands.grammar import Parser
from envmatrix.launchers.catalog import script_forms

FORMS = ("sh", "dockerfile", "json")


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    shared.add_environment(parser)
    parser.add_argument("--as", dest="form", choices=(*FORMS, *script_forms()), default="sh", help="default: sh")
    shared.add_matrix(parser)
    shared.add_engine(parser)
    parser.examples("envmatrix export tcmalloc", "envmatrix export intel-omp --as slurm --engine apptainer")


def run(arguments: argparse.Namespace) -> int:
    """Print lines that a person can paste."""
    from envmatrix.plan.export import export_lines
    from envmatrix.trials.session import open_session

    session = open_session(common.load_matrix(arguments), arguments.environment, arguments.engine, common.say_to_stderr)
    if kind := script_forms().get(arguments.form):
        common.print_text(
            kind.training_script(session.environment, session.engine, session.prepared, session.preload, arguments.form)
        )
        return 0
    of_host = session.engine.shares_files
    common.print_text(export_lines(session.environment, session.preload, arguments.form, of_host=of_host))
    return 0
