"""The start of each environment and its steady state: a table, a sparkline of step times, and warnings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from envmatrix.report.formatting import NONE, format_count
from envmatrix.report.tables.table_model import PlainTable
from envmatrix.report.warning import RunWarning, WarningKind
from envmatrix.stats.metrics import show_seconds
from envmatrix.stats.steady_state.detection import Steadiness
from envmatrix.stats.steady_state.startup import Start

_START_NOTE = (
    "Start-up: from the start of the process until its first step can begin. Time to steps: until the end of the "
    "number of steps that a trial has. Medians over trials, or the values of the steady-state run."
)
_STEADY_NOTE = (
    " State and step times (over time, low is fast) are of one process, the steady-state run. First to steady: the "
    "change of its speed from the steps that trials time to its steady state. A change that the baseline shows too "
    "probably comes from the machine."
)
_MARKS = "▁▂▃▄▅▆▇█"
_LETTERS = 16


def start_table(starts: Sequence[Start]) -> PlainTable | None:
    """Return the table, None without data on any start."""
    if not starts:
        return None
    several = len({(start.arm.workload, start.arm.engine) for start in starts}) > 1
    has_steady_runs = any(start.steady or start.failed for start in starts)
    head = ("arm" if several else "environment", "start-up", "steps", "time to steps")
    steady_head = ("state", "first to steady", "step times") if has_steady_runs else ()
    return PlainTable((*head, *steady_head), tuple(_row(start, several, has_steady_runs) for start in starts))


def starts_note(table: PlainTable) -> str:
    """Return the note below the table, for the columns that it has."""
    return _START_NOTE + (_STEADY_NOTE if "state" in table.head else "")


def _row(start: Start, several: bool, has_steady_runs: bool) -> tuple[str, ...]:
    arm = start.arm
    name = f"{arm.environment}, {arm.workload} on {arm.engine}" if several else arm.environment
    start_cells = (name, _seconds(start.ready_s), str(start.steps), _seconds(start.first_s))
    if not has_steady_runs:
        return start_cells
    percent = None if start.change is None else round(100 * start.change)
    change = NONE if percent is None else f"{percent:+d}%" if percent else "0%"
    return (
        *start_cells,
        "no look" if start.failed else format_steadiness(start.steady),
        change,
        step_time_sparkline(start.curve),
    )


def format_steadiness(steady: Steadiness | None) -> str:
    """Format the result of a steady-state run in a few words."""
    if steady is None:
        return NONE
    if not steady.steps or steady.seconds is None:
        return steady.kind
    return f"{steady.kind}, {format_count(steady.steps, 'step')} ({show_seconds(steady.seconds)})"


def _seconds(value: float | None) -> str:
    return NONE if value is None else show_seconds(value)


def step_time_sparkline(curve: Sequence[tuple[float, float]]) -> str:
    """Draw step times over time as a line of characters, cut off at twice the median."""
    if not curve:
        return NONE
    end = curve[-1][0]
    parts: list[list[float]] = [[] for _ in range(_LETTERS)]
    for seconds, step in curve:
        parts[min(_LETTERS - 1, int(_LETTERS * seconds / end))].append(step)
    medians = [median(part) for part in parts if part]
    low, high = min(medians), min(max(medians), 2 * median(medians))
    wide = max(high - low, 0.2 * low)
    return "".join(_MARKS[round(7 * (min(median(part), high) - low) / wide)] if part else " " for part in parts)


def start_warnings(starts: Sequence[Start]) -> Iterator[RunWarning]:
    """Yield a warning for environments without a steady state, and one for trials that time the warm-up."""
    unsteady = [start for start in starts if start.steady and start.steady.kind == "not steady"]
    if unsteady:
        yield RunWarning(
            WarningKind.NOT_STEADY,
            ", ".join(dict.fromkeys(start.arm.environment for start in unsteady)),
            "its steady-state run did not reach a steady state",
            "if the baseline is among them, it is probably the machine: repeat the run on a quieter one; otherwise a "
            "long training may gain more or less than the timed steps",
        )
    times_warm_up_too = [start for start in starts if start.timing_includes_warm_up and start not in unsteady]
    if times_warm_up_too:
        steps = max(start.steady.steps or 0 for start in times_warm_up_too if start.steady)
        worst = max(times_warm_up_too, key=lambda start: (start.steady.steps or 0) if start.steady else 0)
        yield RunWarning(
            WarningKind.TIMES_WARM_UP,
            ", ".join(dict.fromkeys(start.arm.environment for start in times_warm_up_too)),
            f"trials measure steps {worst.warm_up + 1} to {worst.steps}, but {worst.arm.environment} is steady only "
            f"from step {steps + 1} on",
            f"set `warmup_steps: {-(-steps // 10) * 10}` in workload {worst.arm.workload} if long training matters",
        )
