"""Whether turns begin cold: the first step that counts is slower than the last, for another process's data is there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from envmatrix.plan import Plan
from envmatrix.stats.maxt import student_quantile
from envmatrix.stats.measurements import TURN_START, Measurements

#: Nothing is told below so many trials, nor of less (a share of a step) that is not excluded.
_MIN_TRIALS, _MIN_SLOWDOWN = 6, 0.02


@dataclass(frozen=True)
class ColdTurns:
    """How many times as long as its last step those that count in a turn begin with, with its 95 % interval."""

    ratio: float
    low: float
    high: float


def cold_turns(plan: Plan, measured: Measurements) -> dict[str, ColdTurns]:
    """Return workload -> how cold its turns begin, for those where the whole interval lies above 1.02.

    The mean is that of the logs of all trials, the interval Student's t.
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
