"""A check that a real trial accounted for the time of the thread that drove its steps, wherever it ran."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envmatrix.evidence.trial_record import read_record
from envmatrix.stats import step_account


def check_account(trial: Mapping[str, Any]) -> None:
    """Check that the parts of a step are known, add up to no more than the whole, and that events have a price."""
    thread = trial["record"]["step_thread"]
    assert thread, trial
    assert (thread["waited_ns"] is not None) == Path("/proc/self/schedstat").exists()
    assert 0 < thread["cpu_ns"] <= thread["cpu_ns"] + (thread["waited_ns"] or 0) <= 1.05 * thread["wall_ns"]
    assert min(thread["prices"].values()) > 0
    row = dict(zip(step_account.COLUMNS, step_account.row(read_record(trial["record"])), strict=True))
    assert row["thread.user"] > 0 <= row["thread.kernel"]
    assert row["thread.minor_faults"] >= 0
