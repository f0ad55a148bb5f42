"""The OpenMetrics text format (https://prometheus.io/docs/specs/om/open_metrics_spec/), for dashboards.

Only gauges without time stamps, so that node_exporter's textfile collector can read it too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import TypeAlias

from envmatrix.report.group import Row
from envmatrix.report.report_data import Summary
from envmatrix.system.printable import printable_line

Labels: TypeAlias = Mapping[str, str]
#: Name without prefix, unit ('': none), help text, and samples.
Family: TypeAlias = tuple[str, str, str, Iterable[tuple[Labels, float | None]]]


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _lines(family: Family) -> Iterator[str]:
    """Yield the lines of a metric family; none without finite samples."""
    name, unit, meaning, samples = family
    known = [(labels, float(value)) for labels, value in samples if value is not None and math.isfinite(value)]
    if not known:
        return
    yield f"# TYPE envmatrix_{name} gauge"
    if unit:
        yield f"# UNIT envmatrix_{name} {unit}"
    yield f"# HELP envmatrix_{name} {_escape(meaning)}"
    for labels, value in known:
        label_text = ",".join(f'{label}="{_escape(printable_line(text))}"' for label, text in labels.items())
        yield f"envmatrix_{name}{{{label_text}}} {value!r}"


def unix_seconds(created: str) -> float | None:
    """Return the start of a run in seconds since 1970; None if the text is not a time."""
    try:
        return datetime.fromisoformat(created.replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def _families(summary: Summary) -> Iterator[Family]:
    """Yield every metric family of a run, with labels for selection in a dashboard."""
    run = summary.run
    design = {"design": run.plan.design}
    rows = [(row, group.metric) for group in summary.groups for row in group.all_rows]

    def labels(row: Row, **more: str) -> Labels:
        arm = row.arm
        return {**design, "workload": arm.workload, "engine": arm.engine, "environment": arm.environment, **more}

    effects = [(labels(row, reference=row.effect.reference), row.effect) for row, _ in rows if row.effect]
    for name, figure, meaning in (
        ("speed_up_ratio", "ratio", "Speed-up over the reference in the primary metric; above 1 is faster."),
        ("speed_up_low_ratio", "low", "Lower end of its simultaneous 95 % interval."),
        ("speed_up_high_ratio", "high", "Upper end of its simultaneous 95 % interval."),
    ):
        yield name, "ratio", meaning, [(names, getattr(effect, figure)) for names, effect in effects]
    verdicts = [({**names, "verdict": effect.verdict}, 1) for names, effect in effects]
    yield "verdict", "", "1 for the verdict: faster, slower, same or undecided.", verdicts
    means = [(labels(row, metric=metric.name, unit=metric.unit), row.value) for row, metric in rows]
    yield "mean", "", "Geometric mean of the primary metric over trials, in its unit.", means
    memory = [(labels(row), row.memory) for row, _ in rows]
    yield "memory_bytes", "bytes", "Median of the peak memory over trials.", memory
    outcomes = [(labels(row, outcome=name), number) for row, _ in rows for name, number in row.outcomes.items()]
    yield "trials", "", "Trials by outcome.", outcomes
    kinds = [({**design, "warning": kind}, 1) for kind in dict.fromkeys(item.kind.value for item in summary.cautions)]
    yield "warning", "", "1 for each kind of warning; `envmatrix docs WARNING` explains it.", kinds
    of_run = {**design, "run": run.name, "host": run.host.name or "", "processor": summary.processors}
    created = [(of_run, unix_seconds(run.created))]
    yield "run_created_seconds", "seconds", "When the run began, since 1970.", created


def to_openmetrics(summary: Summary) -> str:
    """Return the OpenMetrics text; families without samples are left out."""
    lines = [line for family in _families(summary) for line in _lines(family)]
    return "\n".join([*lines, "# EOF"]) + "\n"
