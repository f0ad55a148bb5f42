"""Why environments are faster or slower: the parts of a step, their causes, and names that rules give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from envmatrix.results import Run
from envmatrix.stats.analysis import Analysis
from envmatrix.stats.causes import Explained, explained
from envmatrix.stats.effects import Effect
from envmatrix.stats.measurements import Measurements
from envmatrix.stats.reasons import Case, Finding, findings
from envmatrix.stats.step_account import PARTS
from envmatrix.stats.step_parts import StepParts, agrees, step_parts


@dataclass(frozen=True)
class Explanation:
    """Why one environment's step is shorter or longer than its reference's. ``per`` is "step", or "run" of a program.

    ``operators`` maps an operator to its change in seconds a step, from a profiled pass, the largest first.
    """

    parts: StepParts
    causes: Explained
    findings: tuple[Finding, ...]
    per: str
    operators: Mapping[str, float]

    @property
    def unread(self) -> tuple[str, ...]:
        """The parts that this machine does not count."""
        known = {part.name for part in self.parts.parts}
        return tuple(label for name, label in PARTS.items() if name not in known)


def explain(run: Run, measured: Measurements, analysis: Analysis) -> dict[str, Explanation]:
    """Return, by arm, why every effect that is shown is what it is."""
    parts = step_parts(analysis, measured)
    shown = {name: one for name, one in parts.items() if (effect := analysis.find(name)) and agrees(one, effect)}
    causes: dict[str, Explained] = {}
    for name, one in shown.items():
        if name not in causes:
            causes |= explained([other for other in shown.values() if other.together is one.together])
    return {name: _explanation(one, parts, causes[name], run, measured) for name, one in shown.items()}


def why_not(effect: Effect) -> str:
    """Say why an effect has no explanation."""
    if effect.verdict not in ("faster", "slower"):
        return f"{effect.verdict}: only differences that are shown are explained"
    return "its records do not say where the time of a step went"


def _explanation(
    one: StepParts, parts: Mapping[str, StepParts], causes: Explained, run: Run, measured: Measurements
) -> Explanation:
    arm, reference = one.arm, next(other for other in run.plan.arms if other.name == one.arm.reference)
    beside = {
        name: (other, run.environments.get(other.arm.runs))
        for name, other in parts.items() if (other.arm.reference, other.arm.engine) == (arm.reference, arm.engine)
    }  # fmt: skip
    before, after = measured.facts[reference.name], measured.facts[arm.name]
    return Explanation(
        one, causes, findings(Case(one, causes, before, after), beside, run.environments.get(reference.runs)),
        "run" if run.workloads[arm.workload].command else "step", _operators(before.operators, after.operators),
    )  # fmt: skip


def _operators(before: Mapping[str, list[float]], after: Mapping[str, list[float]]) -> dict[str, float]:
    """Return by how much each operator's own time changes, means over profiled trials; none if one side has none."""
    if not before or not after:
        return {}
    trials = [max(map(len, side.values())) for side in (before, after)]
    changes = {
        name: sum(after.get(name, ())) / trials[1] - sum(before.get(name, ())) / trials[0]
        for name in {**before, **after}
    }
    return dict(sorted(changes.items(), key=lambda item: -abs(item[1])))
