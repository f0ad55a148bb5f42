"""The ``envmatrix resume`` command."""

from __future__ import annotations

import argparse

from envmatrix.cli import answer, common, launching, searching
from envmatrix.cli import arguments as shared
from envmatrix.cli.grammar import Parser, whole_number
from envmatrix.errors import InputError


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    shared.add_run(parser)
    shared.add_budget(parser, "a new budget for the whole run, such as 90s, 10m or 2h")
    shared.add_target(parser, "a new target for the whole run, such as 1%%")
    parser.add_argument(
        "--max-blocks", type=whole_number(1), metavar="N", help="stop after this many blocks: more than before"
    )
    shared.add_matrix(parser)
    shared.add_results(parser)
    launching.add_launcher_options(parser)
    shared.add_display_options(parser)
    parser.examples("envmatrix resume", "envmatrix resume reference-default --budget 20m")
    parser.exit_codes(
        "those of bench: 0 fine, 3 some trials failed or are missing, 4 none was successful, 7 other work,",
        "130 interrupted. If several apply: 130, 4, 7, 3.",
    )


def run(arguments: argparse.Namespace) -> int:
    """Continue a run from its last trial; no trial is lost, repeated or reordered."""
    from envmatrix.api import runs
    from envmatrix.api.tuning import search

    if study := search.find_study(arguments.run_name, arguments.results):
        if arguments.target is not None:
            raise InputError("--target: a search has no target", remedy="for more time, use --budget")
        if arguments.max_blocks is not None:
            raise InputError("--max-blocks: a search has no number of blocks", remedy="for more time, use --budget")
        if launching.read_launcher_options(arguments):
            raise InputError(
                "a search continues where it was started", remedy="to use other nodes, start another search"
            )
        tuning = search.resume_study(study, arguments.budget, common.print_progress, arguments.matrix)
        return searching.run_and_show_search(tuning, arguments)
    experiment = runs.reopen_run(
        arguments.run_name,
        shared.read_new_run(arguments, launching.read_launcher_options(arguments)),
        arguments.matrix,
        budget=arguments.budget,
        target=arguments.target,
        max_blocks=arguments.max_blocks,
    )
    return answer.run_and_show(experiment, arguments)
