"""Exports for other programs: CSV, pyperf JSON, and figures as files."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator
from datetime import datetime, timezone
from functools import partial

import numpy as np

from envmatrix.errors import InputError, suggestion
from envmatrix.matrix.model import Workload
from envmatrix.plan import Arm
from envmatrix.report.catalog import BuiltIn, draw_figure
from envmatrix.report.figures.svg import standalone_svg
from envmatrix.report.figures.svg_to_pdf import to_pdf
from envmatrix.report.formats.json_file import summary_to_json
from envmatrix.report.formats.markdown import to_markdown
from envmatrix.report.summary import Summary
from envmatrix.report.tables.columns import effect_values, value_names
from envmatrix.stats.metrics import METRICS, OWN_COLUMN_PREFIXES, THROUGHPUT, Metric
from envmatrix.stats.primary_metric import own_metrics
from envmatrix.stats.step_account import COLUMNS
from envmatrix.system.bench_options import options
from envmatrix.system.printable import printable_text

_WARM_UP_OPTIONS = ("warmup_steps", "verify_steps", "compile")
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def _cell(value: object) -> str:
    """Return a cell; quote text that a spreadsheet would run as a formula."""
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else ""
    text = printable_text(value) if value is not None else ""
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


def effects_csv(summary: Summary) -> str:
    """Return a CSV with one line per effect."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(value_names())
    for _, row in effect_values(summary):
        writer.writerow([_cell(" ".join(v) if isinstance(v, list) else v) for v in row.values()])
    return out.getvalue()


def trials_csv(summary: Summary) -> str:
    """Return a CSV with one line per successful trial and all metrics in their own units."""
    out = io.StringIO()
    writer = csv.writer(out)
    measured = summary.measured
    names = [*METRICS, *COLUMNS, *(name for name in measured.table if name.startswith(OWN_COLUMN_PREFIXES))]
    writer.writerow(["workload", "engine", "environment", "block", *map(_cell, names)])
    for index, arm in enumerate(summary.plan.arms):
        for column, block in enumerate(measured.blocks):
            values = [float(measured.table[name][index, column]) for name in names]
            if any(map(math.isfinite, values)):
                arm_names = [_cell(text) for text in (arm.workload, arm.engine, arm.environment)]
                writer.writerow([*arm_names, int(block), *map(_cell, values)])
    return out.getvalue()


def _pyperf_values(summary: Summary, arm: Arm, metric: Metric) -> list[tuple[float, float, float]]:
    """Return (value, start, warm-up) of each successful trial; pyperf needs lower to be better, so rates are inverted.

    The warm-up is in seconds per sample, as is the value for throughput; NaN if there was none.
    """
    if metric.name not in summary.measured.table:
        return []
    values, started, warm_up, steps, samples = (
        summary.measured.of(arm.name, name) for name in (metric.name, "started", "warmup_s", "steps", "samples")
    )
    untimed = _warm_up_steps(summary.run.workloads.get(arm.workload)) if metric is THROUGHPUT else 0
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        times = 1.0 / values if metric.better == "higher" else values
        warm = warm_up / (untimed * samples / steps)
    is_positive = np.isfinite(times) & (times > 0)
    return [
        (value, when, warm_up_s)
        for value, when, warm_up_s in zip(
            times[is_positive].tolist(), started[is_positive].tolist(), warm[is_positive].tolist(), strict=True
        )
    ]


def _warm_up_steps(workload: Workload | None) -> int:
    """Return the number of steps in ``warmup_s`` of the built-in benchmark, without a compiling step."""
    if workload is None or workload.command:
        return 0
    settings = {name: workload.options.get(name, options()[name].default) for name in _WARM_UP_OPTIONS}
    steps = settings["warmup_steps"]
    compiled = settings["compile"] != "none" and not settings["verify_steps"]
    return max(0, steps - compiled) if isinstance(steps, int) else 0


def _pyperf_run(value: float, started: float, warm_up: float, created: str) -> dict[str, object]:
    start_time = datetime.fromtimestamp(started, timezone.utc) if math.isfinite(started) else None
    document: dict[str, object] = {
        "metadata": {"date": f"{start_time:%Y-%m-%d %H:%M:%S}" if start_time else created},
        "values": [value],
    }
    return {**document, "warmups": [[1, warm_up]]} if math.isfinite(warm_up) else document


