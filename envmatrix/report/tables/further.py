"""The tables below those of environments: further metrics, engines, starts, workloads, and operators.

Operators are those of a separate profiled pass after the timed part (``profile_steps``). Their figures include the
profiler's cost and have no interval: they show which operators changed, not how much an environment gains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from envmatrix.plan import Arm, Plan
from envmatrix.report.formatting import NONE, format_interval, format_ratio, format_speed_up, format_value
from envmatrix.report.tables.starts import start_table, starts_note
from envmatrix.report.tables.table_model import PlainTable, TableSection
from envmatrix.results import Run
from envmatrix.stats.effect_estimation import Analysis
from envmatrix.stats.measurements import Measurements
from envmatrix.stats.metrics import METRICS, THROUGHPUT, Metric, show_bytes, show_rate, show_seconds
from envmatrix.stats.primary_metric import further_metrics
from envmatrix.stats.steady_state.startup import Start
from envmatrix.stats.trial_text_counts import ArmFacts

_OWN = "Ratios above 1 are better, also for times and sizes; the intervals of one metric are simultaneous."
_ENGINES = (
    "Geometric means; in brackets the ratio to the reference, made of pairs in the same block, with its "
    "interval: above 1 is better."
)
_WORKLOADS = "Samples per second are geometric means over trials; everything else is a median."
#: Most operators in a table.
_MOST = 12
#: Operators below this share of the reference's time are noise.
_LEAST_SHARE = 0.005
_percent = "{:.1%}".format
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
    value = (measured.geometric_mean if metric == THROUGHPUT.name else measured.median)(arm, metric)
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


#: Whole trial: from the start of the engine's command, or the request to its daemon, to the end of the process.
_METRIC_COLUMNS = (("steady state", None), ("start-up", "startup_s"), ("whole trial", "trial_s"))


def _cell(arm: Arm, metric: Metric, analysis: Analysis, measured: Measurements) -> str:
    mean, effect = measured.geometric_mean(arm.name, metric.name), analysis.find(arm.name, metric.name)
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


def own_table(run: Run, measured: Measurements, analysis: Analysis) -> PlainTable | None:
    """Return the table of a run whose programs report several numbers, None for other runs."""
    rows = [
        _own_row(arm, metric, measured, analysis)
        for arm in run.plan.arms
        for metric in further_metrics(run.workloads.get(arm.workload))
        if metric.name in measured.table
    ]
    head = ("workload", "environment", "metric", "better", "mean", "ratio", "95 % CI", "verdict")
    return PlainTable(head, tuple(rows)) if rows else None


def _own_row(arm: Arm, metric: Metric, measured: Measurements, analysis: Analysis) -> tuple[str, ...]:
    mean, effect = measured.geometric_mean(arm.name, metric.name), analysis.find(arm.name, metric.name)
    figures = ("1", "", "reference")
    if effect:
        figures = (format_speed_up(effect), format_interval(effect), metric.said(effect.verdict))
    mean_text = NONE if mean is None else format_value(metric, mean)
    return f"{arm.workload} on {arm.engine}", arm.environment, metric.label, metric.better, mean_text, *figures


@dataclass(frozen=True)
class FurtherTable(TableSection):
    """A further table; a page may have another note, and a terminal has its own title.

    A table without ``in_terminal``, the title there, is not shown in a terminal.
    """

    on_page: str = ""
    in_terminal: str = ""


def further_tables(
    run: Run, measured: Measurements, analysis: Analysis, starts: Sequence[Start]
) -> Mapping[str, FurtherTable]:
    """Return the further tables that a run has, in the order of the report."""
    found: dict[str, FurtherTable] = {}
    if table := own_table(run, measured, analysis):
        page = "Ratios above 1 are better, whichever way the number counts."
        terminal = "further metrics (ratio above 1: better than the reference)"
        found["own"] = FurtherTable("Further metrics", table, (_OWN,), page, terminal)
    if table := engine_table(run.plan, measured, analysis):
        terminal = f"This table shows what the engines cost. {_ENGINES}"
        found["engines"] = FurtherTable("What the engines cost", table, (_ENGINES,), in_terminal=terminal)
    if table := start_table(starts):
        found["starts"] = FurtherTable("Start and steady state", table, (starts_note(table),))
    if table := workload_table(run.plan, measured):
        page = f"{_WORKLOADS} They describe the workloads; environments are compared above."
        terminal = f"This table describes the workloads, each in its first environment. {_WORKLOADS}"
        found["workloads"] = FurtherTable("Workloads", table, (_WORKLOADS,), page, terminal)
    return found


@dataclass(frozen=True)
class OperatorTable:
    """Operators of the environments that share a reference, most expensive first."""

    reference: Arm
    table: PlainTable

    def section(self, most: int | None = None) -> TableSection:
        """Return the table of the (``most``) expensive operators, with its title and note."""
        arm = self.reference
        return TableSection(
            f"Operators: {arm.workload} on {arm.engine}, speed-up over {arm.environment}",
            PlainTable(self.table.head, self.table.rows[:most]),
            (f"Share and time are those of {arm.environment}. A separate, profiled pass measured them: no intervals.",),
        )


def _medians(facts: ArmFacts) -> dict[str, float]:
    """Return each operator's own seconds per step, the median over the arm's trials (0 for trials without it)."""
    trials = max((len(times) for times in facts.operators.values()), default=0)
    return {name: median([*times, *[0.0] * (trials - len(times))]) for name, times in facts.operators.items()}


def operator_tables(arms: Sequence[Arm], measured: Measurements) -> tuple[OperatorTable, ...]:
    """Return a table for every reference with profiled trials and at least one profiled environment to compare."""
    tables = []
    for reference in arms:
        reference_s = _medians(measured.facts[reference.name])
        others = {
            arm.environment: _medians(measured.facts[arm.name])
            for arm in arms
            if arm.reference == reference.name and not arm.is_control and measured.facts[arm.name].operators
        }
        if not reference_s or not others:
            continue
        total = sum(reference_s.values())
        rows = []
        for name in sorted(reference_s, key=lambda name: -reference_s[name])[:_MOST]:
            seconds = reference_s[name]
            if seconds > _LEAST_SHARE * total:
                ratios = [seconds / times[name] if times.get(name) else None for times in others.values()]
                rows.append((name, f"{seconds / total:.1%}", show_seconds(seconds), *map(format_ratio, ratios)))
        head = ("operator", "share", "time a step", *others)
        tables.append(OperatorTable(reference, PlainTable(head, tuple(rows))))
    return tuple(tables)
