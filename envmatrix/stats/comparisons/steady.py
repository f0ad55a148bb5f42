"""Comparison of later steps of one environment in two stored runs, whose trials are not paired."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from envmatrix.plan import Arm
from envmatrix.stats.comparisons.result import SteadyComparison, arm_logs, status_of
from envmatrix.stats.comparisons.run_to_run import FEWEST_RUNS, compare_with_runs
from envmatrix.stats.effects import verdict_of
from envmatrix.stats.inference.welch import Mean, quotient
from envmatrix.stats.measurements import Measurements
from envmatrix.stats.metrics import Metric
from envmatrix.stats.pairing import Floats
from envmatrix.stats.steady_state.later_steps import CHANGE, WATCHED

#: Processes that went on for times that differ by a larger factor are not compared.
_ALIKE = 1.25


@dataclass(frozen=True)
class Rules:
    """How two runs are compared: how many comparisons, their level, the allowed slow-down and the margin."""

    comparisons: int
    level: float
    allowed: float
    margin: float


def went_on(measured: Measurements, arm: str) -> bool:
    """Return whether processes of an arm went on after their trials in at least two blocks."""
    return int(np.isfinite(measured.of(arm, CHANGE)).sum()) > 1


def later_mean(logs: Floats, changes: Floats) -> Mean | None:
    """Return the mean log of the later speed: that of all trials plus the mean change; None below two changes."""
    trials, both = np.isfinite(logs), np.isfinite(logs) & np.isfinite(changes)
    count, groups = int(trials.sum()), int(both.sum())
    if groups < 2:
        return None
    # Trials of processes that went on are in both means: their variance is that of their part of the sum.
    shared = groups * float((logs[both] / count + changes[both] / groups).var(ddof=1))
    rest = (count - groups) / count**2 * float(logs[trials].var(ddof=1))
    return Mean(float(logs[trials].mean() + changes[both].mean()), math.sqrt(shared + rest), groups)


def compare_later_steps(
    arm: Arm, metric: Metric, measured: Sequence[Measurements], names: tuple[str, str], rules: Rules, trial: str
) -> tuple[SteadyComparison | None, str]:
    """Compare later steps of an arm in the last of the runs with those in the others, the first of which is old.

    The interval is of the same kind as that of the first steps. Return why there is no comparison, '' if no process
    went on.
    """
    there = [went_on(one, arm.name) for one in measured]
    if not metric.is_speed or not (there[0] or there[-1]):
        return None, ""
    of, then = f" of {arm.shown}", ": first steps are compared"
    if not (there[0] and there[-1]):
        return None, f"only {names[0] if there[0] else names[1]} has a steady effect{of}{then}"
    if not all(there) and len(there) > FEWEST_RUNS >= sum(there):
        return None, f"only {sum(there)} of {len(there)} runs have a steady effect{of}{then}"
    runs = [one for one, is_there in zip(measured, there, strict=True) if is_there]
    seconds = [float(np.nanmedian(one.of(arm.name, WATCHED))) for one in runs]
    if max(seconds) > _ALIKE * min(seconds):
        return None, f"processes{of} went on for {min(seconds):.0f} to {max(seconds):.0f} s of steps{then}"
    *olds, new = (later_mean(arm_logs(one, arm.name, metric), one.of(arm.name, CHANGE)) for one in runs)
    known = [mean for mean in olds if mean]
    if new is None or len(known) < len(olds):
        return None, ""
    until_s = min(seconds)
    if len(known) < FEWEST_RUNS:
        ratio = quotient(known[0], new, rules.comparisons, rules.level).ratio
        return SteadyComparison(ratio, None, None, "undecided", "cannot say", until_s / 2, until_s, trial), ""
    found = compare_with_runs(known, new, rules.comparisons, rules.level)
    verdict, status = verdict_of(found.low, found.high, rules.margin), status_of(found.low, found.high, rules.allowed)
    return SteadyComparison(found.ratio, found.low, found.high, verdict, status, until_s / 2, until_s, trial), ""
