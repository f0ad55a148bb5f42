"""The tables of workloads and of engines: one environment of each, and what it measured."""

from __future__ import annotations

from collections.abc import Callable

from envmatrix.plan import Arm, Plan
from envmatrix.report.formatting import NONE, format_interval, format_ratio, format_value
from envmatrix.report.tables.plain import PlainTable
from envmatrix.stats.analysis import Analysis
from envmatrix.stats.measurements import Measurements
from envmatrix.stats.metrics import METRICS, THROUGHPUT, Metric, show_bytes, show_rate, show_seconds


def _percent(value: float) -> str:
    return f"{value:.1%}"


WORKLOADS_NOTE = "Samples per second are geometric means over trials; everything else is a median."
#: Column title, metric, metric to divide it by ('': none), and format.
_COLUMNS: tuple[tuple[str, str, str, Callable[[float], str]], ...] = (
    ("samples/s", THROUGHPUT.name, "", show_rate),
    ("latency p50", "latency_p50_s", "", show_seconds),
    ("latency p99", "latency_p99_s", "", show_seconds),
    ("accuracy", "accuracy", "", _percent),
    ("model", "model_bytes", "", show_bytes),
    ("memory", "peak_rss_bytes", "", show_bytes),
    ("GPU memory", "peak_gpu_bytes", "", show_bytes),
    ("waits for data", "data_wait_s", "training_s", _percent),
    ("compiling", "compile_s", "", show_seconds),
    ("start-up", "startup_s", "", show_seconds),
)


def _median(measured: Measurements, arm: str, metric: str, over: str) -> float | None:
    value = (measured.mean if metric == THROUGHPUT.name else measured.median)(arm, metric)
    if not over or value is None:
        return value
    divisor = measured.median(arm, over)
    return value / divisor if divisor else None


def workload_table(plan: Plan, measured: Measurements) -> PlainTable | None:
    """Return the table of a run with several workloads, None for others; empty columns are left out."""
    firsts = {(arm.workload, arm.engine): arm for arm in reversed(plan.arms) if not arm.is_control}
    if len({workload for workload, _ in firsts}) < 2:
        return None
    arms = [arm for arm in plan.arms if firsts.get((arm.workload, arm.engine)) is arm]
    several = len({arm.engine for arm in arms}) > 1
    names = [f"{arm.workload} on {arm.engine}" if several else arm.workload for arm in arms]
    columns = [("workload", names)]
    if len({arm.runs for arm in arms}) > 1:
        columns.append(("environment", [arm.runs for arm in arms]))
    for title, metric, over, show in _COLUMNS:
        values = [_median(measured, arm.name, metric, over) for arm in arms]
        if any(value is not None for value in values):
            columns.append((title, [NONE if value is None else show(value) for value in values]))
    return PlainTable(tuple(title for title, _ in columns), tuple(zip(*(cells for _, cells in columns), strict=True)))


ENGINES_NOTE = (
    "Geometric means; in brackets the ratio to the reference, made of pairs in the same block, with its "
    "interval: above 1 is better."
)
#: Whole trial: from the start of the engine's command, or the request to its daemon, to the end of the process.
_METRIC_COLUMNS = (("steady state", None), ("start-up", "startup_s"), ("whole trial", "trial_s"))


def _cell(arm: Arm, metric: Metric, analysis: Analysis, measured: Measurements) -> str:
    mean, effect = measured.mean(arm.name, metric.name), analysis.find(arm.name, metric.name)
    if mean is None:
        return NONE
    ratio = f"{format_ratio(effect.ratio)}, {format_interval(effect)}" if effect else "reference"
    return f"{format_value(metric, mean)} ({ratio})"


def engine_table(plan: Plan, measured: Measurements, analysis: Analysis) -> PlainTable | None:
    """Return the engine table, None for a run with one engine.

    A row is one workload on one engine, in the environment used for the comparison.
    """
    engines = {arm.name: arm.engine for arm in plan.arms}
    compared_arms = [arm for arm in plan.arms if engines.get(arm.reference or "", arm.engine) != arm.engine]
    if not compared_arms:
        return None
    references = {arm.reference for arm in compared_arms}
    arms = [arm for arm in plan.arms if arm.name in references or arm in compared_arms]
    several = len({arm.workload for arm in arms}) > 1
    rows = []
    for arm in arms:
        metrics = [METRICS[name] if name else analysis.primary[arm.workload] for _, name in _METRIC_COLUMNS]
        name = f"{arm.workload} on {arm.engine}" if several else arm.engine
        rows.append((name, *(_cell(arm, metric, analysis, measured) for metric in metrics)))
    return PlainTable(("engine", *(title for title, _ in _METRIC_COLUMNS)), tuple(rows))
