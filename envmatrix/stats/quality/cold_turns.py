"""Detection of cold turns: the first counted step is slow because another process's data is in the caches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from envmatrix.plan import Plan
from envmatrix.stats.inference.maxt import student_quantile
from envmatrix.stats.measurements import TURN_START, Measurements

#: Fewest trials for a finding, and the smallest slowdown (a fraction of a step) that counts.
_MIN_TRIALS, _MIN_SLOWDOWN = 6, 0.02


@dataclass(frozen=True)
class ColdTurns:
    """The duration of the first counted step of a turn over that of the last, with its 95 % interval."""

    ratio: float
    low: float
    high: float


def cold_turns_by_workload(plan: Plan, measured: Measurements) -> dict[str, ColdTurns]:
    """Return workload -> its cold turns, for workloads whose whole interval is above 1.02.

    The ratio is the geometric mean over all trials, with Student's t for the interval.
    """
    cold_by_workload = {}
    for workload in dict.fromkeys(arm.workload for arm in plan.arms):
        values = np.concatenate([measured.of(arm.name, TURN_START) for arm in plan.arms if arm.workload == workload])
        logs = np.log(values[np.isfinite(values) & (values > 0)])
        if logs.size < _MIN_TRIALS:
            continue
        reach = student_quantile(logs.size, 0.975) * logs.std(ddof=1) / np.sqrt(logs.size)
        cold = ColdTurns(*(float(np.exp(logs.mean() + side * reach)) for side in (0, -1, 1)))
        if cold.low > 1.0 + _MIN_SLOWDOWN:
            cold_by_workload[workload] = cold
    return cold_by_workload
