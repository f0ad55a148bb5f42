"""The figures over time: every trial of a run, coloured by environment, and the step times from the first step on."""

from __future__ import annotations

import html
from collections.abc import Callable
from functools import partial
from statistics import median

import numpy as np

from envmatrix.report.figures import svg
from envmatrix.report.group import Group
from envmatrix.report.report_data import Summary
from envmatrix.stats.array_types import Floats
from envmatrix.stats.measurements import OUTCOMES
from envmatrix.stats.metrics import TICK_DIGITS, Metric, show_seconds
from envmatrix.stats.steady_state.startup import Start
from envmatrix.system.printable import printable_line

WIDTH, HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 860.0, 322.0, 86.0, 14.0, 28.0, 46.0
#: With more trials, each environment is one path: single marks with titles would overload a browser.
_MOST_MARKS = 3000
_MOST_POINTS = 30_000
_LEGEND_COLUMNS, _LEGEND_LETTERS = 4, 28


def environment_colours(summary: Summary) -> dict[str, int]:
    """Return each environment's number, the same in every figure."""
    names = dict.fromkeys(arm.environment for arm in summary.plan.arms)
    return {name: index for index, name in enumerate(names)}


def _times(summary: Summary) -> tuple[Floats, str]:
    """Return the time of every trial: minutes since the first, or its number if starts are unknown."""
    started = summary.measured.trials.started
    if started.size and np.isfinite(started).all() and np.ptp(started) > 0:
        return np.asarray((started - started.min()) / 60.0), "minutes since the first trial"
    return np.arange(started.size, dtype=np.float64), "trial"


def axis_title(metric: Metric) -> str:
    """Return the title of a metric's axis, with the unit only for rates; labels of times and sizes have it."""
    return f"{metric.label}, {metric.unit}" if metric.unit and metric.better == "higher" else metric.label


def _grid(across: svg.Scale, up: svg.Scale, show: Callable[[float], str]) -> str:
    """Return horizontal lines with numbers at the left, and the numbers of the horizontal axis."""
    lines = (
        svg.line(_LEFT, up(value), WIDTH - _RIGHT, up(value), "grid")
        + svg.text(_LEFT - 8, up(value) + 4, show(value), "end soft")
        for value in svg.ticks(up.low, up.high, 6)
    )
    times = svg.ticks(across.low, across.high, 8)
    numbers = (svg.text(across(value), HEIGHT - _BOTTOM + 18, f"{value:g}", "mid soft") for value in times)
    return "".join((*lines, *numbers))


def _scales(times: Floats, values: Floats) -> tuple[svg.Scale, svg.Scale]:
    good = values[np.isfinite(values)]
    low, high = (float(good.min()), float(good.max())) if good.size else (0.0, 1.0)
    margin = (high - low) * 0.06 or abs(high) * 0.05 or 1.0
    across = svg.Scale(float(times.min()), max(1.0, float(times.max())), _LEFT + 8, WIDTH - _RIGHT - 8)
    return across, svg.Scale(low - margin, high + margin, HEIGHT - _BOTTOM, _TOP)


