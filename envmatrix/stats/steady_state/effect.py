"""Effects in the steady state: the effect of the blocks times its change within processes that went on.

A process that goes on after its trial gives the log ratio of its later speed to that of its trial. Processes differ
less in this change than in speed, so few blocks are enough (docs/steady-state.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from envmatrix.matrix.model import Workload
from envmatrix.plan import Arm, Plan
from envmatrix.stats.array_types import Floats
from envmatrix.stats.effect_estimation import (
    OPPOSITE,
    Analysis,
    invert_effect,
    is_blocked_by_slow_trials,
    pairs_to_pick_from,
)
from envmatrix.stats.effects import Effect, Flag, Verdict, verdict_of
from envmatrix.stats.inference.maxt import student_quantile
from envmatrix.stats.measurements import Measurements
from envmatrix.stats.metrics import THROUGHPUT
from envmatrix.stats.pairing import (
    Family,
    families,
    log_ratios_over_copy_mean,
    logs_of,
    name_with_copy_as_original,
    ratio_from_log,
)
from envmatrix.stats.steady_state.later_speed import CHANGE, TREND, WATCHED

#: With one block that went on, the variance of the change is unknown.
_LEAST_GROUPS = 2
#: A smaller change of an effect from one quarter to the next is not reported.
_SMALL_TREND = 0.02


@dataclass(frozen=True)
class SteadyEffect:
    """The effect of an arm in the second half of the steps of processes that went on, in ``groups`` blocks.

    A ``ratio`` above 1 is better. ``low`` and ``high`` are simultaneous bounds like those of the table, with their
    ``verdict``. ``change`` is this effect over that of the trials. The steps are those between ``since_s`` and
    ``until_s`` seconds. ``changes``: the effect still changed from the third to the last quarter.
    """

    ratio: float
    low: float
    high: float
    change: float
    groups: int
    since_s: float
    until_s: float
    changes: bool
    verdict: Verdict = "undecided"

    @property
    def time_range_text(self) -> str:
        """Which seconds of the steps of a process these are."""
        return f"seconds {self.since_s:.0f} to {self.until_s:.0f}"


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
    steady: dict[str, SteadyEffect] = {}
    for family in families(plan):
        effects = {arm.name: effect for arm in family.arms if (effect := analysis.find(arm.name))}
        steady |= _family_effects(family, measured, analysis, effects, family.together)
    return steady


def steady_between(
    measured: Measurements, analysis: Analysis, arms: tuple[Arm, Arm], effect: Effect, several: int = 1
) -> SteadyEffect | None:
    """Return the steady effect of the second arm over the first; ``effect`` is that of their trials (``between``).

    The interval is one of ``several``, like that of ``effect``. None: one of the arms did not go on.
    """
    (old, new), plan = arms, analysis.plan
    if new.name == name_with_copy_as_original(old.reference, plan):
        inverted = steady_between(measured, analysis, (new, old), invert_effect(effect, new, old), several)
        return inverted and _inverted(inverted)
    is_listed = old.name == name_with_copy_as_original(new.reference, plan)
    family = next((candidate for candidate in families(plan) if is_listed and new in candidate.arms), None)
    if family is None and (old.reference is None or old.reference != new.reference):
        return None
    together = family.together if family else pairs_to_pick_from(plan, measured, old, new)
    family = family or Family(old.name, (old.name,), (new,))
    return _family_effects(family, measured, analysis, {new.name: effect}, several * together).get(new.name)


def _inverted(effect: SteadyEffect) -> SteadyEffect:
    ratio, low, high, change = (1.0 / value for value in (effect.ratio, effect.high, effect.low, effect.change))
    verdict = OPPOSITE.get(effect.verdict, effect.verdict)
    return replace(effect, ratio=ratio, low=low, high=high, change=change, verdict=verdict)


def change_and_remaining_variance(plan: Plan, measured: Measurements) -> tuple[float, float]:
    """Return the variance of a paired log change, and of a later log ratio less that, as means over the arms.

    A later ratio is that of the trial times its change, which share the noise of the trial. NaN below two blocks that
    went on.
    """
    changes, rests = [], []
    for family in families(plan):
        rows, logs = _rows(family, plan, measured), measured.table[CHANGE]
        speeds = logs_of(measured.table[THROUGHPUT.name])
        change, later = _paired(logs, family, *rows), _paired(logs + speeds, family, *rows)
        if change and later:
            changes.append(float((change.variance * change.groups).mean()))
            rests.append(float((later.variance * later.groups).mean()) - changes[-1])
    return (float(np.mean(changes)), float(np.mean(rests))) if changes else (math.nan, math.nan)


def continued_after_trials(measured: Measurements, arm: str) -> bool:
    """Return whether processes of an arm went on after their trials in at least two blocks."""
    return int(np.isfinite(measured.of(arm, CHANGE)).sum()) > 1


def which_steps_text(workload: Workload | None) -> str:
    """Return which steps a trial has: all of one's own program, the first ones of a built-in one."""
    return "all steps" if workload and workload.command else "first steps"


