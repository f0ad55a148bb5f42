"""A table of texts that the terminal, Markdown and HTML each render."""

from __future__ import annotations

from dataclasses import dataclass

from envmatrix.plan import Arm
from envmatrix.report.formatting import NONE, format_interval, format_speed_up
from envmatrix.results import Run
from envmatrix.stats.analysis import Analysis
from envmatrix.stats.measurements import Measurements
from envmatrix.stats.metrics import Metric
from envmatrix.stats.nodes import NodeReport
from envmatrix.stats.primary_metric import own_metrics


@dataclass(frozen=True)
class PlainTable:
    """A table of texts: ``head`` has the column names, each of ``rows`` one cell per column."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def node_table(node_report: NodeReport) -> PlainTable:
    """Return the table with one row per node, best first."""
    head = ("node", "baseline's speed over the mean of the nodes", "blocks")
    rows = ((row.node, f"{row.relative:.3f}", str(row.blocks)) for row in node_report.rows)
    return PlainTable(head, tuple(rows))


def own_table(run: Run, measured: Measurements, analysis: Analysis) -> PlainTable | None:
    """Return the table of a run whose programs report several numbers, None for other runs."""
    rows = [
        _row(arm, metric, measured, analysis)
        for arm in run.plan.arms
        for metric in own_metrics(run.workloads.get(arm.workload))
        if metric.name in measured.table
    ]
    head = ("workload", "environment", "metric", "better", "mean", "ratio", "95 % CI", "verdict")
    return PlainTable(head, tuple(rows)) if rows else None


def _row(arm: Arm, metric: Metric, measured: Measurements, analysis: Analysis) -> tuple[str, ...]:
    mean = measured.mean(arm.name, metric.name)
    effect = analysis.find(arm.name, metric.name)
    effect_cells = (
        (format_speed_up(effect), format_interval(effect), metric.said(effect.verdict))
        if effect
        else ("1", "", "reference")
    )
    unit = f" {metric.unit}" if metric.unit not in ("", "s", "B") else ""
    median_text = NONE if mean is None else f"{metric.show(mean)}{unit}"
    return f"{arm.workload} on {arm.engine}", arm.environment, metric.label, metric.better, median_text, *effect_cells
