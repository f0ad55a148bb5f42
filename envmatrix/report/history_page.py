"""``envmatrix history --output``: a page that a team keeps open, with a section a host, workload and engine."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from envmatrix.plan.schedule import CONTROL
from envmatrix.report.formatting import count
from envmatrix.report.history_columns import changes_told, metric_of, series_columns, short_told
from envmatrix.report.history_figure import Curve, Frame, When, figure, when
from envmatrix.report.html_file import page_environment, page_values
from envmatrix.report.timeline import axis_title
from envmatrix.stats.change_points import FEWEST
from envmatrix.stats.history import History, Series, group_of

_METHOD = (
    "binary segmentation (Scott & Knott 1974) on the logs of each environment's ratio to the baseline of the same run, "
    "in which the machine cancels; of the control, a second copy of the baseline, on its means, which are the "
    "machine's own. A split must fit better than it does in 95.5 % of other orders of the same runs, more for several "
    f"environments (Bonferroni); at least three runs a level, {FEWEST} or more in all. The "
    "factor of a change is the mean of the runs since over that of those before, without an interval: the place was "
    "picked where they differ most, so that it is rather too far from 1. Above 1 is better for an environment; the "
    "control's is that of the metric itself, so that of a time more is slower. An interval is that of its run alone."
)


@dataclass(frozen=True)
class Update:
    """Versions that a run is the first to have: ``changes`` are (what, before, now, the environments it is so in)."""

    run: str
    created: str
    changes: tuple[tuple[str, str, str, tuple[str, ...]], ...]


@dataclass(frozen=True)
class View:
    """All series of one host, workload, engine, schedule and metric.

    ``figure`` is of ratios to the baseline where there are any, else of means, and '' of a single run; ``machine`` of
    the means of control and baseline, '' where ``figure`` has them.
    """

    title: str
    label: str
    axis: str
    series: tuple[Series, ...]
    figure: str
    machine: str
    by_ratio: bool
    legend: tuple[tuple[int, str], ...]
    updates: tuple[Update, ...]


def views(history: History) -> list[View]:
    """Return one view a host, workload, engine, schedule and metric, in the order of the series."""
    groups = itertools.groupby(history.series, key=group_of)
    return [_view(number, group, tuple(found)) for number, (group, found) in enumerate(groups)]


def _view(number: int, group: tuple[str, ...], series: tuple[Series, ...]) -> View:
    from markupsafe import Markup  # every text inside is escaped where the figure is made

    host, workload, engine, schedule, _ = group
    known = metric_of(*series)
    title = ", ".join(filter(None, (f"{workload} on {engine}", schedule, host)))
    compared = [not one.is_machine and bool(Curve(0, one, by_ratio=True).points) for one in series]
    updates = tuple(_updates(series))
    runs = tuple(sorted({when(point) for one in series for point in one.points}))
    marked = tuple((one.created, one.run) for one in updates)
    of_ratio = Frame(runs, title, "ratio to the baseline", known.show, f"h{number}", marked)
    of_mean = Frame(runs, f"{title}: the machine", axis_title(known), known.show, f"m{number}", marked)
    ratios = [Curve(kind, one, by_ratio=True) for kind, one in enumerate(series) if compared[kind]]
    means = [Curve(kind, one, by_ratio=False) for kind, one in enumerate(series) if not compared[kind]]
    first = figure(of_ratio, ratios) if ratios else figure(of_mean, means)
    second = figure(of_mean, means) if ratios else ""
    if len(runs) < 2:  # a single point in an empty frame: the table says more
        first = second = ""
    legend = tuple((kind, one.environment) for kind, one in enumerate(series))
    drawn = Markup(first), Markup(second)  # noqa: S704
    return View(title, known.label, axis_title(known), series, *drawn, bool(ratios), legend, updates)


def _updates(series: Sequence[Series]) -> Iterator[Update]:
    """Yield the runs in which a version differs from the run before, oldest first."""
    found: dict[When, dict[tuple[str, str, str], list[str]]] = {}
    for one in series:
        for before, point in itertools.pairwise(one.points):
            was = dict(before.versions)
            for what, now in point.versions:
                if what in was and was[what] != now:
                    found.setdefault(when(point), {}).setdefault((what, was[what], now), []).append(one.environment)
    every = len({one.environment for one in series if one.environment != CONTROL})
    for (created, run), changes in sorted(found.items()):
        told = []
        for (what, before_it, now), names in changes.items():
            own = tuple(name for name in names if name != CONTROL)
            told.append((what, before_it, now, () if len(own) == every else tuple(names)))
        yield Update(run, created, tuple(told))


def to_html(history: History, results: str | None = None) -> str:
    """Return the page; ``results`` is the way from the page to the folder of the runs (None: no links to reports)."""
    shown = views(history)
    hosts = len({series.host for series in history.series})

    def report(run: str) -> str:
        return quote(f"{results}/{run}/report.html", errors="replace") if results is not None else ""

    return page_environment().get_template("history.html.j2").render(
        history=history, views=shown, columns=series_columns("html"), method=_METHOD, report=report,
        headline=f"{count(history.runs, 'run')} on {count(hosts, 'host')}: {changes_told(history)}.",
        short=short_told(history),
        **page_values(max((len(view.series) for view in shown), default=0)),
    )  # fmt: skip
