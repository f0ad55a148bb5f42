"""Explanation of why environments are faster or slower: the parts of a step, their causes, and the rules that apply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from envmatrix.plan import Arm
from envmatrix.results import Run
from envmatrix.stats.analysis import Analysis
from envmatrix.stats.attribution.causes import EVENTS, Explained, explained
from envmatrix.stats.attribution.reasons import Case, Finding, findings
from envmatrix.stats.attribution.step_parts import Interval, StepParts, agrees, pair_parts, step_parts
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
    shown = {name: one for name, one in parts.items() if (effect := analysis.find(name)) and agrees(one, effect)}
    causes: dict[str, Explained] = {}
    for name, one in shown.items():
        if name not in causes:
            causes |= explained([other for other in shown.values() if other.together is one.together])
    return {name: _explanation(one, parts, causes[name], run, measured) for name, one in shown.items()}


def no_verdict(effect: Effect) -> str:
    """Return why a verdict is missing or withheld, '' if neither is so."""
    if effect.missing:
        return f"a verdict needs {effect.blocks + effect.missing} blocks, and there are {effect.blocks}"
    return EXPLAINED if effect.withheld == Flag.CONTENDED else effect.withheld


def why_not(effect: Effect, parts: StepParts | None) -> str:
    """Return why an effect, whose step has these parts, has no explanation."""
    if reason := no_verdict(effect):
        return f"{effect.verdict}: {reason}"
    if effect.verdict not in ("faster", "slower"):
        return f"{effect.verdict}: no clear difference, so nothing to explain"
    if parts is None:
        return "its records do not split the time of a step into parts"
    if not parts.whole.is_sure:
        return f"{effect.verdict}, but {parts.seen} are too few to say which part of a step changed"
    return f"{effect.verdict}, but a step is not: it does another amount of work"


def explain_pair(
    run: Run, measured: Measurements, analysis: Analysis, pair: tuple[Arm, Arm], effect: Effect
) -> Explanation | None:
    """Return why one of two arms is faster, as in the report's table; None if there is no significant difference."""
    old, new = pair
    one = step_parts(analysis, measured).get(new.name) if new.reference == old.name else None
    one = one or pair_parts(run.plan, old, new, measured, analysis.level)
    if one is None or not agrees(one, effect):
        return None
    return _explanation(one, {}, explained([one])[new.name], run, measured)


def explain_runs(
    one: StepParts, run: Run, measured: tuple[Measurements, Measurements], *, faster: bool
) -> Explanation | None:
    """Return why an arm is faster or slower in a newer run than in older ones; None if its steps do not agree.

    ``run`` is the newer one, and ``measured`` are an older one and the newer one.
    """
    if not one.whole.is_sure or (one.whole.mean < 0) != faster:
        return None
    before, after = (each.facts[one.arm.name] for each in measured)
    case = Case(one, explained([one])[one.arm.name], before, after)
    return _explained(case, findings(case, {}, None), run)


def _explanation(
    one: StepParts, parts: Mapping[str, StepParts], causes: Explained, run: Run, measured: Measurements
) -> Explanation:
    arm, reference = one.arm, next(other for other in run.plan.arms if other.name == one.together.reference)
    beside = {
        name: (other, run.environments.get(other.arm.runs))
        for name, other in parts.items()
        if (other.arm.reference, other.arm.engine) == (arm.reference, arm.engine)
    }
    case = Case(one, causes, measured.facts[reference.name], measured.facts[arm.name])
    return _explained(case, findings(case, beside, run.environments.get(reference.runs)), run)


def _explained(case: Case, found: tuple[Finding, ...], run: Run) -> Explanation:
    per = "run" if run.workloads[case.parts.arm.workload].command else "step"
    return Explanation(
        case.parts,
        case.explained,
        found,
        per,
        _profiled(case.reference.operators, case.environment.operators),
        _profiled(case.reference.gpu, case.environment.gpu),
    )


def _profiled(before: Mapping[str, list[float]], after: Mapping[str, list[float]]) -> dict[str, tuple[float, float]]:
    """Return the time of each operator or part on both sides, as means over profiled trials; none if one has none."""
    if not before or not after:
        return {}
    trials = [max(map(len, side.values())) for side in (before, after)]
    found = {
        name: (sum(before.get(name, ())) / trials[0], sum(after.get(name, ())) / trials[1])
        for name in {**before, **after}
    }
    return dict(sorted(found.items(), key=lambda item: -abs(item[1][1] - item[1][0])))


def to_json(found: Explanation) -> dict[str, object]:
    """Return an explanation as JSON values: seconds and events per step (or run), null if not known."""
    parts, arm = found.parts, found.parts.arm
    return {
        "workload": arm.workload,
        "engine": arm.engine,
        "environment": arm.environment,
        "reference": parts.together.reference,
        "per": found.per,
        "counted": "step thread" if parts.together.thread else "process",
        "blocks": parts.blocks,
        "whole_s": _interval(parts.whole),
        "parts": {
            part.name: {
                **_interval(part.change),
                "share": part.share and _interval(part.share),
                "unexplained_s": _interval(found.causes.unexplained.get(part.name)),
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
            for cause in found.causes.causes
        ],
        "operators_s": dict(list(found.operators.items())[:12]),
        "gpu_s": {name.removesuffix("_ns"): times for name, times in found.gpu.items()},
        "reasons": [
            {
                "name": one.rule.name,
                "remedy": one.rule.remedy,
                "confirmed": one.confirmed,
                "by": one.by.arm.environment if one.by else None,
            }
            for one in found.findings
        ],
    }


def _interval(found: Interval | None) -> dict[str, float | None]:
    return {"mean": None, "low": None, "high": None} if found is None else vars(found).copy()
