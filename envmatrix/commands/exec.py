"""``envmatrix exec``."""

from __future__ import annotations

import argparse

from envmatrix.commands import common
from envmatrix.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("environment", metavar="ENV", help="a named environment")
    common.add_matrix(parser)
    common.add_engine(parser, "local")
    parser.add_argument("--limit", type=float, default=86400.0, metavar="SECONDS", help="end it after this time")
    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="-- COMMAND",
        help="what to run; it has this command's input and output, in Docker (and Podman) no input",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the command there; its exit status is ours."""
    from envmatrix.trials.session import open_session

    command = tuple(arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command)
    if not command:
        raise InputError("no command", remedy=f"envmatrix exec {arguments.environment} -- python train.py")
    session = open_session(common.load_matrix(arguments), arguments.environment, arguments.engine, common.say_to_stderr)
    return session.execute(command, arguments.limit)