def timeline(summary: Summary, group: Group, name: str = "time", *, has_legend: bool = False) -> str:
    """Return the figure of a group's trials as an svg element; '' without any. In HTML the legend is outside."""
    trials = summary.measured.trials
    names = {row.arm.name for row in group.all_rows}
    arm_rows = [index for index, arm in enumerate(summary.plan.arms) if arm.name in names]
    trial_rows = np.flatnonzero(np.isin(trials.arm, arm_rows))
    trial_rows = trial_rows[:: max(1, -(-trial_rows.size // _MOST_POINTS))]
    if not trial_rows.size:
        return ""
    times, label = _times(summary)
    times, values = times[trial_rows], trials.primary[group.metric.name][trial_rows]
    arm_index, outcome = trials.arm[trial_rows], trials.outcome[trial_rows]
    across, up = _scales(times, values)
    body = _grid(across, up, partial(group.metric.show, digits=TICK_DIGITS))
    body += svg.text(4, 18, axis_title(group.metric), "soft")
    body += svg.text((_LEFT + WIDTH) / 2, HEIGHT - 4, label, "mid soft")
    colours = environment_colours(summary)
    for index in arm_rows:
        environment = summary.plan.arms[index].environment
        kind, rows = colours[environment], np.flatnonzero((arm_index == index) & np.isfinite(values))
        places = [(across(times[i]), up(values[i])) for i in rows]
        if trial_rows.size > _MOST_MARKS:
            path = "".join(f"M{x:.0f} {y:.0f}h2" for x, y in places)
            marks = f'<path d="{path}" class="thin" style="stroke-width:2"/>'
        else:
            name_text = printable_line(environment, 40)
            blocks, figures = trials.block[trial_rows[rows]], map(group.metric.show, values[rows])
            titles = (f"{name_text}, block {block}: {text}" for block, text in zip(blocks, figures, strict=True))
            marks = "".join(
                f"<g>{svg.marker(x, y, kind // svg.COLOURS, 4)}<title>{html.escape(title)}</title></g>"
                for (x, y), title in zip(places, titles, strict=True)
            )
        body += f'<g class="s k{kind % svg.COLOURS} s{kind}">{marks}</g>'
    y = HEIGHT - _BOTTOM - 6
    for x in map(across, times[outcome != OUTCOMES.index("ok")]):
        body += svg.line(x - 3, y - 3, x + 3, y + 3, "broken") + svg.line(x - 3, y + 3, x + 3, y - 3, "broken")
    title = f"Every trial over time: {group.workload} on {group.engine}"
    description = (
        f"{group.metric.label} of {trial_rows.size} trials in the order they ran; crosses are trials not counted"
    )
    more, legend = _legend(summary, group) if has_legend else (0.0, "")
    return svg.drawing(WIDTH, HEIGHT + more, title, description, body + legend, name)


time_figure = partial(timeline, has_legend=True)


def _legend(summary: Summary, group: Group) -> tuple[float, str]:
    """Return the height of the legend and its elements, in columns of equal width."""
    colours = environment_colours(summary)
    names = list(dict.fromkeys(row.arm.environment for row in group.all_rows))
    parts = []
    for place, name in enumerate(names):
        down, across = divmod(place, _LEGEND_COLUMNS)
        x, y = 12.0 + across * (WIDTH - 12) / _LEGEND_COLUMNS, HEIGHT + 14.0 + 18 * down
        kind = colours[name]
        entry = svg.marker(x, y, kind // svg.COLOURS, 4.5) + svg.text(x + 10, y + 4, name, limit=_LEGEND_LETTERS)
        parts.append(f'<g class="k{kind % svg.COLOURS}">{entry}</g>')
    return 10.0 + 18 * -(-len(names) // _LEGEND_COLUMNS), "".join(parts)


#: Upper end of the axis in median steps; a slow first step would flatten all others.
_HIGHEST = 2.0


def step_time_curve(summary: Summary, group: Group, name: str = "start", *, has_legend: bool = False) -> str:
    """Return the figure of a group's steady-state runs as an svg element, as ``timeline`` does."""
    names = {row.arm.name for row in group.all_rows}
    shown_starts = [start for start in summary.starts if start.curve and start.arm.name in names]
    if not shown_starts:
        return ""
    steps = [step for start in shown_starts for _, step in start.curve]
    high = min(max(steps), _HIGHEST * median(steps))
    across = svg.Scale(0.0, max(start.curve[-1][0] for start in shown_starts), _LEFT, WIDTH - _RIGHT)
    up = svg.Scale(0.9 * min(steps), high * 1.02, HEIGHT - _BOTTOM, _TOP)
    colours = environment_colours(summary)
    body = svg.text(4, 18, "time of a step", "soft")
    body += _grid(across, up, partial(show_seconds, digits=TICK_DIGITS))
    body += svg.text((_LEFT + WIDTH) / 2, HEIGHT - 4, "seconds since the first step began", "mid soft")
    body += "".join(_line(start, colours[start.arm.environment], across, up) for start in shown_starts)
    title = f"Step times from the first step on: {group.workload} on {group.engine}"
    description = f"times of the steps of {len(shown_starts)} processes over the seconds since their first step began"
    more, legend = _legend(summary, group) if has_legend else (0.0, "")
    return svg.drawing(WIDTH, HEIGHT + more, title, description, body + legend, name)


start_figure = partial(step_time_curve, has_legend=True)


def _line(start: Start, kind: int, across: svg.Scale, up: svg.Scale) -> str:
    points = " ".join(f"{across(seconds):.1f},{up(step):.1f}" for seconds, step in start.curve)
    shapes = f'<polyline points="{points}" class="thin"/>'
    steady = start.steady
    if steady and steady.seconds is not None and steady.step_s is not None:
        shapes += svg.marker(across(steady.seconds), up(steady.step_s), kind // svg.COLOURS)
    return f'<g class="s k{kind % svg.COLOURS} s{kind}">{shapes}</g>'
