"""``envmatrix explain``."""

from __future__ import annotations

from envmatrix.cli import console_io, progress_and_result, shared_options
from envmatrix.cli.argument_parser import Arguments, Parser, declare, declare_flag, nonempty_name, whole_number
from envmatrix.durations_and_sizes import parse_duration
from envmatrix.errors import ExitCode, InputError


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    shared_options.add(parser, "run")
    declare(parser, "environment", "ENV", "one environment (default: all that differ)", nonempty_name, nargs="?")
    shared_options.add(parser, "--results", "--json", "--quiet")
    text = "measure again, next to environments that change only a named cause: do they gain or lose as much?"
    declare_flag(parser, "--confirm", text)
    text = "with --confirm: stop after this time, such as 90s, 10m or 2h (default: the run's)"
    declare(parser, "--budget", "TIME", text, parse_duration)
    declare(parser, "--max-blocks", "N", "with --confirm: stop after this many blocks", whole_number(1))
    parser.examples(
        "envmatrix explain",
        "envmatrix explain my-run tcmalloc --confirm --budget 10m",
    )
    parser.exit_codes("0; with --confirm those of bench for the new run")


def run(arguments: Arguments) -> int:
    """Print the parts of each difference, their causes, and what is unknown."""
    from envmatrix.api.run_results import explain
    from envmatrix.report.explanation import OF_PROCESS, any_covers_all_threads, tree_of
    from envmatrix.stats.attribution.explanation import to_json

    if arguments.confirm:
        return _confirm(arguments)
    if arguments.budget is not None or arguments.max_blocks is not None:
        raise InputError("--budget and --max-blocks are for the measurement of --confirm", remedy="add --confirm")
    explanations, silent = console_io.call(explain, arguments)
    lines = [OF_PROCESS] if any_covers_all_threads(explanations) else []
    lines += [f"{'  ' * depth}{text}" for explanation in explanations for depth, text in tree_of(explanation)]
    lines += [f"{name}: {reason}" for name, reason in silent.items()]
    document = {"why": [to_json(explanation) for explanation in explanations], "not_explained": silent}
    console_io.print_answer(arguments, document, "\n".join(lines))
    return ExitCode.FINE


def _confirm(arguments: Arguments) -> int:
    """Measure the environments that may confirm the named causes, and print the answers."""
    from envmatrix.api.paired_reruns import begin_cause_confirmation
    from envmatrix.report.explanation import confirmation_lines
    from envmatrix.stats.attribution.explanation import confirm

    new_run = shared_options.read_new_run(arguments)
    experiment, wanted = console_io.call(begin_cause_confirmation, arguments, new_run=new_run)
    result = progress_and_result.finish(experiment, arguments)
    confirmations = confirm(result.summary.analysis, result.summary.measured, wanted)
    console_io.print_answer(
        arguments,
        {"run": result.name, "confirmations": [item.to_json() for item in confirmations]},
        "\n".join(line for item in confirmations for line in confirmation_lines(item)),
    )
    if not arguments.quiet and (advice := progress_and_result.undecided_advice(result)):
        console_io.print_progress(advice)
    console_io.print_progress(f"all that is known of it: envmatrix explain {result.name}")
    return progress_and_result.explain_exit(result)
