"""Why environments are faster or slower, as text: a line below the table, the tree of `envmatrix explain`, JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from envmatrix.plan import Arm
from envmatrix.report.group import Group
from envmatrix.stats.causes import Cause
from envmatrix.stats.explanation import Explanation
from envmatrix.stats.metrics import show_seconds
from envmatrix.stats.reasons import Finding, is_reason
from envmatrix.stats.step_parts import Interval

#: What is said once of runs whose records count no single thread.
OF_PROCESS = (
    "These trials count only their whole process, so parts are means over its CPUs: what one thread does is spread "
    "over all."
)
PARTS_NOTE = "Why, with 95 % intervals that hold for all parts at once (`envmatrix explain` has more):"
_SCALES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
#: A part that is surely less than this share of the difference is shown on the line without its interval.
_SMALL = 0.15
#: So many operators are named, if each is at least this share of the difference.
_OPERATORS, _LEAST_OPERATOR = 3, 0.1


@dataclass(frozen=True)
class Scale:
    """The unit that all times of one explanation have, and how many decimals."""

    seconds: float
    unit: str
    decimals: int

    @classmethod
    def of(cls, whole: float) -> Scale:
        """Return the scale that shows a difference with two digits."""
        seconds, unit = next(((s, u) for s, u in _SCALES if abs(whole) >= s), _SCALES[-1])
        digits = math.floor(math.log10(abs(whole) / seconds)) if whole else 0
        return cls(seconds, unit, min(2, max(0, 1 - digits)) or int(digits < 2))

    def number(self, value: float, *, signed: bool = True) -> str:
        """Return a time without its unit; 0 has no sign."""
        shown = f"{value / self.seconds:{'+' if signed else ''},.{self.decimals}f}"
        return shown if float(shown.replace(",", "")) else shown.lstrip("+-")

    def change(self, found: Interval, small: float = 0.0) -> str:
        """Return a change with its interval; without, if that leaves it smaller than ``small`` (seconds)."""
        mean = self.number(found.mean)
        if found.low is None or found.high is None or max(abs(found.low), abs(found.high)) < small:
            return mean
        return f"{mean} [{self.number(found.low)}, {self.number(found.high)}]"


def _percent(found: Interval | None) -> str:
    if found is None or found.low is None or found.high is None:
        return ""
    return f"{100 * found.mean:.0f} [{100 * found.low:.0f}, {100 * found.high:.0f}] % of it"


def whys(group: Group) -> list[tuple[str, Explanation]]:
    """Return the environments of a table whose effects are explained, in its order."""
    return [(row.arm.environment, row.why) for row in group.rows if row.why]


def notes_of(found: Iterable[Explanation]) -> tuple[str, ...]:
    """Return what has to be known to read the lines; nothing without any."""
    threads = {one.parts.together.thread for one in found}
    return (PARTS_NOTE, *((OF_PROCESS,) if False in threads else ())) if threads else ()


def line_of(found: Explanation) -> str:
    """Return the parts on one line."""
    scale = Scale.of(found.parts.whole.mean)
    small = _SMALL * abs(found.parts.whole.mean)
    parts = ", ".join(f"{part.label} {scale.change(part.change, small)}" for part in found.parts.parts)
    return f"{scale.number(found.parts.whole.mean)} {scale.unit} a {found.per}: {parts}"


def reasons_of(found: Explanation) -> list[str]:
    """Return a sentence for each sure cause of the effect, and for each rule that is met."""
    direction = found.parts.whole.mean
    sure = [
        cause for cause in found.causes.causes
        if cause.change.is_sure and cause.change.mean * direction > 0 and abs(cause.change.mean) >= _least(cause)
        and (part := found.parts.part(cause.part)) and is_reason(part, found.parts.whole)
    ]  # fmt: skip
    said = [_counted(cause, found.per) for cause in sure]
    named = _operators_of(found)
    return [*said, *([named] if named else []), *(finding_text(finding, found) for finding in found.findings)]


def _least(cause: Cause) -> float:
    """Return the fewest events that are worth a word: a hundredth of what there is."""
    return 0.01 * max(cause.before, cause.after)


def _counted(cause: Cause, per: str) -> str:
    more = "more" if cause.change.mean > 0 else "fewer"
    price = f" ({_each(cause)})" if _each(cause) else ""
    return f"{more} {cause.label}: {_count(cause.before)} -> {_count(cause.after)} a {per}{price}"


def _each(cause: Cause) -> str:
    """Return what one event costs: as measured, or else what the part changed by for each of them."""
    if cause.price_s is not None:
        return f"{show_seconds(cause.price_s, digits=2)} each"
    shown = cause.event == "minor_faults" and (cause.estimate_s or 0.0) > 0
    return f"{show_seconds(cause.estimate_s or 0.0, digits=2)} of {cause.part} time each" if shown else ""


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.2g}"


def _operators_of(found: Explanation) -> str:
    whole = found.parts.whole.mean
    large = [(name, s) for name, s in found.operators.items() if s / whole >= _LEAST_OPERATOR][:_OPERATORS]
    scale = Scale.of(whole)
    told = ", ".join(f"{name} {scale.number(seconds)} {scale.unit}" for name, seconds in large)
    return f"operators, from a profiled pass: {told}" if told else ""


def finding_text(finding: Finding, found: Explanation) -> str:
    """Return the name that a rule gives, who has it, and whether another environment confirms it."""
    arm = found.parts.arm
    who = arm.environment if found.parts.whole.mean > 0 else (arm.reference or "").partition(":")[0]
    said = f"{who}: {finding.rule.name}"
    if finding.by is None:
        return said
    scale = Scale.of(found.parts.whole.mean)
    other = f"{finding.by.arm.environment}, which changes only this, {scale.number(finding.by.whole.mean)} {scale.unit}"
    return f"{said}; {'confirmed' if finding.confirmed else 'not confirmed'}: {other}"


def tree_of(found: Explanation) -> Iterator[tuple[int, str]]:
    """Yield (depth, text) of all that is known."""
    scale, before_after = Scale.of(found.parts.whole.mean), found.parts.means("whole")
    before, after = (scale.number(value, signed=False) for value in before_after)
    yield (
        0,
        (
            f"{_name(found.parts.arm)}: {before} -> {after} {scale.unit} a {found.per}, "
            f"{scale.change(found.parts.whole)} {scale.unit} ({found.parts.blocks} blocks)"
        ),
    )
    for part in found.parts.parts:
        share = _percent(part.share)
        yield 1, f"{part.label} {scale.change(part.change)} {scale.unit}{f', {share}' if share else ''}"
        for cause in found.causes.causes:
            if cause.part == part.name and (cause.before or cause.after):
                yield 2, _priced(cause, found, scale)
        if part.name == "user":
            yield from ((2, f"{name} {scale.number(s)} {scale.unit} (profiled)") for name, s in _largest(found))
        if part.name in found.causes.unexplained:
            yield 2, f"unexplained {scale.change(found.causes.unexplained[part.name])} {scale.unit}"
    yield from ((1, f"{label}: not readable on this machine") for label in found.unread)
    yield from ((1, f"{finding_text(one, found)} -> {one.rule.remedy}") for one in found.findings)


def _name(arm: Arm) -> str:
    reference, _, where = (arm.reference or "").partition(":")
    other = "" if where.rpartition("@")[2] == arm.engine else f" on {where.rpartition('@')[2]}"
    return f"{arm.environment} against {reference}{other} ({arm.workload} on {arm.engine})"


def _largest(found: Explanation) -> list[tuple[str, float]]:
    least = 0.01 * abs(found.parts.whole.mean)
    return [(name, s) for name, s in found.operators.items() if abs(s) >= least][: 2 * _OPERATORS]


def _priced(cause: Cause, found: Explanation, scale: Scale) -> str:
    counts = f"{cause.label} {_count(cause.before)} -> {_count(cause.after)} a {found.per}"
    each = f", {_each(cause)}" if _each(cause) else ""
    return f"{counts}{each}{f': {scale.change(cause.time)} {scale.unit}' if cause.time else ''}"


def explanation_json(found: Explanation) -> dict[str, object]:
    """Return an explanation for programs: seconds and events a step (or a run), null if not known."""
    parts, arm = found.parts, found.parts.arm
    return {
        "workload": arm.workload, "engine": arm.engine, "environment": arm.environment, "reference": arm.reference,
        "per": found.per, "counted": "step thread" if parts.together.thread else "process", "blocks": parts.blocks,
        "whole_s": _interval(parts.whole),
        "parts": {
            part.name: {
                **_interval(part.change), "share": part.share and _interval(part.share),
                "unexplained_s": _interval(found.causes.unexplained.get(part.name)),
            }
            for part in parts.parts
        },
        "causes": [
            {
                "event": cause.event, "part": cause.part, "before": cause.before, "after": cause.after,
                "change": _interval(cause.change), "price_s": cause.price_s, "time_s": _interval(cause.time),
            }
            for cause in found.causes.causes
        ],
        "operators_s": dict(list(found.operators.items())[:12]),
        "reasons": [
            {
                "name": one.rule.name, "remedy": one.rule.remedy, "confirmed": one.confirmed,
                "by": one.by.arm.environment if one.by else None,
            }
            for one in found.findings
        ],
    }  # fmt: skip


def _interval(found: Interval | None) -> dict[str, float | None]:
    return {"mean": None, "low": None, "high": None} if found is None else vars(found).copy()
