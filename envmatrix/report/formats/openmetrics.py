"""The OpenMetrics text format (https://prometheus.io/docs/specs/om/open_metrics_spec/), for dashboards.

Only gauges without time stamps, so that node_exporter's textfile collector can read it too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from envmatrix.report.catalog import BuiltIn
from envmatrix.report.group import Row
from envmatrix.report.summary import Summary
from envmatrix.system.printable import printable_line

Labels = Mapping[str, str]


@dataclass(frozen=True)
class MetricFamily:
    """One metric family: its name, unit ('': none), help text, and samples."""

    name: str
    unit: str
    help: str
    samples: tuple[tuple[Labels, float], ...]

    def lines(self) -> Iterator[str]:
        """Yield the lines of the family."""
        yield f"# TYPE {self.name} gauge"
        if self.unit:
            yield f"# UNIT {self.name} {self.unit}"
        yield f"# HELP {self.name} {_escape(self.help)}"
        for labels, value in self.samples:
            label_text = ",".join(f'{name}="{_escape(printable_line(text))}"' for name, text in labels.items())
            yield f"{self.name}{{{label_text}}} {value!r}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _metric_family(name: str, unit: str, meaning: str, samples: Iterator[tuple[Labels, float | None]]) -> MetricFamily:
    finite_samples = ((labels, float(value)) for labels, value in samples if value is not None and math.isfinite(value))
    return MetricFamily(f"envmatrix_{name}", unit, meaning, tuple(finite_samples))


def unix_seconds(created: str) -> float | None:
    """Return the start of a run in seconds since 1970; None if the text is not a time."""
    try:
        return datetime.fromisoformat(created.replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def _labels(summary: Summary, row: Row, **more: str) -> Labels:
    arm = row.arm
    labels = {"workload": arm.workload, "engine": arm.engine, "environment": arm.environment}
    return {"design": summary.plan.design, **labels, **more}


def metric_families(summary: Summary) -> Iterator[MetricFamily]:
    """Yield every metric family of a run, with labels for selection in a dashboard."""
    rows = [(row, group) for group in summary.groups for row in group.all_rows]
    effects = [(_labels(summary, row, reference=row.effect.reference), row.effect) for row, _ in rows if row.effect]
    yield _metric_family(
        "speed_up_ratio",
        "ratio",
        "Speed-up over the reference in the primary metric; above 1 is faster.",
        ((labels, effect.ratio) for labels, effect in effects),
    )
    yield _metric_family(
        "speed_up_low_ratio",
        "ratio",
        "Lower end of its simultaneous 95 % interval.",
        ((labels, effect.low) for labels, effect in effects),
    )
    yield _metric_family(
        "speed_up_high_ratio",
        "ratio",
        "Upper end of its simultaneous 95 % interval.",
        ((labels, effect.high) for labels, effect in effects),
    )
    yield _metric_family(
        "verdict",
        "",
        "1 for the verdict: faster, slower, same or undecided.",
        (({**labels, "verdict": effect.verdict}, 1) for labels, effect in effects),
    )
    yield _metric_family(
        "mean",
        "",
        "Geometric mean of the primary metric over trials, in its unit.",
        ((_labels(summary, row, metric=group.metric.name, unit=group.metric.unit), row.value) for row, group in rows),
    )
    yield _metric_family(
        "memory_bytes",
        "bytes",
        "Median of the peak memory over trials.",
        ((_labels(summary, row), row.memory) for row, _ in rows),
    )
    yield _metric_family(
        "trials",
        "",
        "Trials by outcome.",
        ((_labels(summary, row, outcome=name), number) for row, _ in rows for name, number in row.outcomes.items()),
    )
    yield from _run_families(summary)


def _run_families(summary: Summary) -> Iterator[MetricFamily]:
    run = summary.run
    kinds = dict.fromkeys(caution.kind.value for caution in summary.cautions)
    yield _metric_family(
        "warning",
        "",
        "1 for each kind of warning; `envmatrix docs WARNING` explains it.",
        (({"design": run.plan.design, "warning": kind}, 1) for kind in kinds),
    )
    labels = {"design": run.plan.design, "run": run.name, "host": run.host.name or "", "processor": summary.processors}
    began = unix_seconds(run.created)
    yield _metric_family("run_created_seconds", "seconds", "When the run began, since 1970.", iter([(labels, began)]))


def to_openmetrics(summary: Summary) -> str:
    """Return the OpenMetrics text; families without samples are left out."""
    lines = [line for family in metric_families(summary) if family.samples for line in family.lines()]
    return "\n".join([*lines, "# EOF"]) + "\n"


#: Factory of the format, for the catalog.
openmetrics_report = partial(BuiltIn, lambda summary, _: to_openmetrics(summary), "openmetrics")
