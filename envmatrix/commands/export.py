"""``envmatrix export``."""

from __future__ import annotations

import argparse

from envmatrix.commands import common

FORMS = ("sh", "dockerfile", "json", "slurm", "pyxis")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("environment", metavar="ENV", help="a named environment")
    parser.add_argument("--as", dest="form", choices=FORMS, default="sh", help="default: sh")
    common.add_matrix(parser)
    common.add_engine(parser, "local")


def run(arguments: argparse.Namespace) -> int:
    """Print lines that a person can paste."""
    from envmatrix.plan.export import export_lines
    from envmatrix.trials.session import open_session

    session = open_session(common.load_matrix(arguments), arguments.environment, arguments.engine, common.say_to_stderr)
    if arguments.form in ("slurm", "pyxis"):
        from envmatrix.engines.apptainer import lacks_privilege
        from envmatrix.launchers.slurm.export import training_script

        text = training_script(
            session.environment, session.prepared, session.preload, arguments.form, userns=lacks_privilege()
        )
        common.print_text(text)
        return 0
    of_host = session.prepared.engine == "local"
    common.print_text(export_lines(session.environment, session.preload, arguments.form, of_host=of_host))
    return 0
