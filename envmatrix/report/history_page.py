"""``envmatrix history --out``: one page that opens offline, a figure for each host, workload and engine."""

from __future__ import annotations

import html
import itertools
from dataclasses import dataclass

import numpy as np

from envmatrix.printable import one_line
from envmatrix.report.formatting import count, sure_ratio
from envmatrix.report.history_columns import changes_told, series_columns, short_told
from envmatrix.report.html_file import page_environment, page_values
from envmatrix.report.svg import COLOURS, Scale, drawing, line, mark, text, ticks
from envmatrix.stats.change_points import FEWEST
from envmatrix.stats.history import History, Series, group_of
from envmatrix.stats.metrics import METRICS, TICK_DIGITS, VALUE, Show

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 860.0, 280.0, 70.0, 14.0, 22.0, 40.0
#: More points than this in a series are drawn as the means of neighbours.
_MOST_POINTS = 400
_METHOD = (
    "binary segmentation (Scott & Knott 1974) on the logs of each environment's ratio to the baseline of the same run, "
    "in which the machine cancels; of the control, a second copy of the baseline, on its medians, which are the "
    "machine's own. A split must fit better than it does in 95.5 % of other orders of the same runs, more for several "
    f"environments (Bonferroni); at least three runs a level, {FEWEST} or more in all. The "
    "factor of a change is the mean of the runs since over that of those before, without an interval: the place was "
    "picked where they differ most, so that it is rather too far from 1. Above 1 is better for an environment; the "
    "control's is that of the metric itself, so that of a time more is slower. Intervals are those of the newest run "
    "alone."
)


@dataclass(frozen=True)
class View:
    """All series of one host, workload, engine, schedule and metric."""

    title: str
    label: str
    series: tuple[Series, ...]
    figure: str
    legend: tuple[tuple[int, str], ...]


def views(history: History) -> list[View]:
    """Return one view a host, workload, engine, schedule and metric, in the order of the series."""
    from markupsafe import Markup  # every text inside is escaped where the figure is made

    found = []
    groups = itertools.groupby(history.series, key=group_of)
    for number, ((host, workload, engine, schedule, metric), grouped) in enumerate(groups):
        series = tuple(grouped)
        known = METRICS.get(metric, VALUE)
        title = ", ".join(filter(None, (f"{workload} on {engine}", schedule, host)))
        legend = tuple((kind, item.environment) for kind, item in enumerate(series))
        figure = Markup(_figure(series, title, known.label, known.show, f"h{number}"))  # noqa: S704
        found.append(View(title, known.label, series, figure, legend))
    return found


def _figure(series: tuple[Series, ...], title: str, label: str, show: Show, name: str) -> str:
    runs = sorted({(point.created, point.run) for item in series for point in item.points})
    place = {run: index for index, run in enumerate(runs)}
    values = [point.median for item in series for point in item.points]
    margin = (max(values) - min(values)) * 0.08 or max(values) * 0.05
    across = Scale(0, max(len(runs) - 1, 1), _LEFT + 10, _WIDTH - _RIGHT - 10)
    up = Scale(min(values) - margin, max(values) + margin, _HEIGHT - _BOTTOM, _TOP)
    body = _axes(runs, across, up, show)
    for kind, item in enumerate(series):
        at = np.array([place[point.created, point.run] for point in item.points], dtype=float)
        body += f'<g class="s k{kind % COLOURS} s{kind}">{_drawn(item, at, kind, across, up, show)}</g>'
    described = f"{label} of {count(len(runs), 'run')}, oldest at the left; flags mark new levels"
    return drawing(_WIDTH, _HEIGHT, title, described, body, f"figure-{name}")


def _axes(runs: list[tuple[str, str]], across: Scale, up: Scale, show: Show) -> str:
    parts = []
    for value in ticks(up.low, up.high, 5):
        parts.append(line(_LEFT, up(value), _WIDTH - _RIGHT, up(value), "grid"))
        parts.append(text(_LEFT - 8, up(value) + 4, show(value, digits=TICK_DIGITS), "end soft"))
    shown = sorted({round(position) for position in np.linspace(0, len(runs) - 1, min(6, len(runs)))})
    for index in shown:
        kind = "soft" if index == 0 < len(runs) - 1 else "end soft" if index == len(runs) - 1 > 0 else "mid soft"
        parts.append(text(across(index), _HEIGHT - _BOTTOM + 18, runs[index][0][:10] or runs[index][1], kind, 20))
    return "".join(parts) + text((_LEFT + _WIDTH) / 2, _HEIGHT - 4, "runs in the order of their dates", "mid soft")


def _drawn(item: Series, at: np.ndarray, kind: int, across: Scale, up: Scale, show: Show) -> str:
    medians = np.array([point.median for point in item.points])
    bins = np.array_split(np.arange(len(medians)), min(_MOST_POINTS, len(medians)))
    xs = [across(float(at[part].mean())) for part in bins]
    ys = [up(float(medians[part].mean())) for part in bins]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))
    parts = [f'<polyline points="{path}" class="thin"/>']
    if len(medians) <= _MOST_POINTS:
        for x, y, point in zip(xs, ys, item.points, strict=True):
            words = f"{one_line(item.environment, 40)}, {one_line(point.run, 40)}: {show(point.median)}"
            parts.append(f"<g>{mark(x, y, kind // COLOURS, 3.5)}<title>{html.escape(words)}</title></g>")
    parts += [_flag(item, change.index, change.factor, at, across, up) for change in item.changes]
    return "".join(parts)


def _flag(item: Series, index: int, factor: float, at: np.ndarray, across: Scale, up: Scale) -> str:
    x, y = across(float(at[index])), up(item.points[index].median)
    words = f"{one_line(item.environment, 40)}: x{sure_ratio(factor)} since {one_line(item.points[index].run, 40)}"
    flag = f'<polygon points="{x:.1f},{y - 22:.1f} {x + 9:.1f},{y - 18:.1f} {x:.1f},{y - 14:.1f}" class="mark"/>'
    label = text(x + 11, y - 14, f"x{sure_ratio(factor)}", "soft")
    return f"<g>{line(x, y, x, y - 22, 'thin')}{flag}{label}<title>{html.escape(words)}</title></g>"


def to_html(history: History) -> str:
    """Return the page."""
    shown = views(history)
    hosts = len({series.host for series in history.series})
    return page_environment().get_template("history.html.j2").render(
        history=history, views=shown, columns=series_columns("html"), method=_METHOD,
        headline=f"{count(history.runs, 'run')} on {count(hosts, 'host')}: {changes_told(history)}.",
        short=short_told(history),
        **page_values(max((len(view.series) for view in shown), default=0)),
    )  # fmt: skip
