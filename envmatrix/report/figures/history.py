"""The figures of a history: ratios to the baseline with intervals, and the machine's own means, by run."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from envmatrix.report.figures import svg
from envmatrix.report.formatting import format_bounds, format_count, format_decided_ratio, format_ratio
from envmatrix.stats.history import Change, Point, Series
from envmatrix.stats.metrics import TICK_DIGITS, NumberFormatter
from envmatrix.system.printable import printable_line

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 860.0, 286.0, 86.0, 14.0, 28.0, 46.0
#: Longer series are drawn as means of neighbouring points.
_MOST_POINTS = 400
#: Most runs with new versions that are marked in a figure; the list below it has all.
_MOST_MARKED = 40
#: Date and name of a run: the order of the axis.
RunKey = tuple[str, str]


class Mark(NamedTuple):
    """One run of a curve: its value, the ends of its interval (None: not drawn), and both as text."""

    run: RunKey
    value: float
    ends: tuple[float, float] | None
    text: str


@dataclass(frozen=True)
class Curve:
    """One series to draw: ``kind`` is its colour and mark."""

    kind: int
    series: Series
    marks: tuple[Mark, ...]


@dataclass(frozen=True)
class Frame:
    """The common parts of a figure's curves: runs on the axis, title, labels, and runs with new versions."""

    runs: tuple[RunKey, ...]
    title: str
    label: str
    show: NumberFormatter
    name: str
    marked: tuple[RunKey, ...]
    by_ratio: bool = False


def run_order_key(point: Point) -> RunKey:
    """Return the sort key of a run."""
    return point.created, point.run


def ratio_marks(series: Series) -> tuple[Mark, ...]:
    """Return the ratios to the baseline; one without an interval does not count."""
    return tuple(
        Mark(
            run_order_key(point),
            point.ratio,
            (point.low, point.high),
            f"{format_ratio(point.ratio)} ({format_bounds(point.low, point.high)})",
        )
        for point in series.points
        if point.ratio is not None and point.low is not None and point.high is not None
    )


def mean_marks(series: Series, show: NumberFormatter) -> tuple[Mark, ...]:
    """Return the means."""
    return tuple(Mark(run_order_key(point), point.mean, None, show(point.mean)) for point in series.points)


def figure(frame: Frame, curves: Sequence[Curve]) -> str:
    """Return the svg element; '' if no curve has a value."""
    marks = [mark for curve in curves for mark in curve.marks]
    if not marks:
        return ""
    values = [mark.value for mark in marks]
    if len(marks) <= _MOST_POINTS:
        values += [end for mark in marks for end in mark.ends or ()]
    margin = (max(values) - min(values)) * 0.08 or max(values) * 0.05
    across = svg.Scale(0, max(1, len(frame.runs) - 1), _LEFT + 10, _WIDTH - _RIGHT - 10)
    up = svg.Scale(min(values) - margin, max(values) + margin, _HEIGHT - _BOTTOM, _TOP)
    places = {run: across(index) for index, run in enumerate(frame.runs)}
    body = _axes(frame, places, up)
    for run in frame.marked[-_MOST_MARKED:]:
        line = svg.line(places[run], _TOP, places[run], _HEIGHT - _BOTTOM, "since")
        body += f"<g>{line}<title>other versions since this run</title></g>"
    for curve in curves:
        body += f'<g class="s k{curve.kind % svg.COLOURS} s{curve.kind}">{_draw_curve(curve, places, up)}</g>'
    description = f"{frame.label} of {format_count(len(frame.runs), 'run')}, oldest at the left; flags mark new levels"
    return svg.drawing(_WIDTH, _HEIGHT, frame.title, description, body, f"figure-{frame.name}")


def _axes(frame: Frame, places: Mapping[RunKey, float], up: svg.Scale) -> str:
    body = ""
    for value in svg.ticks(up.low, up.high, 5):
        kind = "one" if frame.by_ratio and math.isclose(value, 1.0) else "grid"
        text = f"{value:.6g}" if frame.by_ratio else frame.show(value, digits=TICK_DIGITS)
        body += svg.line(_LEFT, up(value), _WIDTH - _RIGHT, up(value), kind)
        body += svg.text(_LEFT - 8, up(value) + 4, text, "end soft")
    runs = frame.runs
    for index in sorted({round(position) for position in np.linspace(0, len(runs) - 1, min(6, len(runs)))}):
        kind = "soft" if index == 0 < len(runs) - 1 else "end soft" if index == len(runs) - 1 else "mid soft"
        date = runs[index][0][:10] or runs[index][1]
        body += svg.text(places[runs[index]], _HEIGHT - _BOTTOM + 18, date, kind, 20)
    body += svg.text(4, 18, frame.label, "soft")
    return body + svg.text(_WIDTH - _RIGHT, _HEIGHT - 4, "runs in the order of their dates", "end soft")


def _draw_curve(curve: Curve, places: Mapping[RunKey, float], up: svg.Scale) -> str:
    """Draw a line through the marks, or through means of neighbouring ones, and flags at changes of level."""
    if not curve.marks:
        return ""
    positions = np.array([(places[mark.run], up(mark.value)) for mark in curve.marks])
    bins = np.array_split(positions, min(_MOST_POINTS, len(positions)))
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (part.mean(axis=0) for part in bins))
    body = f'<polyline points="{path}" class="thin"/>'
    if len(positions) <= _MOST_POINTS:
        body += "".join(_draw_mark(curve, mark, x, up) for mark, (x, _) in zip(curve.marks, positions, strict=True))
    position_of = {mark.run: position for mark, position in zip(curve.marks, positions, strict=True)}
    for change in curve.series.changes:
        if (change.created, change.run) in position_of:
            body += _draw_flag(curve.series, change, *position_of[change.created, change.run])
    return body


def _draw_mark(curve: Curve, mark: Mark, x: float, up: svg.Scale) -> str:
    bar = svg.line(x, up(mark.ends[0]), x, up(mark.ends[1]), "thin") if mark.ends else ""
    title = f"{printable_line(curve.series.environment, 40)}, {printable_line(mark.run[1], 40)}: {mark.text}"
    shape = svg.marker(x, up(mark.value), curve.kind // svg.COLOURS, 3.5)
    return f"<g>{bar}{shape}<title>{html.escape(title)}</title></g>"


def _draw_flag(series: Series, change: Change, x: float, y: float) -> str:
    factor = f"x{format_decided_ratio(change.factor)}"
    title = f"{printable_line(series.environment, 40)}: {factor} since {printable_line(change.run, 40)}"
    flag = f'<polygon points="{x:.1f},{y - 22:.1f} {x + 9:.1f},{y - 18:.1f} {x:.1f},{y - 14:.1f}" class="mark"/>'
    label = svg.text(x + 11, y - 14, factor, "soft")
    return f"<g>{svg.line(x, y, x, y - 22, 'thin')}{flag}{label}<title>{html.escape(title)}</title></g>"