def _rows(family: Family, plan: Plan, measured: Measurements) -> tuple[list[int], list[int]]:
    """Return the rows of a family in the table, its copies first, and those of all arms measured like them."""
    own = next((arm.reference for arm in plan.arms if arm.name == family.reference), None)
    reference = own or family.reference  # of two environments, all those with the same reference are alike
    alike = [arm.name for arm in plan.arms if reference in (arm.name, arm.reference)]
    members = (*family.copies, *(arm.name for arm in family.arms))
    return [measured.arms.index(name) for name in members], [measured.arms.index(name) for name in alike]


def _family_effects(
    family: Family, measured: Measurements, analysis: Analysis, effects: Mapping[str, Effect], together: int
) -> dict[str, SteadyEffect]:
    """Return arm -> its steady effect, one of ``together``; ``effects`` are those of the trials."""
    rows = _rows(family, analysis.plan, measured)
    change, trend = (_paired(measured.table[name], family, *rows) for name in (CHANGE, TREND))
    if change is None or trend is None or not analysis.primary[family.arms[0].workload].is_speed:
        return {}
    steady = {}
    for index, arm in enumerate(family.arms):
        effect, groups = effects.get(arm.name), int(change.groups[index])
        if groups < _LEAST_GROUPS or effect is None or effect.low is None or effect.high is None or not effect.ratio:
            continue
        # The blocks that went on are in both means: their variance is that of their part of the sum.
        metric = analysis.primary[arm.workload]
        logs = metric.sign * logs_of(measured.table[metric.name])
        both = _paired(measured.table[CHANGE] / groups + logs / effect.blocks, family, *rows)
        if both is None:
            continue
        reach = groups * both.reach(index, together, analysis.level)
        others = max(0, effect.blocks - groups) / effect.blocks
        mean = math.log(effect.ratio) + float(change.mean[index])
        # Each half-width has its own t, and their squares add (Banerjee 1961).
        low, high = (
            ratio_from_log(mean + sign * math.hypot(math.log(bound / effect.ratio) * math.sqrt(others), reach))
            for sign, bound in ((-1, effect.low), (1, effect.high))
        )
        until_s = float(np.nanmedian(measured.table[WATCHED][rows[0][len(family.copies) + index]]))
        still = abs(float(trend.mean[index])) > max(_SMALL_TREND, trend.reach(index, together, analysis.level))
        changed, verdict = ratio_from_log(float(change.mean[index])), _verdict(low, high, effect, analysis)
        steady[arm.name] = SteadyEffect(
            ratio_from_log(mean), low, high, changed, groups, until_s / 2, until_s, still, verdict
        )
    return steady


def _verdict(low: float, high: float, effect: Effect, analysis: Analysis) -> Verdict:
    """Return the verdict for an interval; it is withheld for the reasons that withhold that of the trials."""
    margin, contended = analysis.plan.margin, effect.contended
    verdict = verdict_of(low, high, margin)
    is_certain = verdict == verdict_of(low * contended.low, high * contended.high, margin)
    is_pending = is_blocked_by_slow_trials(analysis, {effect.arm, effect.reference}, effect.blocks)
    is_unfair = verdict == "slower" and Flag.REFERENCE_FAILS_MORE in effect.flags
    return verdict if is_certain and not is_pending and not is_unfair else "undecided"


def _paired(logs: Floats, family: Family, rows: Sequence[int], alike: Sequence[int]) -> _Paired | None:
    """Return the paired means of a family by arm; None below two blocks that went on.

    The variance is pooled over all processes measured alike, without the mean of each environment and block. An
    environment whose own variance is larger keeps it.
    """
    copies = len(family.copies)
    differences = log_ratios_over_copy_mean(logs[rows], copies)
    groups = np.isfinite(differences).sum(axis=1)
    alike_logs = logs[alike][:, np.isfinite(logs[rows[:copies]]).all(axis=0)]
    whole = alike_logs[np.isfinite(alike_logs).all(axis=1)]
    freedom = (whole.shape[0] - 1) * (whole.shape[1] - 1)
    if whole.shape[1] < _LEAST_GROUPS or freedom < 1:
        return None
    residuals = whole - whole.mean(axis=0) - whole.mean(axis=1, keepdims=True) + whole.mean()
    pooled = float((residuals**2).sum()) / freedom * (1.0 + 1.0 / copies)
    counts = np.maximum(groups, 1)
    mean = np.where(np.isfinite(differences), differences, 0.0).sum(axis=1) / counts
    squares = np.where(np.isfinite(differences), (differences - mean[:, None]) ** 2, 0.0).sum(axis=1)
    own = squares / np.maximum(groups - 1, 1)
    return _Paired(mean, np.maximum(pooled, own) / counts, groups.astype(np.float64), freedom)
