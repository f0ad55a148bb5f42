"""The table of ``envmatrix history`` in the terminal and in HTML; to add a column, add an entry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from envmatrix.report.formatting import (
    NONE,
    format_bounds,
    format_count,
    format_decided_ratio,
    format_ratio,
    format_value,
)
from envmatrix.report.headline import WITHHELD
from envmatrix.stats.history import History, Series
from envmatrix.stats.metrics import VALUE, Metric
from envmatrix.stats.primary_metric import metric_from_summary
from envmatrix.system.printable import printable_line

Medium = Literal["terminal", "html"]
_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 24
#: A terminal shows only the newest changes, HTML all.
_MOST_CHANGES = 3


@dataclass(frozen=True)
class SeriesColumn:
    """One column; an HTML table covers one host, workload and engine, and links cells to the report of ``run``."""

    title: str
    cell: Callable[[Series], str]
    kind: Literal["figure", "word", "text"] = "word"
    media: tuple[Medium, ...] = ("terminal", "html")
    run: Callable[[Series], str] | None = None


def sparkline(values: list[float], width: int = _WIDTH) -> str:
    """Return a series as a line of bars, the newest on the right; long series are averaged to ``width`` bars."""
    parts = np.array_split(np.array(values), min(width, len(values))) if values else []
    means = np.array([part.mean() for part in parts])
    if not means.size:
        return ""
    span = float(np.ptp(means))
    heights = (means - means.min()) / span * (len(_BARS) - 1) if span > 0 else np.full(means.size, 3)
    return "".join(_BARS[round(float(height))] for height in heights)


def series_metric(*several: Series) -> Metric:
    """Return the metric of the series in one table, with the label from their newest run that has one."""
    points = sorted((point for series in several for point in series.points), key=lambda point: point.created)
    named_metric = next((point.metric for point in reversed(points) if point.metric[0]), ("", "", ""))
    return metric_from_summary(several[0].metric, *named_metric)


def _latest(series: Series) -> str:
    metric = series_metric(series)
    value = series.points[-1].mean
    return format_value(metric, value) if metric.name == VALUE.name else metric.show(value)


def _latest_run(series: Series) -> str:
    return series.points[-1].run


def _speed_up(series: Series) -> str:
    """Return the newest speed-up with its limitations; without an interval, return a dash."""
    last = series.points[-1]
    if last.ratio is None or last.low is None or last.high is None:
        return NONE
    formatter = format_ratio if last.low <= 1.0 <= last.high else format_decided_ratio
    marks = (("equal work not checked", last.unchecked), ("short run", last.short))
    undecided = [f"undecided: {WITHHELD.get(last.withheld, last.withheld)}"] if last.withheld else []
    notes = (*undecided, *last.barred, *(text for text, applies in marks if applies))
    return ", ".join((f"{formatter(last.ratio)} ({format_bounds(last.low, last.high)})", *notes))


def changes_summary(history: History) -> str:
    """Return the number of level changes, and the number of series too short for a search."""
    followed = [series for series in history.series if series.followed]
    searchable = [series for series in followed if series.has_enough]
    short_count = len(followed) - len(searchable)
    if followed and not searchable:
        return "too few runs to look for a change of level"
    changes = format_count(sum(len(series.changes) for series in history.series), "change")
    return f"{changes} of level" + (
        f"; too few runs to look for any in {short_count} of {len(followed)} series" if short_count else ""
    )


def short_run_explanation(history: History) -> str:
    """Return the meaning of "short run", '' if no displayed speed-up is from one."""
    if not any(series.points[-1].short and series.points[-1].low is not None for series in history.series):
        return ""
    return (
        "short run: its blocks span so few minutes that its 95 % CI describes the machine during that time; slow "
        "phases of the machine may make it miss the mean over a longer time"
    )


def workload_engine_text(series: Series) -> str:
    """Return the workload and engine of a series, with its interleaving if any."""
    return f"{series.workload}@{series.engine}" + (f", {series.schedule}" if series.schedule else "")


def _changes(series: Series, max_changes: int | None = None) -> str:
    if not series.followed:
        return NONE
    if not series.has_enough:
        return f"too few runs: {series.followed} of {series.needed}"
    changes = series.changes[-max_changes:] if max_changes else series.changes
    change_texts = (
        f"x{format_decided_ratio(change.factor)} since {printable_line(change.run, 40)}" for change in changes
    )
    return ", ".join(change_texts) or "no change"


SERIES_COLUMNS: tuple[SeriesColumn, ...] = (
    SeriesColumn("host", lambda series: series.host or NONE, media=("terminal",)),
    SeriesColumn("workload@engine", workload_engine_text, media=("terminal",)),
    SeriesColumn("environment", lambda series: series.environment + " (the machine)" * series.is_machine),
    SeriesColumn("runs", lambda series: str(len(series.points)), "figure"),
    SeriesColumn("latest", _latest, "figure"),
    SeriesColumn("speed-up (95 % CI)", _speed_up, "figure"),
    SeriesColumn("latest run", _latest_run, media=("html",), run=_latest_run),
    SeriesColumn("course", lambda series: sparkline(series.course), media=("terminal",)),
    SeriesColumn("changes", lambda series: _changes(series, _MOST_CHANGES), "text", media=("terminal",)),
    SeriesColumn("changes", _changes, "text", media=("html",)),
)


def series_columns(medium: Medium) -> list[SeriesColumn]:
    """Return the columns of a medium."""
    return [column for column in SERIES_COLUMNS if medium in column.media]


def history_table(history: History) -> Table:
    """Return the table with one row per series."""
    table = Table(title=f"{format_count(history.runs, 'run')}", title_justify="left")
    columns = series_columns("terminal")
    for column in columns:
        table.add_column(column.title, justify="right" if column.kind == "figure" else "left", overflow="fold")
    for series in history.series:
        table.add_row(*(Text(printable_line(column.cell(series), 120)) for column in columns))
    return table


def print_history(history: History, console: Console) -> None:
    """Print the table, and the folders that could not be read."""
    console.print(history_table(history))
    if short_note := short_run_explanation(history):
        console.print(Text(short_note))
    if history.unreadable:
        names = printable_line(", ".join(history.unreadable), 200)
        console.print(Text(f"warning: no readable summary.json in {names}\n  -> envmatrix report RUN writes it"))
