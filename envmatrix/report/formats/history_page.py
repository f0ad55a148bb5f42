"""The HTML page of ``envmatrix history --output``, with a section per host, workload and engine."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from markupsafe import Markup

from envmatrix.plan.schedule import CONTROL
from envmatrix.report.figures.history import Curve, Frame, RunKey, figure, mean_marks, ratio_marks, run_order_key
from envmatrix.report.figures.timeline import axis_title
from envmatrix.report.formats.html_file import page_environment, page_values
from envmatrix.report.formatting import format_count
from envmatrix.report.tables.history import changes_summary, series_columns, series_metric, short_run_explanation
from envmatrix.stats.history import History, Series, series_group
from envmatrix.stats.inference.change_points import MIN_RUNS
from envmatrix.stats.metrics import Metric


@dataclass(frozen=True)
class Update:
    """New versions in a run: ``changes`` are (what, before, now, the affected environments)."""

    run: str
    created: str
    changes: tuple[tuple[str, str, str, tuple[str, ...]], ...]


@dataclass(frozen=True)
class HistoryView:
    """All series of one host, workload, engine, schedule and metric.

    ``figure`` shows ratios to the baseline, or means if there are none; '' for a single run. ``machine`` shows the
    means of control and baseline; '' if ``figure`` already does.
    """

    title: str
    metric: Metric
    series: tuple[Series, ...]
    figure: str
    machine: str
    by_ratio: bool
    updates: tuple[Update, ...]


def history_views(history: History) -> list[HistoryView]:
    """Return one view per host, workload, engine, schedule and metric, in the order of the series."""
    groups = itertools.groupby(history.series, key=series_group)
    return [_history_view(number, group, tuple(group_series)) for number, (group, group_series) in enumerate(groups)]


def _history_view(number: int, group: tuple[str, ...], series: tuple[Series, ...]) -> HistoryView:
    host, workload, engine, schedule, _ = group
    metric = series_metric(*series)
    title = ", ".join(filter(None, (f"{workload} on {engine}", schedule, host)))
    updates = tuple(_updates(series))
    runs = tuple(sorted({run_order_key(point) for curve in series for point in curve.points}))
    marked = tuple((update.created, update.run) for update in updates)
    of_ratio = Frame(runs, title, "ratio to the baseline", metric.show, f"h{number}", marked, by_ratio=True)
    of_mean = Frame(runs, f"{title}: the machine", axis_title(metric), metric.show, f"m{number}", marked)
    marks = [() if curve.is_machine else ratio_marks(curve) for curve in series]
    ratios = [Curve(kind, curve, marks[kind]) for kind, curve in enumerate(series) if marks[kind]]
    means = [Curve(kind, curve, mean_marks(curve, metric.show)) for kind, curve in enumerate(series) if not marks[kind]]
    main_figure = figure(of_ratio, ratios) if ratios else figure(of_mean, means)
    machine_figure = figure(of_mean, means) if ratios else ""
    if len(runs) < 2:  # the table has more information than a single point
        main_figure = machine_figure = ""
    figures = Markup(main_figure), Markup(machine_figure)  # noqa: S704
    return HistoryView(title, metric, series, *figures, bool(ratios), updates)


def _updates(series: Sequence[Series]) -> Iterator[Update]:
    """Yield the runs with a version that differs from the previous run, oldest first."""
    changes_by_run: dict[RunKey, dict[tuple[str, str, str], list[str]]] = {}
    for curve in series:
        for before, point in itertools.pairwise(curve.points):
            was = dict(before.versions)
            for what, now in point.versions:
                if was.get(what, now) != now:
                    changes = changes_by_run.setdefault(run_order_key(point), {})
                    changes.setdefault((what, was[what], now), []).append(curve.environment)
    everywhere = {curve.environment for curve in series} - {CONTROL}
    for (created, run), changes in sorted(changes_by_run.items()):
        named = ((*version, () if everywhere <= {*names} else tuple(names)) for version, names in changes.items())
        yield Update(run, created, tuple(named))


def to_html(history: History, results: str | None = None) -> str:
    """Return the page; ``results`` is the relative path to the results folder (None: no links to reports)."""
    shown_views = history_views(history)
    hosts = len({series.host for series in history.series})

    def report(run: str) -> str:
        return quote(f"{results}/{run}/report.html", errors="replace") if results is not None else ""

    return page_environment().get_template("history.html.j2").render(
        history=history, views=shown_views, columns=series_columns("html"), axis=axis_title, report=report,
        fewest=MIN_RUNS, short=short_run_explanation(history),
        headline=f"{format_count(history.runs, 'run')} on {format_count(hosts, 'host')}: {changes_summary(history)}.",
        **page_values(max((len(view.series) for view in shown_views), default=0)),
    )  # fmt: skip
