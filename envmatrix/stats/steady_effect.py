"""Effects in the steady state: the effect of the blocks times its change within processes that went on.

A process that goes on after its trial gives the log ratio of its later speed to that of its trial. Processes differ
less in this change than in speed, so few blocks are enough (docs/steady-state.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from envmatrix.plan import Plan
from envmatrix.stats.analysis import Analysis
from envmatrix.stats.later_steps import CHANGE, TREND, WATCHED
from envmatrix.stats.maxt import student_quantile
from envmatrix.stats.measurements import Measurements
from envmatrix.stats.metrics import THROUGHPUT
from envmatrix.stats.pairing import Family, Floats, families, log_ratios_over_copies, logs_of, ratio_from_log

#: With one block that went on, the variance of the change is unknown.
_LEAST_GROUPS = 2
#: A smaller change of an effect from one quarter to the next is not reported.
_SMALL_TREND = 0.02


@dataclass(frozen=True)
class SteadyEffect:
    """The effect of an arm in the second half of the steps of processes that went on, in ``groups`` blocks.

    ``low`` and ``high`` are simultaneous bounds like those of the table. ``change`` is this effect over that of the
    trials. The steps are those between ``since_s`` and ``until_s`` seconds. ``changes``: the effect still changed from
    the third to the last quarter.
    """

    ratio: float
    low: float
    high: float
    change: float
    groups: int
    since_s: float
    until_s: float
    changes: bool


@dataclass(frozen=True)
class _Paired:
    """The mean of each arm's paired log ratios, its variance, and its number of blocks; for the family ``freedom``."""

    mean: Floats
    variance: Floats
    groups: Floats
    freedom: int

    def reach(self, index: int, comparisons: int, level: float) -> float:
        """Return the half-width of an arm's interval, one of ``comparisons`` (Bonferroni)."""
        quantile = student_quantile(self.freedom + 1, 1.0 - (1.0 - level) / (2 * comparisons))
        return quantile * math.sqrt(self.variance[index])


def steady_effects(plan: Plan, measured: Measurements, analysis: Analysis) -> Mapping[str, SteadyEffect]:
    """Return arm -> its effect in the steady state, for arms that went on in at least two blocks."""
    found: dict[str, SteadyEffect] = {}
    for family in families(plan):
        found |= _family_effects(family, plan, measured, analysis)
    return found


def variances(plan: Plan, measured: Measurements) -> tuple[float, float]:
    """Return the variance of a paired log change, and of a later log ratio less that, as means over the arms.

    A later ratio is that of the trial times its change, which share the noise of the trial. NaN below two blocks that
    went on.
    """
    changes, rests = [], []
    for family in families(plan):
        rows, logs = _Rows(family, plan, measured), measured.table[CHANGE]
        change, later = (_paired(logs + more, rows) for more in (0.0, logs_of(measured.table[THROUGHPUT.name])))
        if change and later:
            changes.append(float((change.variance * change.groups).mean()))
            rests.append(float((later.variance * later.groups).mean()) - changes[-1])
    return (float(np.mean(changes)), float(np.mean(rests))) if changes else (math.nan, math.nan)


class _Rows:
    """The rows of a family in the table, its copies first, and of all arms measured like them."""

    def __init__(self, family: Family, plan: Plan, measured: Measurements) -> None:
        alike = [arm.name for arm in plan.arms if family.reference in (arm.name, arm.reference)]
        self.family, self.alike = (
            [measured.arms.index(name) for name in names]
            for names in ((*family.copies, *(arm.name for arm in family.arms)), alike)
        )
        self.copies = len(family.copies)


def _family_effects(family: Family, plan: Plan, measured: Measurements, analysis: Analysis) -> dict[str, SteadyEffect]:
    rows = _Rows(family, plan, measured)
    change, trend = (_paired(measured.table[name], rows) for name in (CHANGE, TREND))
    if change is None or trend is None:
        return {}
    found = {}
    for index, arm in enumerate(family.arms):
        effect, groups = analysis.find(arm.name), int(change.groups[index])
        if groups < _LEAST_GROUPS or effect is None or effect.low is None or effect.high is None or not effect.ratio:
            continue
        # The blocks that went on are in both means: their variance is that of their part of the sum.
        metric = analysis.primary[arm.workload]
        logs = metric.sign * logs_of(measured.table[metric.name])
        both = _paired(measured.table[CHANGE] / groups + logs / effect.blocks, rows)
        if both is None:
            continue
        reach = groups * both.reach(index, family.together, analysis.level)
        others = max(0, effect.blocks - groups) / effect.blocks
        mean = math.log(effect.ratio) + float(change.mean[index])
        # Each half-width has its own t, and their squares add (Banerjee 1961).
        low, high = (
            ratio_from_log(mean + sign * math.hypot(math.log(bound / effect.ratio) * math.sqrt(others), reach))
            for sign, bound in ((-1, effect.low), (1, effect.high))
        )
        watched_s = float(np.nanmedian(measured.table[WATCHED][rows.family[rows.copies + index]]))
        still = abs(float(trend.mean[index])) > max(_SMALL_TREND, trend.reach(index, family.together, analysis.level))
        changed = ratio_from_log(float(change.mean[index]))
        found[arm.name] = SteadyEffect(
            ratio_from_log(mean), low, high, changed, groups, watched_s / 2, watched_s, still
        )
    return found


def _paired(logs: Floats, rows: _Rows) -> _Paired | None:
    """Return the paired means of a family by arm; None below two blocks that went on.

    The variance is pooled over all processes measured alike, without the mean of each environment and block. An
    environment whose own variance is larger keeps it.
    """
    differences = log_ratios_over_copies(logs[rows.family], rows.copies)
    groups = np.isfinite(differences).sum(axis=1)
    there = logs[rows.alike][:, np.isfinite(logs[rows.family[: rows.copies]]).all(axis=0)]
    whole = there[np.isfinite(there).all(axis=1)]
    freedom = (whole.shape[0] - 1) * (whole.shape[1] - 1)
    if whole.shape[1] < _LEAST_GROUPS or freedom < 1:
        return None
    residuals = whole - whole.mean(axis=0) - whole.mean(axis=1, keepdims=True) + whole.mean()
    pooled = float((residuals**2).sum()) / freedom * (1.0 + 1.0 / rows.copies)
    counts = np.maximum(groups, 1)
    mean = np.where(np.isfinite(differences), differences, 0.0).sum(axis=1) / counts
    squares = np.where(np.isfinite(differences), (differences - mean[:, None]) ** 2, 0.0).sum(axis=1)
    own = squares / np.maximum(groups - 1, 1)
    return _Paired(mean, np.maximum(pooled, own) / counts, groups.astype(np.float64), freedom)
