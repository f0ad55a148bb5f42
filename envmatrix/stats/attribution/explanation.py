"""Explanation of why environments are faster or slower: the parts of a step, their causes, and the rules that apply.

A cause is confirmed if an environment that changes only this cause has most of the effect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from envmatrix.plan import Arm, arm_name
from envmatrix.results import Run
from envmatrix.stats.attribution.causes import (
    EVENTS,
    Case,
    Explained,
    Finding,
    Rule,
    event_counts_change_alike,
    explained,
    findings,
    reproduces_most_of_change,
)
from envmatrix.stats.attribution.step_time_parts import Interval, StepParts, agrees, pair_parts, step_parts
from envmatrix.stats.effect_estimation import Analysis
from envmatrix.stats.effects import Effect, Flag
from envmatrix.stats.measurements import Measurements
from envmatrix.stats.quality.contention import EXPLAINED
from envmatrix.stats.step_account import PARTS


@dataclass(frozen=True)
class Explanation:
    """Why an environment's step is shorter or longer than its reference's. ``per``: "step", or "run" of a program.

    ``operators`` maps an operator to its own seconds per step in the reference and in the environment, from a profiled
    pass, largest change first. ``gpu`` does so for the parts of a GPU's time (``evidence.record.GpuTime``).
    """

    parts: StepParts
    causes: Explained
    findings: tuple[Finding, ...]
    per: str
    operators: Mapping[str, tuple[float, float]]
    gpu: Mapping[str, tuple[float, float]]

    @property
    def unread(self) -> tuple[str, ...]:
        """The parts and events that were not counted."""
        known = {part.name for part in self.parts.parts} | {cause.event for cause in self.causes.causes}
        labels = PARTS | {event: label for event, (part, label) in EVENTS.items() if part}
        return tuple(label for name, label in labels.items() if name not in known)


def explain(run: Run, measured: Measurements, analysis: Analysis) -> dict[str, Explanation]:
    """Return, by arm, the explanation of every significant effect."""
    parts = step_parts(analysis, measured)
    shown = {name: step for name, step in parts.items() if (effect := analysis.find(name)) and agrees(step, effect)}
    causes: dict[str, Explained] = {}
    for name, step in shown.items():
        if name not in causes:
            causes |= explained([other for other in shown.values() if other.together is step.together])
    return {name: _explanation(step, parts, causes[name], run, measured) for name, step in shown.items()}


def why_no_verdict(effect: Effect) -> str:
    """Return why a verdict is missing or withheld, '' if neither is so."""
    if effect.missing:
        return f"a verdict needs {effect.blocks + effect.missing} blocks, and there are {effect.blocks}"
    return EXPLAINED if effect.withheld == Flag.CONTENDED else effect.withheld


def why_not(effect: Effect, parts: StepParts | None) -> str:
    """Return why an effect, whose step has these parts, has no explanation."""
    if reason := why_no_verdict(effect):
        return f"{effect.verdict}: {reason}"
    if effect.verdict not in ("faster", "slower"):
        return f"{effect.verdict}: no clear difference, so nothing to explain"
    if parts is None:
        return "its records do not split the time of a step into parts"
    if not parts.whole.is_sure:
        return f"{effect.verdict}, but {parts.compared_data_text} are too few to say which part of a step changed"
    return f"{effect.verdict}, but a step is not: it does another amount of work"


def explain_pair(
    run: Run, measured: Measurements, analysis: Analysis, pair: tuple[Arm, Arm], effect: Effect
) -> Explanation | None:
    """Return why one of two arms is faster, as in the report's table; None if there is no significant difference."""
    old, new = pair
    parts = step_parts(analysis, measured).get(new.name) if new.reference == old.name else None
    parts = parts or pair_parts(run.plan, old, new, measured, analysis.level)
    if parts is None or not agrees(parts, effect):
        return None
    return _explanation(parts, {}, explained([parts])[new.name], run, measured)


def explain_runs(
    parts: StepParts, run: Run, measured: tuple[Measurements, Measurements], *, faster: bool
) -> Explanation | None:
    """Return why an arm is faster or slower in a newer run than in older ones; None if its steps do not agree.

    ``run`` is the newer one, and ``measured`` are an older one and the newer one.
    """
    if not parts.whole.is_sure or (parts.whole.mean < 0) != faster:
        return None
    before, after = (each.facts[parts.arm.name] for each in measured)
    case = Case(parts, explained([parts])[parts.arm.name], before, after)
    return _explained(case, findings(case, {}, None), run)


def _explanation(
    step: StepParts, parts: Mapping[str, StepParts], causes: Explained, run: Run, measured: Measurements
) -> Explanation:
    arm, reference = step.arm, next(other for other in run.plan.arms if other.name == step.together.reference)
    beside = {
        name: (other, run.environments.get(other.arm.runs))
        for name, other in parts.items()
        if (other.arm.reference, other.arm.engine) == (arm.reference, arm.engine)
    }
    case = Case(step, causes, measured.facts[reference.name], measured.facts[arm.name])
    return _explained(case, findings(case, beside, run.environments.get(reference.runs)), run)


