"""The ``envmatrix exec`` command."""

from __future__ import annotations

import sys

from envmatrix.cli import console_io, shared_options
from envmatrix.cli.argument_parser import Arguments, Parser, declare
from envmatrix.cli.unused_stdin import check_unused_input
from envmatrix.durations_and_sizes import parse_duration
from envmatrix.errors import InputError
from envmatrix.launchers.catalog import DEFAULT

#: Same as timeout(1).
_TIMEOUT_EXIT_CODE = 124


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    shared_options.add_chosen(parser)
    shared_options.add_image_and_launcher(parser)
    text = "stop it after this time, such as 10m (default: 24h)"
    declare(parser, "--limit", "TIME", text, parse_duration, default=86400.0)
    parser.accept_command(
        "the command to run; it gets this terminal's input and output (in Docker and Podman: no input; with "
        "--launcher: its output is printed when it ends)"
    )
    parser.examples(
        "envmatrix exec tcmalloc --engine docker --image team/train:1 --limit 10m -- python train.py",
        "envmatrix exec tcmalloc --launcher slurm --limit 1h -- python train.py",
    )


def run(arguments: Arguments) -> int:
    """Run the command in the environment and return its exit status."""
    command = tuple(arguments.command)
    if not command:
        raise InputError("no command", remedy=f"envmatrix exec {arguments.environment} -- python train.py")
    with check_unused_input(command if arguments.launcher != DEFAULT else ()):
        ended = shared_options.run_elsewhere(arguments, arguments.limit, in_own_folder=True)
    if ended:
        sys.stdout.write(ended.output)
        if ended.trial.outcome == "timed_out":
            console_io.print_progress(f"envmatrix: {ended.trial.reason}")
            return _TIMEOUT_EXIT_CODE
        if ended.exit_code is None:
            raise ended.error()
        return ended.exit_code
    session = shared_options.open_chosen_environment(arguments)
    with check_unused_input(() if session.engine.passes_input else command):
        exit_status = session.execute(command, arguments.limit)
    if exit_status.timed_out:
        console_io.print_progress(f"envmatrix: {exit_status}")
        return _TIMEOUT_EXIT_CODE
    return exit_status.code if exit_status.code >= 0 else 128 - exit_status.code
