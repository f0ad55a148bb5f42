"""Environments to try for a program: those that differ on this machine, and that it does not override itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from envmatrix.api.program_budget import arm_time_s
from envmatrix.evidence.evidence import OwnSetting
from envmatrix.matrix.parse import parse
from envmatrix.matrix.template import FOR_ANY, FOR_TORCH, MatrixTemplate
from envmatrix.plan.environment import resolve_environment
from envmatrix.system.host import this_host
from envmatrix.trials.overrides import Overrides
from envmatrix.trials.own_settings import find_conflict
from envmatrix.trials.trial_run import TrialRunResult
from envmatrix.units import as_budget, is_too_long


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


def left_out_text(
    starter: MatrixTemplate, first_run: TrialRunResult, overrides: Overrides, conflicts: Mapping[str, str]
) -> str:
    """Return one line on the environments that are not tested yet, and the budget that tests all; '' if none."""
    usable = [name for name in usable_environments(starter.torch) if name not in conflicts]
    left_out = [name for name in usable if name not in starter.environments]
    if overrides.environments or not left_out:
        return ""
    all_s = arm_time_s(first_run.wall_s * len(starter.workloads), overrides) * (len(usable) + 2)
    budget_note = "" if is_too_long(all_s) else f" (`--budget {as_budget(all_s)}` tests all)"
    return f"not tested yet: {', '.join(left_out)}{budget_note}"