def _explained(case: Case, applicable: tuple[Finding, ...], run: Run) -> Explanation:
    per = "run" if run.workloads[case.parts.arm.workload].command else "step"
    before, after = case.reference, case.environment
    operators, gpu = _profiled(before.operators, after.operators), _profiled(before.gpu, after.gpu)
    return Explanation(case.parts, case.explained, applicable, per, operators, gpu)


def _profiled(before: Mapping[str, list[float]], after: Mapping[str, list[float]]) -> dict[str, tuple[float, float]]:
    """Return the time of each operator or part on both sides, as means over profiled trials; none if one has none."""
    if not before or not after:
        return {}
    trials = [max(map(len, side.values())) for side in (before, after)]
    times = {
        name: (sum(before.get(name, ())) / trials[0], sum(after.get(name, ())) / trials[1])
        for name in {**before, **after}
    }
    return dict(sorted(times.items(), key=lambda item: -abs(item[1][1] - item[1][0])))


def to_json(explanation: Explanation) -> dict[str, object]:
    """Return an explanation as JSON values: seconds and events per step (or run), null if not known."""
    parts, arm = explanation.parts, explanation.parts.arm
    return {
        "workload": arm.workload,
        "engine": arm.engine,
        "environment": arm.environment,
        "reference": parts.together.reference,
        "per": explanation.per,
        "counted": "step thread" if parts.together.thread else "process",
        "blocks": parts.blocks,
        "whole_s": _interval(parts.whole),
        "parts": {
            part.name: {
                **_interval(part.change),
                "share": part.share and _interval(part.share),
                "unexplained_s": _interval(explanation.causes.unexplained.get(part.name)),
            }
            for part in parts.parts
        },
        "causes": [
            {
                "event": cause.event,
                "part": cause.part or None,
                "before": cause.before,
                "after": cause.after,
                "change": _interval(cause.change),
                "price_s": cause.price_s,
                "time_s": _interval(cause.time),
            }
            for cause in explanation.causes.causes
        ],
        "operators_s": dict(list(explanation.operators.items())[:12]),
        "gpu_s": {name.removesuffix("_ns"): times for name, times in explanation.gpu.items()},
        "reasons": [
            {
                "name": finding.rule.name,
                "remedy": finding.rule.remedy,
                "confirmed": finding.confirmed,
                "by": finding.by.arm.environment if finding.by else None,
            }
            for finding in explanation.findings
        ],
    }


def _interval(interval: Interval | None) -> dict[str, float | None]:
    return {"mean": None, "low": None, "high": None} if interval is None else vars(interval).copy()


@dataclass(frozen=True)
class Wanted:
    """A cause to confirm: of the difference of ``arm`` from ``reference``, by an environment that changes only this.

    ``by`` is the name of that environment, and ``level`` (factor, level) its difference from ``reference``.
    """

    arm: Arm
    reference: str
    per: str
    rule: Rule
    by: str
    level: tuple[str, str]


@dataclass(frozen=True)
class Confirmation:
    """Whether the environment that changes only one cause has at least half of the effect (None: not known).

    ``effect`` and ``other`` are the parts of the explained environment and of that one. ``why``: why it is not known.
    """

    wanted: Wanted
    confirmed: bool | None
    effect: StepParts | None
    other: StepParts | None
    why: str = ""

    def to_json(self) -> dict[str, object]:
        """Return it as JSON values: seconds per step (or run), null if not known."""
        wanted = self.wanted
        return {
            "workload": wanted.arm.workload,
            "engine": wanted.arm.engine,
            "environment": wanted.arm.environment,
            "reference": wanted.reference,
            "cause": wanted.rule.name,
            "by": wanted.by,
            "confirmed": self.confirmed,
            "not_known": self.why,
            "per": wanted.per,
            "environment_s": vars(self.effect.whole) if self.effect else None,
            "by_s": vars(self.other.whole) if self.other else None,
        }


def confirm(analysis: Analysis, measured: Measurements, wanted: Sequence[Wanted]) -> tuple[Confirmation, ...]:
    """Return the answer for each wanted cause, from a run that has its environments in the same blocks."""
    parts = step_parts(analysis, measured)
    return tuple(_confirmation(cause, parts, analysis) for cause in wanted)


def _confirmation(wanted: Wanted, parts: Mapping[str, StepParts], analysis: Analysis) -> Confirmation:
    arm = wanted.arm
    effect, other = parts.get(arm.name), parts.get(arm_name(wanted.by, arm.workload, arm.engine))
    if effect is None or other is None:
        return Confirmation(wanted, None, effect, other, "too few blocks with successful trials")
    trial_effect = analysis.find(arm.name)
    if trial_effect is None or not agrees(effect, trial_effect):
        reason = why_no_verdict(trial_effect) if trial_effect else ""
        why = f"no verdict for {arm.environment} in this run{reason and f': {reason}'}"
        return Confirmation(wanted, None, effect, other, why)
    if not event_counts_change_alike(other, effect, wanted.rule):
        why = f"{wanted.by} did not change the {EVENTS[wanted.rule.event][1]} here"
        return Confirmation(wanted, None, effect, other, why)
    answer = reproduces_most_of_change(other.whole, effect.whole)
    return Confirmation(wanted, answer, effect, other, "its interval is too wide" if answer is None else "")
