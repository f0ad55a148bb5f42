"""Speed of a process that went on after its trial: in its second half, relative to its trial."""

from __future__ import annotations

import math
from collections.abc import Iterator

from envmatrix.evidence.record import Later, Record
from envmatrix.stats.metrics import finite_or_nan

#: Columns of a trial: the log of its later speed over that of its trial, the log of the speed in its last quarter over
#: that in the quarter before, and the seconds of steps that it had.
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
    half, third, last = (
        _mean([step for begin, step in steps if low <= begin / watched_s < high])
        for low, high in ((0.5, 1.0), (0.5, 0.75), (0.75, 1.0))
    )
    return _log_ratio(trial_step_s, half), _log_ratio(third, last), watched_s


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
