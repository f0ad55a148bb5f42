"""Speed of a process in the second half of all its steps, relative to its trial."""

from __future__ import annotations

import math

from envmatrix.evidence.trial_record import Record
from envmatrix.stats.metrics import finite_or_nan

#: Columns of a trial: the log of its later speed over that of its trial, the log of the later speed in its second half
#: over that in the first half, and the seconds of all its steps.
CHANGE, TREND, WATCHED = COLUMNS = ("later_change", "later_trend", "watched_s")


def row(record: Record) -> tuple[float, float, float]:
    """Return the columns of a trial; NaN if its process did not go on, or ended too early."""
    later = record.timing and record.timing.later
    if not later:
        return math.nan, math.nan, math.nan
    first, second = later.halves_step_ns if later.halves_step_ns and len(later.halves_step_ns) == 2 else (None, None)
    change, trend = _log_ratio(later.trial_step_ns, later.late_step_ns), _log_ratio(first, second)
    return change, trend, finite_or_nan(later.watched_ns) / 1e9


def _log_ratio(above: float | None, below: float | None) -> float:
    above, below = finite_or_nan(above), finite_or_nan(below)
    return math.log(above / below) if above > 0 and below > 0 else math.nan
