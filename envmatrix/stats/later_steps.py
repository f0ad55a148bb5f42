"""Speed of a process that went on after its trial: in the second half of all its steps, relative to its trial."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from envmatrix.evidence.record import Later, Record
from envmatrix.stats.metrics import finite_or_nan

#: Columns of a trial: the log of its later speed over that of its trial, the log of the later speed in its second half
#: over that in the first half, and the seconds of all its steps.
CHANGE, TREND, WATCHED = COLUMNS = ("later_change", "later_trend", "watched_s")


def row(record: Record) -> tuple[float, float, float]:
    """Return the columns of a trial; NaN if its process did not go on, or ended too early."""
    timing, result = record.timing, record.result
    unknown = math.nan, math.nan, math.nan
    if timing is None or timing.later is None or result is None:
        return unknown
    trial_step_s = finite_or_nan(timing.training_ns) / finite_or_nan(result.steps) / 1e9 if result.steps else math.nan
    steps = list(_steps(timing.later))
    if not steps or not trial_step_s > 0:
        return unknown
    watched_s = steps[-1][0] + steps[-1][1]
    late = [step for begin, step in steps if begin >= watched_s / 2]
    middle_s = sum(late) / 2
    ends = list(itertools.accumulate(late))
    halves = (
        [step for end, step in zip(ends, late, strict=True) if (end > middle_s) is second] for second in (False, True)
    )
    return _log_ratio(trial_step_s, _mean(late)), _log_ratio(*map(_mean, halves)), watched_s


def _steps(later: Later) -> Iterator[tuple[float, float]]:
    """Yield (seconds of steps before, seconds) of each counted step."""
    before_s = finite_or_nan(later.after_ns) / 1e9
    for stretch in later.stretches or ():
        before_s += sum(stretch.apart_ns or ()) / 1e9
        for step_ns in stretch.counted_ns or ():
            yield before_s, step_ns / 1e9
            before_s += step_ns / 1e9


def _mean(steps: list[float]) -> float:
    return sum(steps) / len(steps) if steps else math.nan


def _log_ratio(above: float, below: float) -> float:
    return math.log(above / below) if above > 0 and below > 0 else math.nan
