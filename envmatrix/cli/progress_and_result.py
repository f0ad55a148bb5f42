"""Output of the commands that measure: progress during a run or a search, and its result."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

from envmatrix.cli import console_io
from envmatrix.cli.argument_parser import Arguments
from envmatrix.errors import ExitCode
from envmatrix.launchers.catalog import DEFAULT

if TYPE_CHECKING:
    from envmatrix.api.result import Result
    from envmatrix.api.runs import Watch
    from envmatrix.api.tuning.search import TuneResult
    from envmatrix.launchers.base import Ask
    from envmatrix.search.loop import RunningSearch
    from envmatrix.stats.comparisons.result import Comparison
    from envmatrix.stats.effects import Effect
    from envmatrix.trials.experiment_setup import Experiment


def progress_watch(*, quiet: bool, show_output: bool = False) -> tuple[Watch, Ask | None]:
    """Return the progress display for stderr, and the function that asks the user (None: not interactive)."""
    from envmatrix.runner.progress import show_progress

    is_interactive = sys.stdin.isatty() and sys.stderr.isatty()
    return partial(show_progress, quiet=quiet, show_output=show_output), console_io.ask if is_interactive else None


def finish(experiment: Experiment, arguments: Arguments, *, is_set_up: bool = False) -> Result:
    """Run the rest of an experiment, and print why it ended."""
    from envmatrix.api import runs

    watch = progress_watch(quiet=arguments.quiet, show_output=getattr(arguments, "show_output", False))
    price = getattr(arguments, "price", None)
    result = runs.finish_run(experiment, *watch, is_set_up=is_set_up, price_per_h=price)
    console_io.print_progress(f"{result.name}: {result.why}")
    return result


def run_and_show(experiment: Experiment, arguments: Arguments, *, is_set_up: bool = False) -> int:
    """Run the rest of an experiment and print its result."""
    result = finish(experiment, arguments, is_set_up=is_set_up)
    if arguments.json or result.outcomes or not result.interrupted:  # otherwise there is nothing to show
        show_result(result, as_json=arguments.json)
    if not arguments.json:
        print_export_lines(experiment, result)
    if not arguments.quiet and (line := undecided_advice(result)):
        console_io.print_progress(line)
    return explain_exit(result)


def show_result(result: Result, *, as_json: bool, only_warnings: bool = False) -> None:
    """Print the answer of a run, or all of its warnings."""
    from envmatrix.report.formats.json_file import summary_to_json
    from envmatrix.report.formats.terminal import print_summary, print_warnings

    if as_json:
        console_io.print_json(summary_to_json(result.summary))
    elif only_warnings:
        print_warnings(result.summary, console_io.stdout_console())
    else:
        print_summary(result.summary, console_io.stdout_console())


def print_export_lines(experiment: Experiment, result: Result) -> None:
    """Print the lines that set up the recommended environment, and the path of the report."""
    from envmatrix.api.environment_exec_and_export import best_export_lines

    for group in result.summary.groups:
        if lines := best_export_lines(experiment, group):
            console_io.print_text(f"\nthe recommended environment for {group.workload} on {group.engine}:\n\n{lines}\n")
    console_io.print_text(f"report: {result.folder / 'report.html'}")


def _is_undecided(effect: Effect, target: float) -> bool:
    """Return whether an environment is undecided and more blocks may decide it."""
    narrow = effect.half_width is not None and effect.half_width <= target
    return bool(effect.blocks) and effect.verdict == "undecided" and not (effect.is_control or narrow)


def undecided_advice(result: Result) -> str:
    """Return advice for undecided environments: run longer or reduce the noise; '' if none is undecided."""
    from envmatrix.durations_and_sizes import QUIET_FIRST, as_duration, as_hours, is_too_long_to_suggest
    from envmatrix.runner.running_estimate import total_blocks_for_width

    run = result.summary.run
    undecided_effects = [effect for effect in result.effects if _is_undecided(effect, run.plan.target)]
    draws_no_conclusions = run.plan.race or run.plan.max_blocks < run.plan.min_blocks
    if not undecided_effects or draws_no_conclusions or result.is_unfinished:
        return ""
    undecided = f"undecided: {', '.join(dict.fromkeys(effect.environment for effect in undecided_effects))}"
    if any(effect.contended.shares for effect in undecided_effects):
        return f"{undecided}; more blocks do not help on a busy machine: {QUIET_FIRST}, then start another run"
    took_s, blocks = _elapsed_and_blocks(result)
    needed_blocks = max(total_blocks_for_width(effect, run.plan.target) or 0 for effect in undecided_effects)
    needed_s, again_s = took_s * needed_blocks / blocks, 2 * max(took_s, run.plan.budget_s)
    if is_too_long_to_suggest(max(needed_s, again_s), needed_blocks):
        time_text = f"about {as_hours(needed_s)}" if needed_s > again_s else f"about {needed_blocks:,} blocks"
        return f"{undecided}; with this noise, {100 * run.plan.target:g}% would take {time_text}: {QUIET_FIRST}"
    max_blocks_option = f" --max-blocks {2 * run.plan.max_blocks}" if blocks >= run.plan.max_blocks else ""
    command = f"envmatrix {run.more_blocks_command} --budget {as_duration(again_s)}{max_blocks_option}"
    return f"{undecided}; to run longer: {command}"


def _elapsed_and_blocks(result: Result) -> tuple[float, int]:
    """Return the seconds that the trials of a run took here (0 on other machines), and its number of blocks."""
    from envmatrix.results import RunFolder
    from envmatrix.results.elapsed import ElapsedTime

    run, elapsed, blocks = result.summary.run, ElapsedTime(), set[int]()
    for trial in RunFolder(result.folder).facts(run.plan):
        elapsed.add(trial)
        blocks.add(trial.block)
    return elapsed.seconds if run.launcher == DEFAULT else 0.0, len(blocks)


def gate_advice(result: Result, comparison: Comparison, allowed: float, then: str) -> str:
    """Return advice for a gate that cannot decide: how many blocks or how much time it needs.

    ``then`` is the command that compares again. Return '' if more blocks would not help.
    """
    from envmatrix.durations_and_sizes import MOST_BLOCKS, QUIET_FIRST, as_duration, as_hours, is_too_long_to_suggest
    from envmatrix.stats.comparisons.result import NARROW_ENOUGH

    plan = result.summary.run.plan
    undecided_items = [
        item for item in comparison.items if item.status == "cannot say" and not (item.unsure or item.runs)
    ]
    took_s, blocks = _elapsed_and_blocks(result)
    if not undecided_items or not blocks or result.is_unfinished:
        return ""
    needed_blocks = max(plan.min_blocks, *(item.wanted or 0 for item in undecided_items))
    if needed_blocks <= blocks:  # narrow enough: the effect is close to the allowed limit
        return ""
    seconds = max(took_s, 0.0 if took_s else plan.budget_s) * 1.1 * needed_blocks / blocks
    if is_too_long_to_suggest(seconds, needed_blocks):
        time_text = f"about {as_hours(seconds)}" if took_s else f"more than {MOST_BLOCKS:,} blocks"
        return f"with this noise, a verdict would take {time_text}: {QUIET_FIRST}"
    target = NARROW_ENOUGH * allowed
    extra_options = f" --max-blocks {needed_blocks}" if needed_blocks > plan.max_blocks else ""
    extra_options += f" --target {100 * target:g}%" if 0 < target < plan.target else ""
    budget = as_duration(max(seconds, plan.budget_s + 60))
    command = f"envmatrix {result.summary.run.more_blocks_command} --budget {budget}{extra_options}"
    return f"a verdict needs {needed_blocks:,} blocks or fewer: {command}, then: {then}"


def explain_exit(result: Result) -> ExitCode:
    """Print how to continue an unfinished run, and return the exit code."""
    if result.is_unfinished:
        incomplete = f"{result.incomplete} block(s) are incomplete; to continue"
        why = "to continue" if result.interrupted else "if that was by chance, continue" if result.lost else incomplete
        console_io.print_progress(f"{why}: envmatrix resume {result.name}")
    if (code := result.exit_code) == ExitCode.OTHER_WORK:
        console_io.print_progress(
            f"exit code {code:d}: {', '.join(result.other_work)} did other work than the reference"
        )
    return code


def run_and_show_search(tuning: RunningSearch, arguments: Arguments, *, is_set_up: bool = False) -> int:
    """Continue a search and print its result."""
    from envmatrix.api.tuning import search
    from envmatrix.search.loop import watch_step

    show_output = getattr(arguments, "show_output", False)
    watch = partial(watch_step, quiet=arguments.quiet, tell=console_io.print_progress, show_output=show_output)
    result = search.finish_search(tuning, watch, is_set_up=is_set_up)
    if result.interrupted:
        console_io.print_progress(f"to continue: envmatrix resume {result.name}")
    else:
        show_search(result, as_json=arguments.json)
    return result.exit_code


def show_search(result: TuneResult, *, as_json: bool) -> None:
    """Print the result of a search."""
    if as_json:
        console_io.print_json(result.to_json())
        return
    console_io.print_folded(str(result))
    if result.lines:
        console_io.print_text(f"\nto use it elsewhere (recipe.sh):\n\n{result.lines}")
    console_io.print_text(f"report: {result.folder / 'report.html'}")
