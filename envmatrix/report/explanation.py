"""Text on why environments are faster or slower: a line below the table, and the tree of `envmatrix explain`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from envmatrix.report.group import Group
from envmatrix.stats.attribution.causes import Cause, Finding, is_reason
from envmatrix.stats.attribution.explanation import Confirmation, Explanation
from envmatrix.stats.attribution.step_time_parts import Interval
from envmatrix.stats.metrics import show_seconds
from envmatrix.stats.step_account import FIRST_HALF

#: Note for runs whose records have no counters of a single thread.
OF_PROCESS = (
    "This run recorded CPU times of whole processes. The CPU times below are divided by the number of CPUs; counts, "
    "such as page faults, are not."
)
PARTS_NOTE = "Why: the change in time and its parts, with 95 % intervals (more: `envmatrix explain`):"
#: Whether a cause is confirmed, in words.
ANSWERS = {True: "confirmed", False: "not confirmed", None: "not yet confirmed or refuted"}
_SCALES = ((1.0, "s", 1.0), (1e-3, "ms", 1e-4), (1e-6, "us", 0.0))
#: A part surely smaller than this share of the difference is shown without its interval.
_SMALL = 0.15
#: The parts of a GPU's time in a profiled pass.
_ON_GPU = {
    "kernel_ns": "kernels",
    "copy_ns": "copies while no kernel runs",
    "collective_ns": "waits for collectives",
    "gap_ns": "gaps between launches",
}
#: The smallest change in events that is a reason, as a share of their number.
_LEAST_CHANGE = 0.01
#: Events that are rarer than this per step are shown only if they change significantly.
_RARE = 0.1
#: The most operators that are named, and the smallest share of the difference of each.
_OPERATORS, _LEAST_OPERATOR = 3, 0.1


@dataclass(frozen=True)
class Scale:
    """The unit of all times in one explanation, and their number of decimals."""

    seconds: float
    unit: str
    decimals: int

    @classmethod
    def of(cls, whole: float) -> Scale:
        """Return the scale that shows a difference with two digits."""
        seconds, unit = next((scale, name) for scale, name, least in _SCALES if abs(whole) >= least)
        digits = math.floor(math.log10(abs(whole) / seconds)) if whole else 0
        return cls(seconds, unit, min(2, max(0, 1 - digits)) or int(digits < 2))

    def number(self, value: float, *, signed: bool = True) -> str:
        """Return a time without its unit; 0 has no sign."""
        shown = f"{value / self.seconds:{'+' if signed else ''},.{self.decimals}f}"
        return shown if float(shown.replace(",", "")) else shown.lstrip("+-")

    def change_with_interval(self, found: Interval, small: float = 0.0) -> str:
        """Return a change with its interval; without it if the change is surely smaller than ``small`` (seconds)."""
        mean = self.number(found.mean)
        if found.low is None or found.high is None or max(abs(found.low), abs(found.high)) < small:
            return mean
        return f"{mean} [{self.number(found.low)}, {self.number(found.high)}]"


def _share_text(found: Interval | None) -> str:
    """Return the share of the difference, '' if parts of the other sign make it less than none or more than all."""
    if found is None or found.low is None or found.high is None or not 0 <= found.mean <= 1:
        return ""
    mean, low, high = (round(100 * value) for value in (found.mean, found.low, found.high))
    return f"{mean} [{low}, {high}] % of the difference"


def whys(group: Group) -> list[tuple[str, Explanation]]:
    """Return the environments of a table with an explained effect, in its order."""
    return [(row.arm.environment, row.why) for row in group.rows if row.why]


def any_covers_all_threads(found: Iterable[Explanation]) -> bool:
    """Return whether any explanation is of whole processes, not of one thread of each."""
    return any(not one.parts.together.thread for one in found)


def line_of(found: Explanation) -> str:
    """Return the parts on one line."""
    scale = Scale.of(found.parts.whole.mean)
    small = _SMALL * abs(found.parts.whole.mean)
    parts = ", ".join(f"{part.label} {scale.change_with_interval(part.change, small)}" for part in found.parts.parts)
    return f"{scale.number(found.parts.whole.mean)} {scale.unit} per {found.per}: {parts}"


def reasons_of(found: Explanation) -> list[str]:
    """Return a sentence for each significant cause of the effect, and for each rule that applies."""
    direction = found.parts.whole.mean
    sure = [
        cause
        for cause in found.causes.causes
        if cause.change.is_sure
        and cause.change.mean * direction > 0
        and abs(cause.change.mean) >= _LEAST_CHANGE * max(cause.before, cause.after)
        and (part := found.parts.part(cause.part))
        and is_reason(part, found.parts.whole)
    ]
    counts = [_counted(cause, found.per) for cause in sure]
    more = filter(None, (_warm_up(found), _operators_of(found)))
    return [*counts, *more, *(finding_text(finding, found) for finding in found.findings)]


def _warm_up(found: Explanation) -> str:
    """Return by how much the first half of the steps is slower, if that changes significantly as the steps do."""
    cause, whole, scale = found.causes.cause(FIRST_HALF), found.parts.whole, Scale.of(found.parts.whole.mean)
    if cause is None or not cause.change.is_sure or cause.change.mean / whole.mean < _SMALL:
        return ""
    before, after = (scale.number(value) for value in (cause.before, cause.after))
    return f"{cause.label}: adds {before} -> {after} {scale.unit} per {found.per}"


def _counted(cause: Cause, per: str) -> str:
    fewer = "less" if cause.event == "throttled_s" else "fewer"
    more = "more" if cause.change.mean > 0 else fewer
    price = f" ({_each(cause)})" if _each(cause) else ""
    return f"{more} {cause.label}: {_amounts(cause)} per {per}{price}"


def _each(cause: Cause) -> str:
    """Return the cost of one event: the measured price, otherwise the part's change per event."""
    if cause.price_s is not None:
        return f"{show_seconds(cause.price_s, digits=2)} each"
    shown = cause.event == "minor_faults" and (cause.estimate_s or 0.0) > 0
    return f"{show_seconds(cause.estimate_s or 0.0, digits=2)} of {cause.part} time each" if shown else ""


