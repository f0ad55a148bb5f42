"""How often a pair of environments, picked after seeing the table, is falsely called different."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from envmatrix.plan import Arm, Plan, make_arms
from envmatrix.stats.effect_estimation import between, estimate
from validation.simulated import Figure, Floats, rate, trials_of
from validation.simulated_table import measured_of, plan_of

_ENVIRONMENTS, _BLOCKS = (4, 9), (8, 20)
_FALSE = ("faster", "slower")


def arms_of(environments: int) -> tuple[Arm, ...]:
    """Return the arms of a run with that many environments, the baseline and its control first."""
    return make_arms(tuple(f"e{number}" for number in range(environments)), ("w",), ("e",), "baseline")


def picked(logs: Floats, plan: Plan) -> tuple[bool, bool, bool]:
    """Return false differences without a true one: any in the table, the furthest pair, the pair with the largest t."""
    measured = measured_of(logs, plan.arms)
    analysis = estimate(plan, measured, metrics=())
    table = any(one.verdict in _FALSE for one in analysis.primary_effects() if not one.is_control)
    rows = np.array([row for row, arm in enumerate(plan.arms) if not arm.is_control])
    apart = logs[rows][:, None] - logs[rows][None]
    mean = np.triu(np.abs(apart.mean(axis=2)))
    t = mean / np.maximum(apart.std(axis=2, ddof=1), 1e-12)
    pairs = [rows[list(np.unravel_index(int(by.argmax()), by.shape))] for by in (mean, t)]
    said = [between(analysis, measured, plan.arms[one], plan.arms[other]).verdict in _FALSE for one, other in pairs]
    return table, said[0], said[1]


def _figures(machine: str, environments: int, blocks: int, runs: int, chance: np.random.Generator) -> Iterator[Figure]:
    plan = plan_of(blocks, arms_of(environments))
    logs = trials_of(machine, len(plan.arms), blocks, runs, chance)
    found = np.array([picked(-one, plan) for one in logs], dtype=np.bool_)
    names = ("the table", "fastest against slowest", "the pair of the largest t")
    for name, hits in zip(names, found.T, strict=True):
        yield rate(f"false, {environments} A/A: {name}", machine, f"{blocks} blocks", hits)
    yield rate(f"false, {environments} A/A: any of these", machine, f"{blocks} blocks", np.asarray(found.any(axis=1)))


def pairs(machine: str, runs: int, chance: np.random.Generator) -> list[Figure]:
    """Simulate pairs picked after seeing the table, with a tenth of ``runs`` each."""
    runs = max(20, runs // 10)
    cells = [(environments, blocks) for environments in _ENVIRONMENTS for blocks in _BLOCKS]
    return [figure for cell in cells for figure in _figures(machine, *cell, runs, chance)]
