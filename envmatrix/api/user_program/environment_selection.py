"""Environments to try for a program: those that differ here, that it does not override, and that fit into the time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from envmatrix.durations_and_sizes import TIME_MARGIN, as_duration, is_too_long_to_suggest, parse_duration
from envmatrix.evidence.evidence_models import OwnSetting
from envmatrix.matrix import Matrix
from envmatrix.matrix.parse import parse
from envmatrix.matrix.template import FOR_ANY, FOR_TORCH, MatrixTemplate
from envmatrix.plan.environment import resolve_environment
from envmatrix.report.formatting import format_count
from envmatrix.system.host import this_host
from envmatrix.system.progress import ProgressCallback
from envmatrix.trials.experiment_setup import none_available_error, snapshot_bench
from envmatrix.trials.images import ImageBuilder, prepare_images
from envmatrix.trials.overrides import Overrides
from envmatrix.trials.user_program.preliminary_run import TrialRunResult
from envmatrix.trials.user_program.settings_in_code import find_conflict

#: Without --budget: as many environments as get a verdict within these seconds of blocks, but at least the minimum. The
#: rest of three minutes is for `pip install`, the trial run, the libraries and the table.
_FIRST_ANSWER_S = 120.0
_MIN_ENVIRONMENTS = 2
_MIN_BLOCKS = 6
#: A trial that takes longer (seconds) makes its user wait for hours.
_LONG_TRIAL_S = 60.0


def usable_environments(torch: bool) -> list[str]:
    """Return the environments that differ from the baseline on this machine."""
    host = this_host()
    useless = {"one-thread"} if len(host.cpus) == 1 else set()
    useless |= {"pinned"} if host.physical_cpus == host.cpus else set()
    return [name for name in (FOR_TORCH if torch else FOR_ANY) if name not in useless]


def overridden_environments(template: MatrixTemplate, settings: Iterable[OwnSetting]) -> dict[str, str]:
    """Return the usable environments that a program overrides by its own ``settings`` -> the cause."""
    own, names = list(settings), usable_environments(template.torch)
    if not own:
        return {}
    matrix, facts = parse(replace(template, environments=names).text(), Path("matrix.yaml")), this_host().facts()
    conflicts = {}
    for name in names:
        environment = resolve_environment(matrix, name, facts)
        cause = find_conflict(own, environment.variables, environment.claims, environment.cpus)
        if cause:
            conflicts[name] = cause
    return conflicts


def select_available_environments(
    starter: MatrixTemplate, trial_s: float, overrides: Overrides, progress: ProgressCallback
) -> tuple[MatrixTemplate, dict[str, str]]:
    """Return a template with those of its environments that fit into the time, and name -> why others are unavailable.

    An unavailable environment makes room for the next one; those that the user named stay. Raises NothingRanError if
    all are unavailable.
    """
    usable, requested = starter.environments, tuple(overrides.environments or ())
    arms, _ = plan_arm_count_and_seconds(trial_s, len(requested) or len(usable), overrides)
    names, matrix = requested or usable, parse(starter.text(), Path("matrix.yaml"))
    selected: tuple[str, ...] = requested
    unavailable: dict[str, str] = {}
    if set(names) <= set(matrix.environments):  # the later error for an unknown name lists all
        available, unavailable = _find_available(matrix, names, arms - 2, starter.engine, progress)
        if unavailable and not available:
            raise none_available_error(unavailable)
        selected = requested or tuple(available)
    if not set(selected) <= set(usable):  # requested ones that the template cannot list
        selected = tuple(usable[: arms - 2])
    if unavailable and not requested:
        first, reason = next(iter(unavailable.items()))
        why = f"{first}: {reason.splitlines()[0].rstrip(':')}"
        progress(f"left out, because not available on this machine: {', '.join(unavailable)} ({why})")
    _, budget_s = plan_arm_count_and_seconds(trial_s, len(requested) or len(selected), overrides)
    claims_first = overrides.budget is None
    return replace(starter, environments=selected, budget_s=budget_s, claims_first=claims_first), unavailable


def _find_available(
    matrix: Matrix, names: Sequence[str], count: int, engine: str, progress: ProgressCallback
) -> tuple[list[str], dict[str, str]]:
    """Return the first ``count`` of ``names`` that can be prepared here, and why others cannot.

    Only the libraries of environments that are tried are fetched, and a missing one is not tried again.
    """
    builder = ImageBuilder.open([engine], (), Path(matrix.path), snapshot_bench()[1])
    environments = [resolve_environment(matrix, name, {}) for name in names]
    reasons: dict[str, str] = {}
    while True:
        tried = {entry.name: entry for entry in [known for known in environments if known.name not in reasons][:count]}
        libraries = {library.key: library for entry in tried.values() for library in entry.libraries}
        with_libraries = replace(builder, libraries=tuple(libraries.values()))
        images, unavailable = prepare_images(tried, {None: with_libraries}, progress)
        if not unavailable:
            return list(tried), reasons
        reasons |= {name: reason for (name, _), reason in unavailable.items()}
        missing = {key: reason for image in images.values() for key, reason in image.missing.items()}
        lacking = [(entry.name, key) for entry in environments for key, _ in entry.preload if key in missing]
        reasons |= {name: f"library {key} is not available: {missing[key]}" for name, key in lacking}


def left_out_text(
    starter: MatrixTemplate, first_run: TrialRunResult, overrides: Overrides, excluded: Iterable[str]
) -> str:
    """Return one line on the environments that are not tested yet, and the budget that tests all; '' if none.

    ``excluded``: environments that cannot be tested.
    """
    usable = [name for name in usable_environments(starter.torch) if name not in set(excluded)]
    left_out = [name for name in usable if name not in starter.environments]
    if overrides.environments or not left_out:
        return ""
    all_s = arm_time_s(first_run.wall_s * len(starter.workloads), overrides) * (len(usable) + 2)
    budget_note = "" if is_too_long_to_suggest(all_s) else f" (`--budget {as_duration(all_s)}` tests all)"
    return f"not tested yet: {', '.join(left_out)}{budget_note}"


def total_time_text(trial_s: float, workloads: int, overrides: Overrides) -> str:
    """Return how much longer than ``trial_s`` all takes, while the trial run is not over; '' if nothing is decided."""
    blocks = overrides.min_blocks or _MIN_BLOCKS
    if 0 < (overrides.max_blocks or 0) < blocks:
        return ""
    trials = blocks * (len(overrides.environments or ()) or _MIN_ENVIRONMENTS) + 2 * blocks
    least_s = trials * workloads * trial_s
    budget_s = parse_duration(overrides.budget) if overrides.budget else least_s
    short_text = f", and --budget {as_duration(budget_s)} is too short" if budget_s < least_s else ""
    return f"; a verdict needs {trials * workloads} such runs: {as_duration(least_s)} or more{short_text}"


def time_text(budget_s: float, trial_s: float, arms: int, overrides: Overrides) -> str:
    """Describe how much is run, and how to get a verdict if the program is too slow for that."""
    blocks = overrides.min_blocks or _MIN_BLOCKS
    all_s = blocks * arms * trial_s
    is_long = trial_s > _LONG_TRIAL_S
    if overrides.budget:
        fit = format_count(int(budget_s / trial_s), "trial")
        text = f"budget {as_duration(budget_s)}: time for {fit} like the trial run; a verdict needs {blocks * arms}"
        if budget_s >= all_s:
            return text
        budget = [] if is_too_long_to_suggest(all_s * TIME_MARGIN) else [f"--budget {as_duration(all_s * TIME_MARGIN)}"]
        ways = " or ".join(budget + ["fewer steps or epochs"] * is_long)
        one_block = f". One block of {arms} runs in any case: {as_duration(arms * trial_s)}"
        return f"{text}{': use ' if ways else ''}{ways}{one_block if budget_s < arms * trial_s else ''}"
    max_blocks = overrides.max_blocks or 0
    if 0 < max_blocks < blocks:
        return f"the table comes after {max_blocks} x {arms} trials: about {as_duration(trial_s * arms * max_blocks)}"
    if is_long:
        return f"{blocks} blocks of {arms} trials, or more: about {as_duration(all_s)}; fewer steps or epochs take less"
    return f"{blocks} blocks of {arms} trials, or more; the first blocks will show how long that takes"


def plan_arm_count_and_seconds(trial_s: float, environment_count: int, overrides: Overrides) -> tuple[int, float]:
    """Return how many arms (with baseline and control) and seconds to plan, enough for a verdict on each."""
    each_s = arm_time_s(trial_s, overrides)
    given_s = parse_duration(overrides.budget) if overrides.budget else None
    fit = int((given_s / each_s if given_s else _FIRST_ANSWER_S * TIME_MARGIN / each_s) + 1e-6)
    arms = (
        environment_count + 2
        if overrides.environments
        else max(min(environment_count, _MIN_ENVIRONMENTS) + 2, min(environment_count + 2, fit))
    )
    return arms, given_s or min(_FIRST_ANSWER_S, max(60.0, each_s * arms))


def arm_time_s(trial_s: float, overrides: Overrides) -> float:
    """Return the seconds that an arm needs until a verdict is possible."""
    return trial_s * (overrides.min_blocks or _MIN_BLOCKS) * TIME_MARGIN
