"""``envmatrix explain``."""

from __future__ import annotations

import argparse

from envmatrix.cli import answer, common
from envmatrix.cli import arguments as shared
from envmatrix.cli.grammar import Parser, one_name, whole_number
from envmatrix.errors import InputError


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    shared.add_run(parser)
    parser.add_argument(
        "environment", nargs="?", type=one_name, metavar="ENV", help="one environment (default: all that differ)"
    )
    shared.add_results(parser)
    shared.add_display_options(parser)
    parser.add_argument(
        "--confirm",
        action="store_true",
        help="measure again, next to environments that change only a named cause: do they gain or lose as much?",
    )
    shared.add_budget(parser, "with --confirm: stop after this time, such as 90s, 10m or 2h (default: the run's)")
    parser.add_argument(
        "--max-blocks", type=whole_number(1), metavar="N", help="with --confirm: stop after this many blocks"
    )
    parser.examples(
        "envmatrix explain",
        "envmatrix explain my-run tcmalloc --confirm --budget 10m",
    )
    parser.exit_codes("0; with --confirm those of bench for the new run")


def run(arguments: argparse.Namespace) -> int:
    """Print the parts of each difference, their causes, and what is unknown."""
    from envmatrix.api.answers import explain
    from envmatrix.report.explanation import OF_PROCESS, are_of_process, tree_of
    from envmatrix.stats.attribution.explanation import to_json

    if arguments.confirm:
        return _confirm(arguments)
    if arguments.budget is not None or arguments.max_blocks is not None:
        raise InputError("--budget and --max-blocks are for the measurement of --confirm", remedy="add --confirm")
    found, silent = explain(arguments.run_name, arguments.environment, results=arguments.results)
    if arguments.json:
        common.print_json({"why": [to_json(one) for one in found], "not_explained": silent})
        return 0
    if are_of_process(found):
        common.print_text(OF_PROCESS)
    for one in found:
        common.print_text("\n".join(f"{'  ' * depth}{text}" for depth, text in tree_of(one)))
    for name, reason in silent.items():
        common.print_text(f"{name}: {reason}")
    return 0


def _confirm(arguments: argparse.Namespace) -> int:
    """Measure the environments that may confirm the named causes, and print the answers."""
    from envmatrix.api.confirmations import begin_confirmation
    from envmatrix.api.runs import finish_run
    from envmatrix.report.explanation import confirmation_lines
    from envmatrix.stats.attribution.explanation import confirm

    experiment, wanted = begin_confirmation(
        arguments.run_name,
        arguments.environment,
        shared.read_new_run(arguments),
        budget=arguments.budget,
        max_blocks=arguments.max_blocks,
    )
    result = finish_run(experiment, *answer.progress_watch(quiet=arguments.quiet))
    common.print_progress(f"{result.name}: {result.why}")
    found = confirm(result.summary.analysis, result.summary.measured, wanted)
    if arguments.json:
        common.print_json({"run": result.name, "confirmations": [one.to_json() for one in found]})
    else:
        common.print_text("\n".join(line for one in found for line in confirmation_lines(one)))
    if not arguments.quiet and (advice := answer.undecided_advice(result)):
        common.print_progress(advice)
    common.print_progress(f"all that is known of it: envmatrix explain {result.name}")
    return answer.explain_exit(result)
