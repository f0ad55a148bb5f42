"""How each environment starts, and whether it is steady: a table, a line of its step times, and a warning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from envmatrix.report.formatting import NONE, count
from envmatrix.report.plain_table import PlainTable
from envmatrix.report.warning import Caution, Kind
from envmatrix.stats.metrics import show_seconds
from envmatrix.stats.startup import Start
from envmatrix.stats.steady import Steadiness

_STARTS = (
    "Start-up: from the start of the process until its first step can begin. Time to steps: to the end of so many "
    "steps, as many as a trial has. Medians over trials, or the long look's."
)
_LOOKS = (
    " State and step times (over its seconds, low is fast) are of one process, the long look; first to steady is how "
    "much its speed changed from the steps that trials time to its steady state. What the baseline has too is "
    "likely the machine."
)
_MARKS = "▁▂▃▄▅▆▇█"
_LETTERS = 16


def start_table(starts: Sequence[Start]) -> PlainTable | None:
    """Return the table, None where nothing is known of any start."""
    if not starts:
        return None
    several = len({(start.arm.workload, start.arm.engine) for start in starts}) > 1
    looked = any(start.steady or start.failed for start in starts)
    head = ("arm" if several else "environment", "start-up", "steps", "time to steps")
    more = ("state", "first to steady", "step times") if looked else ()
    return PlainTable((*head, *more), tuple(_row(start, several, looked) for start in starts))


def starts_note(found: PlainTable | None) -> str:
    """Return what is said below the table, of the columns that it has."""
    return _STARTS + (_LOOKS if found and "state" in found.head else "")


def _row(start: Start, several: bool, looked: bool) -> tuple[str, ...]:
    arm = start.arm
    name = f"{arm.environment}, {arm.workload} on {arm.engine}" if several else arm.environment
    first = (name, _seconds(start.ready_s), str(start.steps), _seconds(start.first_s))
    if not looked:
        return first
    percent = None if start.change is None else round(100 * start.change)
    change = NONE if percent is None else f"{percent:+d}%" if percent else "0%"
    return (*first, "no look" if start.failed else state(start.steady), change, spark(start.curve))


def state(steady: Steadiness | None) -> str:
    """Say in a few words what a long look showed."""
    if steady is None:
        return NONE
    if steady.steps is None or steady.seconds is None or not steady.steps:
        return steady.kind
    return f"{steady.kind}, {count(steady.steps, 'step')} ({show_seconds(steady.seconds)})"


def _seconds(value: float | None) -> str:
    return NONE if value is None else show_seconds(value)


def spark(curve: Sequence[tuple[float, float]]) -> str:
    """Draw step times over time as a line of characters; what is beyond twice the median is cut off."""
    if not curve:
        return NONE
    end = curve[-1][0]
    parts: list[list[float]] = [[] for _ in range(_LETTERS)]
    for at, step in curve:
        parts[min(_LETTERS - 1, int(_LETTERS * at / end))].append(step)
    known = [median(part) for part in parts if part]
    low, high = min(known), min(max(known), 2 * median(known))
    wide = max(high - low, 0.2 * low)
    return "".join(_MARKS[round(7 * (min(median(part), high) - low) / wide)] if part else " " for part in parts)


def start_cautions(starts: Sequence[Start]) -> Iterator[Caution]:
    """Yield a warning for the environments that are not steady, and one for those whose trials time the warm-up too."""
    never = [start for start in starts if start.steady and start.steady.kind == "not steady"]
    if never:
        yield Caution(
            Kind.NOT_STEADY, ", ".join(dict.fromkeys(start.arm.environment for start in never)),
            "the steps of the long look did not come to a steady state",
            "if the baseline is among them, it is likely the machine: repeat it on a quieter one; else what the timed "
            "steps gain need not be what a long training gains",
        )  # fmt: skip
    late = [start for start in starts if start.too_early and start not in never]
    if late:
        steps = max(start.steady.steps or 0 for start in late if start.steady)
        worst = max(late, key=lambda start: (start.steady.steps or 0) if start.steady else 0)
        yield Caution(
            Kind.TIMES_WARM_UP, ", ".join(dict.fromkeys(start.arm.environment for start in late)),
            f"steps {worst.warm_up + 1} to {worst.steps}, which trials time, are not yet steady: "
            f"{worst.arm.environment} is from step {steps + 1} on",
            f"set `warmup_steps: {-(-steps // 10) * 10}` in workload {worst.arm.workload}, if a long training is meant",
        )  # fmt: skip
