"""The running estimate after each block, cheap enough to be computed after every one.

Before a verdict is possible it says which arms are clearly behind; then who is ahead, and the block at which each
undecided interval will be narrow enough.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from envmatrix.durations_and_sizes import MOST_BLOCKS
from envmatrix.matrix.model import Workload
from envmatrix.plan import Plan
from envmatrix.results import Reading, Trial
from envmatrix.stats.effect_estimation import Analysis, estimate
from envmatrix.stats.effects import CONFIDENCE, Effect, Flag, can_be_called_best
from envmatrix.stats.inference.maxt import student_quantile
from envmatrix.stats.measurements import MeasurementBuilder, Measurements
from envmatrix.stats.pairing import families
from envmatrix.stats.quality.equal_work import unchecked, unstable_checks
from envmatrix.stats.stopping.precision import is_precise_enough
from envmatrix.stats.stopping.racing import Race, family_data, next_arms

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
#: The most environments named in a line.
_MAX_NAMED = 6
#: Fewer blocks have no measure of noise.
_LEAST_EARLY_BLOCKS = 2
#: The chance that a line of progress calls any of several identical arms behind. All lines before a verdict together
#: err in about 2 % of runs with equal noise, and in up to 10 % if one arm is ten times noisier than the others.
_ERROR = 0.01
_CAVEATS = {
    Flag.UNEQUAL_WORK: "other work",
    Flag.FAILS_MORE: "fails more",
    Flag.UNPROVEN: "unproven",
    Flag.CONTENDED: "busy machine",
}


def total_blocks_for_width(effect: Effect, target: float) -> int | None:
    """Return after how many blocks in all an interval has about the width ``target``; None if unknown.

    Assumes a constant spread: the width follows Student's t and the square root of the blocks.
    """
    blocks_so_far, width = effect.blocks, effect.half_width
    if width is None or blocks_so_far < 2:
        return None
    if width <= target:
        return blocks_so_far
    first_estimate = blocks_so_far * (math.log1p(width) / math.log1p(target)) ** 2
    refined = first_estimate
    for _ in range(5):  # t depends on the result; each pass comes several times closer
        refined = max(first_estimate * (_critical_t(refined) / _critical_t(blocks_so_far)) ** 2, blocks_so_far + 1)
    return math.ceil(refined)


def _critical_t(blocks: float) -> float:
    return student_quantile(max(blocks, 2.0), (1 + CONFIDENCE) / 2)


def effect_label(effect: Effect, among: Collection[Effect]) -> str:
    """Return an effect's name in the form of an arm's, with only the parts that distinguish it from the others."""
    workload = f":{effect.workload}" if len({other.workload for other in among}) > 1 else ""
    engine = f"@{effect.engine}" if len({other.engine for other in among}) > 1 else ""
    return f"{effect.environment}{workload}{engine}"


def _list_first(texts: Sequence[str], rest: str = "more") -> str:
    """Return the first texts, and how many there are besides."""
    omitted = len(texts) - _MAX_NAMED
    return ", ".join([*texts[:_MAX_NAMED], *([f"{omitted} {rest}"] if omitted > 0 else [])])


def decision_forecast(effects: Collection[Effect], target: float, budget_ends: float) -> str:
    """Return about which block each open interval is as narrow as ``target``; '' if none is open or known.

    ``budget_ends`` is the block at which the budget is spent.
    """
    forecasts = [
        (blocks, effect_label(effect, effects))
        for effect in effects
        if (blocks := total_blocks_for_width(effect, target)) is not None and blocks > effect.blocks
    ]
    if not forecasts:
        return ""
    forecasts.sort()
    near = [(blocks, name) for blocks, name in forecasts if blocks <= MOST_BLOCKS]
    far = _list_first([name for blocks, name in forecasts if blocks > MOST_BLOCKS])
    texts = [_list_first([f"{name} {blocks}" for blocks, name in near], f"more by {near[-1][0]}")] if near else []
    texts += [f"{far} beyond {MOST_BLOCKS}"] if far else []
    return f"±{target:.1%} at about block: {'; '.join(texts)} (the budget ends at about {budget_ends:.0f})"


def clearly_worse_than_reference(copies: Floats, logs: Floats) -> Bools:
    """Return which rows of ``logs`` are clearly worse than the mean of the reference's ``copies``.

    Both are (rows, blocks), higher is better. Two blocks are too few for a variance of each row, so one-sided t tests
    use that of all rows within blocks, or the row's own if it is larger. Rows without a number, and blocks that lack
    one of another row, do not count. None is behind below 2 blocks.
    """
    behind = np.zeros(len(logs), dtype=np.bool_)
    present = np.isfinite(logs).any(axis=1)
    rows = np.vstack([copies[np.isfinite(copies).any(axis=1)], logs[present]])
    rows = rows[:, np.isfinite(rows).all(axis=0)]
    arms, blocks = int(present.sum()), rows.shape[1]
    used_copies = len(rows) - arms
    if not arms or not used_copies or blocks < 2:
        return behind
    differences = rows[used_copies:] - rows[:used_copies].mean(axis=0)
    residuals = rows - rows.mean(axis=0)
    residuals -= residuals.mean(axis=1, keepdims=True)
    freedom = (len(rows) - 1) * (blocks - 1)
    shared = float((residuals**2).sum()) / freedom * (1.0 + 1.0 / used_copies)
    errors = np.sqrt(np.maximum(shared, differences.var(axis=1, ddof=1)) / blocks)
    behind[present] = differences.mean(axis=1) < -student_quantile(freedom + 1, 1.0 - _ERROR / arms) * errors
    return behind


def _caveat_text(effect: Effect) -> str:
    """Return the caveats that must accompany a name."""
    caveats = ", ".join(text for flag, text in _CAVEATS.items() if flag in effect.flags)
    return f" ({caveats})" if caveats else ""


def _labels_text(effects: Collection[Effect], among: Collection[Effect]) -> str:
    """Return labels and caveats, the highest ratio first."""
    ordered = sorted(effects, key=lambda effect: -(effect.ratio or 0.0))
    return _list_first([f"{effect_label(effect, among)}{_caveat_text(effect)}" for effect in ordered])


class RunningEstimate:
    """Collects trials as they end, and computes estimates on demand."""

    def __init__(self, plan: Plan, workloads: Mapping[str, Workload]) -> None:
        self._plan = plan
        self._workloads = workloads
        self._builder = MeasurementBuilder(plan)
        self._analysis: Analysis | None = None

    def add(self, trial: Reading | Trial) -> None:
        """Add a trial."""
        self._builder.add(trial)
        self._analysis = None

    @property
    def measured(self) -> Measurements:
        """The measurements so far."""
        return self._builder.measured()

    def race(self) -> Race:
        """Return which arms run in the next block; depends only on the trials on disk."""
        return next_arms(self._plan, self.measured, self._workloads)

    @property
    def analysis(self) -> Analysis:
        """The estimate of everything added so far."""
        if self._analysis is None:
            self._analysis = estimate(self._plan, self.measured, workloads=self._workloads, metrics=())
        return self._analysis

    def _is_work_unchecked(self, workload: str) -> bool:
        unstable = unstable_checks(self.measured, self._plan, workload)
        return unchecked(self._workloads.get(workload), unstable)

    def precise_enough(self, target: float, active: Collection[str]) -> bool:
        """Return whether the intervals of the ``active`` arms are narrow enough, and were so for some blocks."""
        return is_precise_enough(self._plan, self.measured, target, self._workloads, active or None)

    def decision_forecast(self, budget_ends: float) -> str:
        """Return when each undecided interval of the active arms will be narrow enough; '' if unknown."""
        active = self.race().active if self._plan.race else ()
        effects = [effect for effect in self.analysis.primary_effects() if not active or effect.arm in active]
        return decision_forecast(effects, self._plan.target, budget_ends)

    def early_headline(self) -> str:
        """Return which environments are clearly behind, and which are open, before a verdict is possible.

        No ratio, as so few blocks have a very wide interval, and no verdict, for the reason of ``headline``. '' if
        nothing is known.
        """
        effects = [effect for effect in self.analysis.primary_effects() if effect.ratio and not effect.is_control]
        if max((effect.blocks for effect in effects), default=0) < _LEAST_EARLY_BLOCKS:
            return ""
        behind_arms = self._clearly_worse_than_reference()
        behind = _labels_text([effect for effect in effects if effect.arm in behind_arms], effects)
        rest = _labels_text([effect for effect in effects if effect.arm not in behind_arms], effects)
        texts = (f"clearly behind: {behind}" if behind else "", f"still open: {rest}" if rest else "")
        return "; ".join(text for text in texts if text)

    def _clearly_worse_than_reference(self) -> set[str]:
        """Return the arms that are clearly worse than their reference in the blocks so far."""
        measured, arms = self.measured, set[str]()
        for family in families(self._plan):
            data = family_data(family, self._plan, measured, self._workloads)
            behind = clearly_worse_than_reference(data.copies, data.logs)
            arms |= {arm.name for arm, is_behind in zip(family.arms, behind, strict=True) if is_behind}
        return arms

    def headline(self) -> str:
        """Return in a few words which environment is ahead, without its ratio.

        Without interval and verdict: who ends a run at a good result would make many uncorrected interim analyses.
        """
        effects = [effect for effect in self.analysis.primary_effects() if effect.ratio and not effect.is_control]
        if not effects:
            return "no estimate yet"
        ahead = [effect for effect in effects if (effect.ratio or 0.0) > 1.0 and can_be_called_best(effect)]
        if not ahead:
            return "none ahead so far"
        best = max(ahead, key=lambda effect: effect.ratio or 0.0)
        work_note = ", equal work not checked" if self._is_work_unchecked(best.workload) else ""
        return f"ahead so far: {effect_label(best, effects)}{_caveat_text(best)}{work_note} (no verdict before the end)"
