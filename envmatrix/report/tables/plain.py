"""A table of texts that the terminal, Markdown and HTML each render."""

from __future__ import annotations

from dataclasses import dataclass

from envmatrix.plan import Arm
from envmatrix.report.formatting import NONE, format_interval, format_speed_up, format_value
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


@dataclass(frozen=True)
class TableSection:
    """A table with its title; ``notes`` are the sentences below it."""

    title: str
    table: PlainTable
    notes: tuple[str, ...]


def node_table(node_report: NodeReport) -> PlainTable:
    """Return the table with one row per node, best first."""
    head = ("node", "baseline's speed over the mean of the nodes", "blocks")
    return PlainTable(head, tuple((row.node, f"{row.relative:.3f}", str(row.blocks)) for row in node_report.rows))


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
    mean, effect = measured.mean(arm.name, metric.name), analysis.find(arm.name, metric.name)
    figures = ("1", "", "reference")
    if effect:
        figures = (format_speed_up(effect), format_interval(effect), metric.said(effect.verdict))
    mean_text = NONE if mean is None else format_value(metric, mean)
    return f"{arm.workload} on {arm.engine}", arm.environment, metric.label, metric.better, mean_text, *figures