def _amounts(cause: Cause) -> str:
    show = show_seconds if cause.event == "throttled_s" else _count
    return f"{show(cause.before)} -> {show(cause.after)}"


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.2g}"


def _operators_of(found: Explanation) -> str:
    whole = found.parts.whole.mean
    large = [name for name, times in found.operators.items() if (times[1] - times[0]) / whole >= _LEAST_OPERATOR]
    texts = ", ".join(f"{name} {_both(found.operators[name], found)}" for name in large[:_OPERATORS])
    return f"operators, from a profiled pass: {texts}" if texts else ""


def finding_text(finding: Finding, found: Explanation) -> str:
    """Return the name of a rule, the environment it applies to, and whether another environment confirms it."""
    arm = found.parts.arm
    who = arm.environment if found.parts.whole.mean > 0 else found.parts.together.reference.partition(":")[0]
    cause = f"cause: in {who}, {finding.rule.name}"
    if finding.by is None:
        return cause
    scale, mean = Scale.of(found.parts.whole.mean), finding.by.whole.mean
    change = f"{'saves' if mean < 0 else 'costs'} {scale.number(mean).lstrip('+-')} {scale.unit} per {found.per}"
    answer = f"{ANSWERS[finding.confirmed]} by {finding.by.arm.environment}"
    return f"{cause} ({answer}: changing only that {change})"


def confirmation_lines(found: Confirmation) -> list[str]:
    """Return whether a cause is confirmed, and both effects on a step."""
    wanted, both = found.wanted, (found.effect, found.other)
    why = f": {found.why}" if found.why else ""
    lines = [f"{wanted.arm.shown}: {wanted.rule.name}: {ANSWERS[found.confirmed]}{why}"]
    scale = Scale.of(max((abs(side.whole.mean) for side in both if side), default=1.0))
    notes = ("", f" (it changes only this: {wanted.level[0]}={wanted.level[1]})")
    for name, side, note in zip((wanted.arm.environment, wanted.by), both, notes, strict=True):
        change = f"{scale.change_with_interval(side.whole)} {scale.unit} per {wanted.per}" if side else "not measured"
        lines.append(f"  {name}: {change}{note}")
    return lines


def tree_of(found: Explanation) -> Iterator[tuple[int, str]]:
    """Yield (depth, text) for everything known about an effect."""
    scale = Scale.of(found.parts.whole.mean)
    before, after = (scale.number(value, signed=False) for value in found.parts.means("whole"))
    change = f"{scale.change_with_interval(found.parts.whole)} {scale.unit} ({found.parts.compared_data_text})"
    yield 0, f"{_name(found)}: {before} -> {after} {scale.unit} per {found.per}, {change}"
    for part in found.parts.parts:
        share = _share_text(part.share) if part.change.is_sure else ""
        yield 1, f"{part.label} {scale.change_with_interval(part.change)} {scale.unit}{f', {share}' if share else ''}"
        for cause in found.causes.causes:
            if cause.part == part.name and (cause.change.is_sure or max(cause.before, cause.after) >= _RARE):
                yield 2, _priced(cause, found, scale)
        if part.name in found.causes.unexplained:
            yield 2, f"unexplained {scale.change_with_interval(found.causes.unexplained[part.name])} {scale.unit}"
    if warm_up := _warm_up(found):
        yield 1, warm_up
    yield from ((1, f"operator {name} {_both(times, found)} (a profiled pass)") for name, times in _largest(found))
    yield from (
        (1, f"GPU: {_ON_GPU[name]} {_both(times, found)} (a profiled pass, experimental)")
        for name, times in found.gpu.items()
    )
    if found.unread:
        yield 1, f"could not be measured: {', '.join(found.unread)}"
    for one in found.findings:
        yield 1, finding_text(one, found)
        yield 2, f"remedy: {one.rule.remedy}"


def _name(found: Explanation) -> str:
    arm, (reference, _, where) = found.parts.arm, found.parts.together.reference.partition(":")
    other = "" if where.rpartition("@")[2] == arm.engine else f" on {where.rpartition('@')[2]}"
    return f"{arm.environment} against {reference}{other} ({arm.workload} on {arm.engine})"


def _largest(found: Explanation) -> list[tuple[str, tuple[float, float]]]:
    least = 0.01 * abs(found.parts.whole.mean)
    return [(n, times) for n, times in found.operators.items() if abs(times[1] - times[0]) >= least][: 2 * _OPERATORS]


def _both(times: tuple[float, float], found: Explanation) -> str:
    scale = Scale.of(found.parts.whole.mean)
    before, after = (scale.number(seconds, signed=False) for seconds in times)
    return f"{before} -> {after} {scale.unit}"


def _priced(cause: Cause, found: Explanation, scale: Scale) -> str:
    counts = f"{cause.label} {_amounts(cause)} per {found.per}"
    each = f", {_each(cause)}" if _each(cause) else ""
    return f"{counts}{each}{f': {scale.change_with_interval(cause.time)} {scale.unit}' if cause.time else ''}"
