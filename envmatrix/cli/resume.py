"""The ``envmatrix resume`` command."""

from __future__ import annotations

from envmatrix.cli import console_io, progress_and_result, shared_options
from envmatrix.cli.argument_parser import Arguments, Parser, declare, whole_number
from envmatrix.durations_and_sizes import parse_duration, percent_as_fraction
from envmatrix.errors import InputError


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    shared_options.add(parser, "run")
    declare(parser, "--budget", "TIME", "a new budget for the whole run, such as 90s, 10m or 2h", parse_duration)
    declare(parser, "--target", "PERCENT", "a new target for the whole run, such as 1%%", percent_as_fraction)
    declare(parser, "--max-blocks", "N", "stop after this many blocks: more than before", whole_number(1))
    shared_options.add(parser, "--matrix", "--results")
    shared_options.add_launcher_options(parser)
    shared_options.add(parser, "--json", "--quiet")
    parser.examples("envmatrix resume", "envmatrix resume reference-default --budget 20m")
    parser.exit_codes(
        "those of bench: 0 fine, 3 some trials failed or are missing, 4 none was successful, 7 other work,",
        "130 interrupted. If several apply: 130, 4, 7, 3.",
    )


def run(arguments: Arguments) -> int:
    """Continue a run from its last trial; no trial is lost, repeated or reordered."""
    from envmatrix.api import runs
    from envmatrix.api.tuning import search

    if study := search.find_study(arguments.run, arguments.results):
        if arguments.target is not None:
            raise InputError("--target: a search has no target", remedy="for more time, use --budget")
        if arguments.max_blocks is not None:
            raise InputError("--max-blocks: a search has no number of blocks", remedy="for more time, use --budget")
        if console_io.read_launcher_options(arguments):
            raise InputError(
                "a search continues where it was started", remedy="to use other nodes, start another search"
            )
        tuning = search.resume_study(study, arguments.budget, console_io.print_progress, arguments.matrix)
        return progress_and_result.run_and_show_search(tuning, arguments)
    limits = {name: getattr(arguments, name) for name in ("budget", "target", "max_blocks")}
    again = shared_options.read_new_run(arguments)
    experiment = runs.reopen_run(arguments.run, again, arguments.matrix, **limits)
    return progress_and_result.run_and_show(experiment, arguments)
