"""Exports for other programs: CSV, Parquet, pyperf JSON, and figures as files."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timezone
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from envmatrix.errors import InputError, suggestion
from envmatrix.matrix.model import Workload
from envmatrix.plan import Arm
from envmatrix.report.catalog import BuiltIn, draw_figure
from envmatrix.report.figures import svg
from envmatrix.report.figures.svg_to_pdf import to_pdf
from envmatrix.report.formats.html_file import to_html
from envmatrix.report.formats.json_file import to_summary_json
from envmatrix.report.formats.junit import to_junit
from envmatrix.report.formats.markdown import to_markdown
from envmatrix.report.formats.openmetrics import to_openmetrics
from envmatrix.report.report_data import Summary
from envmatrix.report.tables.columns import effect_values, value_names
from envmatrix.stats.array_types import Bools, Floats, Integers
from envmatrix.stats.measurements import OUTCOMES, WORK_COLUMNS
from envmatrix.stats.metrics import METRICS, OWN_COLUMN_PREFIXES, THROUGHPUT, Metric
from envmatrix.stats.primary_metric import further_metrics
from envmatrix.stats.step_account import COLUMNS
from envmatrix.system.bench_options import options
from envmatrix.system.printable import printable_text


def trials_parquet(summary: Summary) -> bytes:
    """Return the file: every trial in the order they ran, failed ones too, with null for missing values.

    ``started`` is in seconds since 1970 (UTC). Metrics are in their own units; each column's metadata has the unit and
    which direction is better. Raises InputError if pyarrow is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise InputError(
            f"pyarrow, which writes Parquet, cannot be used here ({error})",
            remedy=f"{sys.executable} -m pip install pyarrow, or --as trials-csv, which needs nothing",
        ) from error
    named_columns = list(_columns(summary, pyarrow))
    file_metadata = {
        "envmatrix.run": printable_text(summary.run.name),
        "envmatrix.created": printable_text(summary.run.created),
    }
    schema = pyarrow.schema([field for field, _ in named_columns], metadata=file_metadata)
    out = io.BytesIO()
    arrays = [pyarrow.array(values, field.type, from_pandas=True) for field, values in named_columns]
    pyarrow.parquet.write_table(pyarrow.Table.from_arrays(arrays, schema=schema), out)
    return out.getvalue()


def _columns(summary: Summary, arrow: Any) -> Iterator[tuple[Any, object]]:
    """Yield each column's pyarrow.Field and its values, NaN if missing."""
    measured = summary.measured
    trials, arms = measured.trials, [summary.plan.arms[index] for index in measured.trials.arm]
    for name in ("workload", "engine", "environment"):
        yield arrow.field(name, arrow.string()), [printable_text(getattr(arm, name)) for arm in arms]
    yield arrow.field("block", arrow.int64()), trials.block
    yield arrow.field("outcome", arrow.string()), [OUTCOMES[index] for index in trials.outcome]
    yield arrow.field("started", arrow.float64(), metadata={"unit": "s"}), trials.started
    block_index = np.searchsorted(measured.blocks, trials.block)
    ok = trials.outcome == OUTCOMES.index("ok")
    for name in (*METRICS, *WORK_COLUMNS, *(name for name in measured.table if name.startswith(OWN_COLUMN_PREFIXES))):
        metric = METRICS.get(name)
        column_metadata = {"unit": metric.unit, "better": metric.better} if metric else None
        values = _values(measured.table[name], trials.arm, block_index, ok)
        yield arrow.field(printable_text(name), arrow.float64(), metadata=column_metadata), values
    for name in COLUMNS:
        yield arrow.field(name, arrow.float64()), _values(measured.table[name], trials.arm, block_index, ok)


def _values(table: Floats, arm: Integers, block_index: Integers, ok: Bools) -> Floats:
    return np.where(ok, table[arm, block_index], np.nan) if arm.size else np.zeros(0)


_WARM_UP_OPTIONS = ("warmup_steps", "verify_steps", "compile")
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def _cell(value: object) -> str:
    """Return a cell; quote text that a spreadsheet would run as a formula."""
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else ""
    text = printable_text(" ".join(value) if isinstance(value, list) else "" if value is None else value)
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


