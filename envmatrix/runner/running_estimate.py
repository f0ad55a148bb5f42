"""The running estimate after each block, cheap enough to be computed after every one."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from envmatrix.matrix.model import Workload
from envmatrix.plan import Plan
from envmatrix.results import Reading, Trial
from envmatrix.runner.early_estimate import clearly_behind
from envmatrix.runner.time_to_decision import decision_forecast, effect_label
from envmatrix.stats.analysis import Analysis, estimate
from envmatrix.stats.effects import Effect, Flag, may_be_best
from envmatrix.stats.measurements import MeasurementBuilder, Measurements
from envmatrix.stats.pairing import families
from envmatrix.stats.quality.equal_work import unchecked, unstable_checks
from envmatrix.stats.stopping.precision import is_precise_enough
from envmatrix.stats.stopping.racing import Race, family_data, next_arms

_CAVEATS = {
    Flag.UNEQUAL_WORK: "other work",
    Flag.FAILS_MORE: "fails more",
    Flag.UNPROVEN: "unproven",
    Flag.CONTENDED: "busy machine",
}
#: Fewer blocks have no measure of noise.
_LEAST_EARLY_BLOCKS = 2
#: The most environments named in a line.
_MAX_NAMED = 6


def _caveat_text(effect: Effect) -> str:
    """Return the caveats that must accompany a name."""
    caveats = ", ".join(text for flag, text in _CAVEATS.items() if flag in effect.flags)
    return f" ({caveats})" if caveats else ""


def _labels_text(effects: Collection[Effect], among: Collection[Effect]) -> str:
    """Return labels and caveats, the highest ratio first."""
    ordered = sorted(effects, key=lambda effect: -(effect.ratio or 0.0))
    texts = [f"{effect_label(one, among)}{_caveat_text(one)}" for one in ordered[:_MAX_NAMED]]
    return ", ".join([*texts, f"{len(ordered) - _MAX_NAMED} more"] if len(ordered) > _MAX_NAMED else texts)


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

    def outcomes(self) -> Mapping[str, Mapping[str, int]]:
        """Return how the trials of each arm ended."""
        return {arm: fact.outcomes for arm, fact in self._builder.measured().facts.items()}

    def race(self) -> Race:
        """Return which arms run in the next block; depends only on the trials on disk."""
        return next_arms(self._plan, self._builder.measured(), self._workloads)

    @property
    def analysis(self) -> Analysis:
        """The estimate of everything added so far."""
        if self._analysis is None:
            measurements = self._builder.measured()
            self._analysis = estimate(self._plan, measurements, workloads=self._workloads, metrics=())
        return self._analysis

    def _is_work_unchecked(self, workload: str) -> bool:
        unstable = unstable_checks(self._builder.measured(), self._plan, workload)
        return unchecked(self._workloads.get(workload), unstable)

    def precise_enough(self, target: float, active: Collection[str]) -> bool:
        """Return whether the intervals of the ``active`` arms are narrow enough, and were so for some blocks."""
        measurements = self._builder.measured()
        return is_precise_enough(self._plan, measurements, target, self._workloads, active or None)

    def outlook(self, budget_ends: float) -> str:
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
        behind_arms = self._clearly_behind()
        behind = _labels_text([effect for effect in effects if effect.arm in behind_arms], effects)
        rest = _labels_text([effect for effect in effects if effect.arm not in behind_arms], effects)
        texts = (f"clearly behind: {behind}" if behind else "", f"still open: {rest}" if rest else "")
        return "; ".join(text for text in texts if text)

    def _clearly_behind(self) -> set[str]:
        """Return the arms that are clearly worse than their reference in the blocks so far."""
        measured, arms = self.measured, set[str]()
        for family in families(self._plan):
            data = family_data(family, self._plan, measured, self._workloads)
            behind = clearly_behind(data.copies, data.logs)
            arms |= {arm.name for arm, is_behind in zip(family.arms, behind, strict=True) if is_behind}
        return arms

    def headline(self) -> str:
        """Return in a few words which environment is ahead.

        Without interval and verdict: who ends a run at a good result would make many uncorrected interim analyses.
        """
        effects = [effect for effect in self.analysis.primary_effects() if effect.ratio and not effect.is_control]
        if not effects:
            return "no estimate yet"
        ahead = [effect for effect in effects if (effect.ratio or 0.0) > 1.0 and may_be_best(effect)]
        if not ahead:
            return "none ahead so far"
        best = max(ahead, key=lambda effect: effect.ratio or 0.0)
        work_note = ", equal work not checked" if self._is_work_unchecked(best.workload) else ""
        return (
            f"ahead so far: {effect_label(best, effects)} {best.ratio:.2f}x{_caveat_text(best)}{work_note} "
            "(no verdict before the end)"
        )
