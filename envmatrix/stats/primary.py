"""Which metric a workload's verdicts rest on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from envmatrix.matrix.model import Workload
from envmatrix.plan import Plan
from envmatrix.stats.measurements import Measurements
from envmatrix.stats.metrics import METRICS, THROUGHPUT, VALUE, Metric, show_seconds


def primary_metric(workload: Workload | None) -> Metric:
    """Return the metric that a workload's verdict rests on.

    The built-in benchmark is judged by throughput, a user's own command by the value it reports, in the direction
    its ``metric`` names (wall time, which is what counts where no metric is named: lower is better).
    """
    if workload is None or not workload.command:
        return THROUGHPUT
    if workload.metric is None or workload.metric.wall:
        return replace(VALUE, label="wall time", unit="s", better="lower", show=show_seconds)
    return replace(VALUE, better=workload.metric.better)


def primary_metrics(plan: Plan, measured: Measurements, workloads: Mapping[str, Workload]) -> dict[str, Metric]:
    """Return each workload's primary metric; a run without workload entries is judged by what it measured."""
    chosen: dict[str, Metric] = {}
    for arm in plan.arms:
        metric = primary_metric(workloads.get(arm.workload))
        has_value = np.isfinite(measured.of(arm.name, "value")).any()
        if arm.workload not in workloads and has_value:
            metric = METRICS["value"]
        chosen[arm.workload] = chosen.get(arm.workload, metric)
    return chosen