def _csv(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", newline="")  # StringIO takes four bytes a character
    csv.writer(out).writerows([_cell(value) for value in row] for row in chain((head,), rows))
    out.seek(0)
    return out.read()


def effects_csv(summary: Summary) -> str:
    """Return a CSV with one line per effect."""
    return _csv(value_names(), (row.values() for _, row in effect_values(summary)))


def successful_trials_csv(summary: Summary) -> str:
    """Return a CSV with one line per successful trial and all metrics in their own units."""
    names = [*METRICS, *COLUMNS, *(name for name in summary.measured.table if name.startswith(OWN_COLUMN_PREFIXES))]
    return _csv(["workload", "engine", "environment", "block", *names], _trial_rows(summary, names))


def _trial_rows(summary: Summary, names: Sequence[str]) -> Iterator[list[object]]:
    """Yield a row for each trial with a value."""
    measured = summary.measured
    for index, arm in enumerate(summary.plan.arms):
        for column, block in enumerate(measured.blocks):
            values = [float(measured.table[name][index, column]) for name in names]
            if any(map(math.isfinite, values)):
                yield [arm.workload, arm.engine, arm.environment, int(block), *values]


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
    return list(zip(*(column[is_positive].tolist() for column in (times, started, warm)), strict=True))


def _warm_up_steps(workload: Workload | None) -> int:
    """Return the number of steps in ``warmup_s`` of the built-in benchmark, without a compiling step."""
    if workload is None or workload.command:
        return 0
    settings = {name: workload.options.get(name, options()[name].default) for name in _WARM_UP_OPTIONS}
    steps = settings["warmup_steps"]
    compiled = settings["compile"] != "none" and not settings["verify_steps"]
    return max(0, steps - compiled) if isinstance(steps, int) else 0


def _pyperf_run(value: float, started: float, warm_up: float, created: str) -> dict[str, object]:
    if math.isfinite(started):
        created = f"{datetime.fromtimestamp(started, timezone.utc):%Y-%m-%d %H:%M:%S}"
    warm_ups = {"warmups": [[1, warm_up]]} if math.isfinite(warm_up) else {}
    return {"metadata": {"date": created}, "values": [value], **warm_ups}


def _pyperf_benchmarks(summary: Summary, arm: Arm, created: str) -> Iterator[dict[str, object]]:
    """Yield the benchmarks of an arm: its primary metric, then its program's further metrics.

    A trial gives one value, because pyperf's tests assume independent values, unlike the steps of one process.
    """
    primary = summary.analysis.primary[arm.workload]
    for metric in (primary, *further_metrics(summary.run.workloads.get(arm.workload))):
        values = _pyperf_values(summary, arm, metric)
        name = f"{arm.workload}@{arm.engine}" + ("" if metric is primary else f" {metric.label}")
        unit = "byte" if metric.unit == "B" and metric.better == "lower" else "second"
        metric_text = f"{metric.label}{f' ({metric.unit})' if metric.unit else ''}"
        description = f"one over {metric_text}: more of it is better" if metric.better == "higher" else metric_text
        names = {"name": printable_text(name), "unit": unit, "loops": 1, "inner_loops": 1}
        if values:
            metadata = {**names, "description": printable_text(description)}
            yield {"metadata": metadata, "runs": [_pyperf_run(*trial, created) for trial in values]}


def pyperf_json(summary: Summary, environment: str) -> str:
    """Return an environment's trials as a pyperf suite: one benchmark per workload, engine and metric.

    Compare two files with ``python -m pyperf compare_to baseline.json other.json``. pyperf does not pair trials by
    block, so its intervals are wider. Raises InputError if the environment has no values.
    """
    arms = [arm for arm in summary.plan.arms if arm.environment == environment]
    if not arms:
        known = suggestion(environment, {arm.environment for arm in summary.plan.arms})
        raise InputError(f"run {summary.run.name} has no environment {environment!r}", remedy=known)
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
    return svg.standalone(_group_figure(summary, kind, group))


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


#: Factories of the formats, for the catalog.
json_report = partial(BuiltIn, lambda summary, _: to_summary_json(summary), "json", "summary.json")
markdown_report = partial(BuiltIn, lambda summary, _: to_markdown(summary), "markdown", "report.md")
html_report = partial(BuiltIn, lambda summary, _: to_html(summary), "html", "report.html")
csv_report = partial(BuiltIn, lambda summary, _: effects_csv(summary), "csv")
trials_csv_report = partial(BuiltIn, lambda summary, _: successful_trials_csv(summary), "trials-csv")
pyperf_report = partial(BuiltIn, pyperf_json, "pyperf")
parquet_report = partial(BuiltIn, lambda summary, _: trials_parquet(summary), "parquet")
openmetrics_report = partial(BuiltIn, lambda summary, _: to_openmetrics(summary), "openmetrics")
junit_report = partial(BuiltIn, lambda summary, _: to_junit(summary), "junit")
