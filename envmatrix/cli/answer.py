"""What ``bench``, ``resume``, ``report`` and ``reproduce`` show of a run, while it goes on and at its end."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import TYPE_CHECKING

from envmatrix.cli import common
from envmatrix.errors import ExitCode
from envmatrix.launchers.catalog import DEFAULT

if TYPE_CHECKING:
    from envmatrix.api.result import Result
    from envmatrix.api.runs import Watch
    from envmatrix.launchers.base import Ask
    from envmatrix.stats.comparison import Comparison
    from envmatrix.stats.effects import Effect
    from envmatrix.trials.experiment import Experiment


def watching(*, quiet: bool, show_output: bool = False) -> tuple[Watch, Ask | None]:
    """Return what shows progress on stderr, and who answers questions (None: nobody is there)."""
    from envmatrix.runner.progress import watch

    somebody = sys.stdin.isatty() and sys.stderr.isatty()
    return partial(watch, quiet=quiet, show_output=show_output), common.ask if somebody else None


def carry_out(experiment: Experiment, arguments: argparse.Namespace, *, is_set_up: bool = False) -> int:
    """Run what is left of an experiment and show the answer."""
    from envmatrix.api import runs

    watch = watching(quiet=arguments.quiet, show_output=getattr(arguments, "show_output", False))
    result = runs.carry_out(experiment, *watch, is_set_up=is_set_up)
    common.say_to_stderr(f"{result.name}: {result.why}")
    show(result, as_json=arguments.json)
    if not arguments.json:
        tell_how_to_use(experiment, result)
    if not arguments.quiet and (line := how_to_decide(result)):
        common.say_to_stderr(line)
    return end(result)


def show(result: Result, *, as_json: bool) -> None:
    """Print the answer of a run."""
    from envmatrix.report.json_file import summary_to_json
    from envmatrix.report.terminal import present

    if as_json:
        common.print_json(summary_to_json(result.summary))
    else:
        present(result.summary, common.console())


def tell_how_to_use(experiment: Experiment, result: Result) -> None:
    """Print the exact lines that set up the recommended environment, and where the report is."""
    from envmatrix.api.environments import lines_of_best

    for group in result.summary.groups:
        if lines := lines_of_best(experiment, group):
            common.print_text(f"\nthe recommended environment for {group.workload} on {group.engine}:\n\n{lines}\n")
    common.print_text(f"report: {result.folder / 'report.html'}")


def _is_open(effect: Effect, target: float) -> bool:
    """Say whether more blocks may decide about an environment, and are run for that."""
    narrow = effect.half_width is not None and effect.half_width <= target
    return bool(effect.blocks) and effect.verdict == "undecided" and not (effect.is_control or narrow)


def how_to_decide(result: Result) -> str:
    """Say which environments are undecided, and what decides: as much time again, or less noise; '' where none is."""
    from envmatrix.runner.time_to_decision import blocks_until
    from envmatrix.units import QUIET_FIRST, as_budget, as_hours, is_too_long

    run = result.summary.run
    open_ones = [one for one in result.effects if _is_open(one, run.plan.target)]
    if not open_ones or run.plan.race or run.plan.max_blocks < run.plan.min_blocks:  # the last: to claim nothing
        return ""
    if result.interrupted or result.lost or result.incomplete:
        return ""
    undecided = f"undecided: {', '.join(dict.fromkeys(one.environment for one in open_ones))}"
    if any(one.contended.shares for one in open_ones):
        return f"{undecided}; more blocks of a busy machine do not decide: {QUIET_FIRST}, then begin another run"
    took_s, blocks = _taken(result)
    wanted = max(blocks_until(one, run.plan.target) or 0 for one in open_ones)
    needed_s, again_s = took_s * wanted / blocks, 2 * max(took_s, run.plan.budget_s)
    if is_too_long(max(needed_s, again_s), wanted):
        time = f"about {as_hours(needed_s)}" if needed_s > again_s else f"some {wanted:,} blocks"
        return f"{undecided}; at this noise {100 * run.plan.target:g}% would take {time}: {QUIET_FIRST}"
    more = f" --max-blocks {2 * run.plan.max_blocks}" if blocks >= run.plan.max_blocks else ""
    again = f"envmatrix resume {result.name} --budget {as_budget(again_s)}{more}"
    return f"{undecided}; as much time again: {again}"


def _taken(result: Result) -> tuple[float, int]:
    """Return how long the trials of a run took here, in seconds (0 on other machines), and how many blocks it has."""
    from envmatrix.results import RunFolder
    from envmatrix.results.elapsed import Taken

    run, taken, blocks = result.summary.run, Taken(), set[int]()
    for trial in RunFolder(result.folder).readings(run.plan):
        taken.add(trial)
        blocks.add(trial.block)
    return taken.seconds if run.launcher == DEFAULT else 0.0, len(blocks)


def how_to_tell(result: Result, found: Comparison, allowed: float, then: str) -> str:
    """Say what lets a gate answer that cannot say yet, about how long it takes; '' where more blocks would not.

    ``then`` is the command that compares again.
    """
    from envmatrix.units import MOST_BLOCKS, QUIET_FIRST, as_budget, as_hours, is_too_long

    plan = result.summary.run.plan
    open_ones = [one for one in found.items if one.status == "cannot say" and not (one.unsure or one.runs)]
    took_s, blocks = _taken(result)
    if not open_ones or not blocks or result.interrupted or result.lost or result.incomplete:
        return ""
    wanted = max(plan.min_blocks, *(one.wanted or 0 for one in open_ones))
    if wanted <= blocks:  # as narrow as it need be: it lies near what is allowed
        return ""
    seconds = max(took_s, 0.0 if took_s else plan.budget_s) * 1.1 * wanted / blocks
    if is_too_long(seconds, wanted):
        time = f"about {as_hours(seconds)}" if took_s else f"more than {MOST_BLOCKS:,} blocks"
        return f"at this noise it would take {time} to tell: {QUIET_FIRST}"
    more = f" --max-blocks {wanted}" if wanted > plan.max_blocks else ""
    more += f" --target {50 * allowed:g}%" if 0 < allowed < 2 * plan.target else ""
    again = f"envmatrix resume {result.name} --budget {as_budget(max(seconds, plan.budget_s + 60))}{more}"
    return f"to tell takes {wanted:,} blocks or fewer: {again}, then: {then}"


def end(result: Result) -> ExitCode:
    """Say how to go on where something is left, and return the exit code."""
    if result.interrupted:
        common.say_to_stderr(f"go on with: envmatrix resume {result.name}")
    elif result.lost:
        common.say_to_stderr(f"if that was by chance, go on with: envmatrix resume {result.name}")
    elif result.incomplete:
        common.say_to_stderr(
            f"{result.incomplete} block(s) are not complete; go on with: envmatrix resume {result.name}"
        )
    if (code := result.exit_code) == ExitCode.OTHER_WORK:
        common.say_to_stderr(f"exit code {code:d}: {', '.join(result.other_work)} did other work than its reference")
    return code
