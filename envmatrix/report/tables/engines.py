"""The table of engines: one environment in each engine, its steady state, start-up and whole trial."""

from __future__ import annotations

from envmatrix.plan import Arm, Plan
from envmatrix.report.formatting import NONE, format_interval, format_ratio
from envmatrix.report.tables.plain import PlainTable
from envmatrix.stats.analysis import Analysis
from envmatrix.stats.measurements import Measurements
from envmatrix.stats.metrics import METRICS, Metric

ENGINES_NOTE = (
    "Geometric means; in brackets the ratio to the reference, made of pairs in the same block, with its "
    "interval: above 1 is better."
)
#: Whole trial: from the start of the engine's command, or the request to its daemon, to the end of the process.
_METRIC_COLUMNS = (("steady state", None), ("start-up", "startup_s"), ("whole trial", "trial_s"))

#: Units that the metric's text already includes.
_UNITS_IN_TEXT = ("", "s", "B")


def _cell(arm: Arm, metric: Metric, analysis: Analysis, measured: Measurements) -> str:
    mean = measured.mean(arm.name, metric.name)
    if mean is None:
        return NONE
    value = metric.show(mean)
    value += "" if metric.unit in _UNITS_IN_TEXT else f" {metric.unit}"
    effect = analysis.find(arm.name, metric.name)
    if effect is None:
        return f"{value} (reference)"
    return f"{value} ({format_ratio(effect.ratio)}, {format_interval(effect)})"


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
    rows = [
        (
            f"{arm.workload} on {arm.engine}" if several else arm.engine,
            *(
                _cell(arm, METRICS[name] if name else analysis.primary[arm.workload], analysis, measured)
                for _, name in _METRIC_COLUMNS
            ),
        )
        for arm in arms
    ]
    return PlainTable(("engine", *(title for title, _ in _METRIC_COLUMNS)), tuple(rows))
