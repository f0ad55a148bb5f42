"""Answers to whether a named cause is confirmed by an environment that changes only this cause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from envmatrix.plan import Arm
from envmatrix.plan.schedule import arm_name
from envmatrix.stats.analysis import Analysis
from envmatrix.stats.attribution.causes import EVENTS
from envmatrix.stats.attribution.explanation import no_verdict
from envmatrix.stats.attribution.reasons import Rule, brings_back, same_events
from envmatrix.stats.attribution.step_parts import StepParts, agrees, step_parts
from envmatrix.stats.measurements import Measurements


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
    return tuple(
        _answer(
            one,
            parts.get(one.arm.name),
            parts.get(arm_name(one.by, one.arm.workload, one.arm.engine)),
            analysis,
        )
        for one in wanted
    )


def _answer(wanted: Wanted, effect: StepParts | None, other: StepParts | None, analysis: Analysis) -> Confirmation:
    if effect is None or other is None:
        return Confirmation(wanted, None, effect, other, "too few blocks with successful trials")
    found = analysis.find(wanted.arm.name)
    if found is None or not agrees(effect, found):
        reason = no_verdict(found) if found else ""
        why = f"no verdict for {wanted.arm.environment} in this run{reason and f': {reason}'}"
        return Confirmation(wanted, None, effect, other, why)
    if not same_events(other, effect, wanted.rule):
        why = f"{wanted.by} did not change the {EVENTS[wanted.rule.event][1]} here"
        return Confirmation(wanted, None, effect, other, why)
    answer = brings_back(other.whole, effect.whole)
    return Confirmation(wanted, answer, effect, other, "its interval is too wide" if answer is None else "")