def _pyperf_benchmarks(summary: Summary, arm: Arm, created: str) -> Iterator[dict[str, object]]:
    """Yield the benchmarks of an arm: its primary metric, then its program's further metrics.

    A trial gives one value, because pyperf's tests assume independent values, unlike the steps of one process.
    """
    primary = summary.analysis.primary[arm.workload]
    for metric in (primary, *own_metrics(summary.run.workloads.get(arm.workload))):
        values = _pyperf_values(summary, arm, metric)
        name = f"{arm.workload}@{arm.engine}" + ("" if metric is primary else f" {metric.label}")
        unit = "byte" if metric.unit == "B" and metric.better == "lower" else "second"
        metric_text = f"{metric.label}{f' ({metric.unit})' if metric.unit else ''}"
        description = f"one over {metric_text}: more of it is better" if metric.better == "higher" else metric_text
        if values:
            metadata = {
                "name": printable_text(name),
                "unit": unit,
                "loops": 1,
                "inner_loops": 1,
                "description": printable_text(description),
            }
            yield {"metadata": metadata, "runs": [_pyperf_run(*trial, created) for trial in values]}


def pyperf_json(summary: Summary, environment: str) -> str:
    """Return an environment's trials as a pyperf suite: one benchmark per workload, engine and metric.

    Compare two files with ``python -m pyperf compare_to baseline.json other.json``. pyperf does not pair trials by
    block, so its intervals are wider. Raises InputError if the environment has no values.
    """
    arms = [arm for arm in summary.plan.arms if arm.environment == environment]
    if not arms:
        known_environments = {arm.environment for arm in summary.plan.arms}
        raise InputError(
            f"run {summary.run.name} has no environment {environment!r}",
            remedy=suggestion(environment, known_environments),
        )
    created = summary.run.created.replace("T", " ").rstrip("Z")[:19]
    benchmarks = [benchmark for arm in arms for benchmark in _pyperf_benchmarks(summary, arm, created)]
    if not benchmarks:
        raise InputError(
            f"environment {environment!r} has no ok trial with a number", remedy="export another environment"
        )
    metadata = {"hostname": printable_text(summary.run.host.name or "unknown")}
    return json.dumps({"version": "1.0", "metadata": metadata, "benchmarks": benchmarks}, indent=1) + "\n"


def figure_svg(summary: Summary, kind: str, group: int = 0) -> str:
    """Return a figure as an SVG file; ``kind`` is a key of FIGURES, ``group`` the index of a workload and engine."""
    return standalone_svg(_group_figure(summary, kind, group))


def figure_pdf(summary: Summary, kind: str, group: int = 0) -> bytes:
    """Return a figure as a PDF file in light colours. Raises InputError without svglib."""
    return to_pdf(_group_figure(summary, kind, group))


def _group_figure(summary: Summary, kind: str, group: int) -> str:
    if not 0 <= group < len(summary.groups):
        raise InputError(f"the run has {len(summary.groups)} group(s), not number {group}", remedy="count from 0")
    figure = draw_figure(kind, summary, summary.groups[group])
    if not figure and kind == "start" and summary.measured.trials.arm.size:
        raise InputError(
            "the run has no long look to draw", remedy="`steady: true` in its design; of built-in workloads alone"
        )
    if not figure:
        raise InputError("there is no trial to draw", remedy="run it first")
    return figure


def _json(summary: Summary, _: str) -> str:
    return json.dumps(summary_to_json(summary), indent=1, allow_nan=False) + "\n"


def _html(summary: Summary, _: str) -> str:
    from envmatrix.report.formats.html_file import to_html

    return to_html(summary)


#: Factories of the formats, for the catalog.
json_report = partial(BuiltIn, _json, "json", "summary.json")
markdown_report = partial(BuiltIn, lambda summary, _: to_markdown(summary), "markdown", "report.md")
html_report = partial(BuiltIn, _html, "html", "report.html")
csv_report = partial(BuiltIn, lambda summary, _: effects_csv(summary), "csv")
trials_csv_report = partial(BuiltIn, lambda summary, _: trials_csv(summary), "trials-csv")
pyperf_report = partial(BuiltIn, pyperf_json, "pyperf")
