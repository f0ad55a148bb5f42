"""The primary metric of a workload, on which its verdicts are based."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from envmatrix.matrix.metric_sources import MetricSource
from envmatrix.matrix.model import Workload
from envmatrix.plan import Plan
from envmatrix.stats.measurements import Measurements
from envmatrix.stats.metrics import (
    METRICS,
    THROUGHPUT,
    VALUE,
    Metric,
    format_number,
    own_column,
    show_bytes,
    show_rate,
    show_seconds,
)

_STEPS_UNIT = "steps/s"
_UNIT_FORMATTERS = {"s": show_seconds, "B": show_bytes}


def primary_metric(workload: Workload | None) -> Metric:
    """Return the metric on which a workload's verdict is based.

    The built-in benchmark uses throughput. A user's program uses the value it reports, in the direction of its
    ``metric``; without a named metric, that is wall time (lower is better).
    """
    if workload is None or not workload.command:
        return THROUGHPUT
    (name, source), *_ = workload.sources.items()
    return _metric(VALUE.name, name, source)


def further_metrics(workload: Workload | None) -> tuple[Metric, ...]:
    """Return the further metrics of a user's program, without the primary one."""
    if workload is None or not workload.command:
        return ()
    _, *further_sources = workload.sources.items()
    return tuple(_metric(own_column(name), name, source) for name, source in further_sources)


def _metric(column: str, name: str, source: MetricSource) -> Metric:
    if source.wall:
        return Metric(column, name or "wall time", "s", "lower", show_seconds)
    if source.steps:
        return Metric(column, name or "steps a second", _STEPS_UNIT, "higher", show_rate)
    formatter = _UNIT_FORMATTERS.get(source.unit, format_number)
    metric = Metric(column, name or source.label_in_output or VALUE.label, source.unit, source.better, formatter)
    return replace(metric, label=THROUGHPUT.label) if metric.is_rate and metric.label == VALUE.label else metric


def metric_from_summary(name: str, label: str, unit: str, better: str) -> Metric:
    """Return the metric of a column from its description in a summary, for numbers of a user's program."""
    metric = METRICS.get(name, VALUE)
    if metric is not VALUE or not label:
        return metric
    formatter = show_rate if unit == _STEPS_UNIT else _UNIT_FORMATTERS.get(unit, format_number)
    return replace(metric, label=label, unit=unit, better="lower" if better == "lower" else "higher", show=formatter)


def primary_metrics(plan: Plan, measured: Measurements, workloads: Mapping[str, Workload]) -> dict[str, Metric]:
    """Return each workload's primary metric; without a workload entry, a measured value is used."""
    metrics: dict[str, Metric] = {}
    for arm in plan.arms:
        metric = primary_metric(workloads.get(arm.workload))
        has_value = np.isfinite(measured.of(arm.name, "value")).any()
        if arm.workload not in workloads and has_value:
            metric = METRICS["value"]
        metrics[arm.workload] = metrics.get(arm.workload, metric)
    return metrics
