"""The figures of a history: ratios to the baseline with intervals, and the machine's own means, by run."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from envmatrix.report.figures.svg import COLOURS, Scale, line_element, marker_element, svg_drawing, text_element, ticks
from envmatrix.report.formatting import format_bounds, format_count, format_decided_ratio, format_ratio
from envmatrix.stats.history import Point, Series
from envmatrix.stats.metrics import TICK_DIGITS, NumberFormatter
from envmatrix.system.printable import printable_line

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 860.0, 280.0, 70.0, 66.0, 22.0, 40.0
#: Longer series are drawn as means of neighbouring points.
_MOST_POINTS = 400
#: Most runs with new versions that are marked in a figure; the list below it has all.
_MOST_MARKED = 40
#: Date and name of a run: the order of the axis.
RunKey = tuple[str, str]


@dataclass(frozen=True)
class Curve:
    """One series to draw: ``kind`` is its colour and mark, ``by_ratio`` selects ratios instead of means."""

    kind: int
    series: Series
    by_ratio: bool

    @property
    def points(self) -> list[tuple[Point, float]]:
        """The runs with a value, and the value; a ratio without an interval does not count."""
        if not self.by_ratio:
            return [(point, point.mean) for point in self.series.points]
        return [(point, point.ratio) for point in self.series.points if point.ratio is not None and self.ends(point)]

    def ends(self, point: Point) -> tuple[float, float] | None:
        """Return the interval of a run, None if none is drawn."""
        has_interval = self.by_ratio and point.low is not None and point.high is not None
        return (point.low, point.high) if has_interval else None  # type: ignore[return-value]


@dataclass(frozen=True)
class Frame:
    """The common parts of a figure's curves: runs on the axis, title, labels, and runs with new versions."""

    runs: tuple[RunKey, ...]
    title: str
    label: str
    show: NumberFormatter
    name: str
    marked: tuple[RunKey, ...] = ()


def run_order_key(point: Point) -> RunKey:
    """Return the sort key of a run."""
    return point.created, point.run


def figure(frame: Frame, curves: Sequence[Curve]) -> str:
    """Return the svg element; '' if no curve has a value."""
    values = [value for curve in curves for _, value in curve.points]
    if not values:
        return ""
    if sum(len(curve.points) for curve in curves) <= _MOST_POINTS:
        values += [end for curve in curves for point, _ in curve.points for end in curve.ends(point) or ()]
    margin = (max(values) - min(values)) * 0.08 or max(values) * 0.05
    across = Scale(0, max(1, len(frame.runs) - 1), _LEFT + 10, _WIDTH - _RIGHT - 10)
    up = Scale(min(values) - margin, max(values) + margin, _HEIGHT - _BOTTOM, _TOP)
    place = {run: index for index, run in enumerate(frame.runs)}
    by_ratio = any(curve.by_ratio for curve in curves)
    body = _axes(frame, across, up, by_ratio=by_ratio)
    for run in frame.marked[-_MOST_MARKED:]:
        x = across(place[run])
        body += (
            f"<g>{line_element(x, _TOP, x, _HEIGHT - _BOTTOM, 'since')}<title>other versions since this run</title></g>"
        )
    for curve in curves:
        curve_shapes = _draw_curve(curve, place, across, up, frame.show)
        body += f'<g class="s k{curve.kind % COLOURS} s{curve.kind}">{curve_shapes}</g>'
    description = f"{frame.label} of {format_count(len(frame.runs), 'run')}, oldest at the left; flags mark new levels"
    return svg_drawing(_WIDTH, _HEIGHT, frame.title, description, body, f"figure-{frame.name}")


def _axes(frame: Frame, across: Scale, up: Scale, *, by_ratio: bool) -> str:
    parts = []
    for value in ticks(up.low, up.high, 5):
        kind = "one" if by_ratio and math.isclose(value, 1.0) else "grid"
        parts.append(line_element(_LEFT, up(value), _WIDTH - _RIGHT, up(value), kind))
        tick_text = f"{value:.6g}" if by_ratio else frame.show(value, digits=TICK_DIGITS)
        parts.append(text_element(_LEFT - 8, up(value) + 4, tick_text, "end soft"))
        parts.append(
            text_element(_WIDTH - _RIGHT + 8, up(value) + 4, tick_text, "soft")
        )  # the end that a narrow screen shows
    runs = frame.runs
    shown_at = sorted({round(position) for position in np.linspace(0, len(runs) - 1, min(6, len(runs)))})
    for index in shown_at:
        kind = "soft" if index == 0 < len(runs) - 1 else "end soft" if index == len(runs) - 1 else "mid soft"
        parts.append(
            text_element(across(index), _HEIGHT - _BOTTOM + 18, runs[index][0][:10] or runs[index][1], kind, 20)
        )
    parts.append(text_element(4, 12, frame.label, "soft"))
    return "".join(parts) + text_element(_WIDTH - _RIGHT, _HEIGHT - 4, "runs in the order of their dates", "end soft")


def _draw_curve(curve: Curve, place: dict[RunKey, int], across: Scale, up: Scale, show: NumberFormatter) -> str:
    points = curve.points
    if not points:
        return ""
    run_positions = np.array([place[run_order_key(point)] for point, _ in points], dtype=float)
    values = np.array([value for _, value in points])
    bins = np.array_split(np.arange(len(values)), min(_MOST_POINTS, len(values)))
    xs = [across(float(run_positions[bin_rows].mean())) for bin_rows in bins]
    ys = [up(float(values[bin_rows].mean())) for bin_rows in bins]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))
    parts = [f'<polyline points="{path}" class="thin"/>']
    if len(values) <= _MOST_POINTS:
        for x, y, (point, value) in zip(xs, ys, points, strict=True):
            parts.append(_draw_point(curve, point, value, (x, y), up, show))
    index_of = {run_order_key(point): index for index, (point, _) in enumerate(points)}
    for change in curve.series.changes:
        index = index_of.get((change.created, change.run))
        if index is not None:
            parts.append(
                _draw_flag(curve.series, change.run, change.factor, across(run_positions[index]), up(values[index]))
            )
    return "".join(parts)


def _draw_point(
    curve: Curve, point: Point, value: float, position: tuple[float, float], up: Scale, show: NumberFormatter
) -> str:
    x, y = position
    ends = curve.ends(point)
    bar = line_element(x, up(ends[0]), x, up(ends[1]), "thin") if ends else ""
    figures = (
        f"{format_ratio(value)} ({format_bounds(*ends)})"
        if ends
        else format_ratio(value)
        if curve.by_ratio
        else show(value)
    )
    words = f"{printable_line(curve.series.environment, 40)}, {printable_line(point.run, 40)}: {figures}"
    return f"<g>{bar}{marker_element(x, y, curve.kind // COLOURS, 3.5)}<title>{html.escape(words)}</title></g>"


def _draw_flag(series: Series, run: str, factor: float, x: float, y: float) -> str:
    words = f"{printable_line(series.environment, 40)}: x{format_decided_ratio(factor)} since {printable_line(run, 40)}"
    flag = f'<polygon points="{x:.1f},{y - 22:.1f} {x + 9:.1f},{y - 18:.1f} {x:.1f},{y - 14:.1f}" class="mark"/>'
    label = text_element(x + 11, y - 14, f"x{format_decided_ratio(factor)}", "soft")
    return f"<g>{line_element(x, y, x, y - 22, 'thin')}{flag}{label}<title>{html.escape(words)}</title></g>"
