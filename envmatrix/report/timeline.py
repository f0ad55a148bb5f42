"""Every trial over time, coloured by environment: drift of the machine is seen here first."""

from __future__ import annotations

import html

import numpy as np
from numpy.typing import NDArray

from envmatrix.report.group import Group
from envmatrix.report.summary import Summary
from envmatrix.report.svg import COLOURS, Scale, drawing, line, mark, text, ticks, widened
from envmatrix.stats.measurements import OUTCOMES
from envmatrix.stats.metrics import TICK_DIGITS, Metric
from envmatrix.system.printable import one_line

WIDTH, HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 860.0, 316.0, 70.0, 14.0, 28.0, 40.0
#: Above this, trials are drawn as one path an environment: a mark with a name each would be too much for a
#: browser.
_MOST_MARKS = 3000
_MOST_POINTS = 30_000
_LEGEND_COLUMNS, _LEGEND_LETTERS = 4, 28
Floats = NDArray[np.float64]


def colour_of(summary: Summary) -> dict[str, int]:
    """Return each environment's number, the same in every figure."""
    names = dict.fromkeys(arm.environment for arm in summary.plan.arms)
    return {name: index for index, name in enumerate(names)}


def _times(summary: Summary) -> tuple[Floats, str]:
    """Return the time of every trial: minutes since the first, or its number when starts are not known."""
    started = summary.measured.trials.started
    if started.size and np.isfinite(started).all() and np.ptp(started) > 0:
        return np.asarray((started - started.min()) / 60.0), "minutes since the first trial"
    return np.arange(started.size, dtype=np.float64), "trial"


def _series(xs: Floats, ys: Floats, titles: list[str], shape: int, many: bool) -> str:
    if many:
        path = "".join(f"M{x:.0f} {y:.0f}h2" for x, y in zip(xs, ys, strict=True))
        return f'<path d="{path}" class="thin" style="stroke-width:2"/>'
    marks = zip(xs, ys, titles, strict=True)
    return "".join(f"<g>{mark(x, y, shape, 4)}<title>{title}</title></g>" for x, y, title in marks)


def _broken(xs: Floats, y: float) -> str:
    return "".join(line(x - 3, y - 3, x + 3, y + 3, "broken") + line(x - 3, y + 3, x + 3, y - 3, "broken") for x in xs)


def axis_title(metric: Metric) -> str:
    """Return what a metric's axis is called: of a time or a size, each label has its unit."""
    return f"{metric.label}, {metric.unit}" if metric.unit and metric.better == "higher" else metric.label


def _axes(across: Scale, up: Scale, metric: Metric, label: str) -> str:
    parts = []
    for value in ticks(up.low, up.high, 6):
        parts.append(line(_LEFT, up(value), WIDTH - _RIGHT, up(value), "grid"))
        parts.append(text(_LEFT - 8, up(value) + 4, metric.show(value, digits=TICK_DIGITS), "end soft"))
    parts += [
        text(across(value), HEIGHT - _BOTTOM + 18, f"{value:g}", "mid soft")
        for value in ticks(across.low, across.high, 8)
    ]
    parts.append(text(4, 14, axis_title(metric), "soft"))
    return "".join(parts) + text((_LEFT + WIDTH) / 2, HEIGHT - 4, label, "mid soft")


def _scales(times: Floats, values: Floats) -> tuple[Scale, Scale]:
    good = values[np.isfinite(values)]
    low, high = (float(good.min()), float(good.max())) if good.size else (0.0, 1.0)
    margin = (high - low) * 0.06 or abs(high) * 0.05 or 1.0
    across = Scale(float(times.min()), max(1.0, float(times.max())), _LEFT + 8, WIDTH - _RIGHT - 8)
    return across, Scale(low - margin, high + margin, HEIGHT - _BOTTOM, _TOP)


def timeline(summary: Summary, group: Group, name: str = "time") -> str:
    """Return the figure of one group's trials as an svg element; '' when there is no trial."""
    trials = summary.measured.trials
    names = {row.arm.name for row in group.all_rows}
    mine = [index for index, arm in enumerate(summary.plan.arms) if arm.name in names]
    chosen = np.flatnonzero(np.isin(trials.arm, mine))
    chosen = chosen[:: max(1, -(-chosen.size // _MOST_POINTS))]
    if not chosen.size:
        return ""
    times, label = _times(summary)
    times, values = times[chosen], trials.primary[group.metric.name][chosen]
    who, outcome = trials.arm[chosen], trials.outcome[chosen]
    across, up = _scales(times, values)
    body, colours = _axes(across, up, group.metric, label), colour_of(summary)
    for index in mine:
        environment = summary.plan.arms[index].environment
        at = np.flatnonzero((who == index) & np.isfinite(values))
        xs, ys = (np.array([scale(v) for v in data[at]]) for scale, data in ((across, times), (up, values)))
        shown = [
            f"{one_line(environment, 40)}, block {trials.block[chosen[i]]}: {group.metric.show(values[i])}"
            for i in at[:_MOST_MARKS]
        ]
        kind = colours[environment]
        dots = _series(xs, ys, [html.escape(words) for words in shown], kind // COLOURS, chosen.size > _MOST_MARKS)
        body += f'<g class="s k{kind % COLOURS} s{kind}">{dots}</g>'
    body += _broken(np.array([across(t) for t in times[outcome != OUTCOMES.index("ok")]]), HEIGHT - _BOTTOM - 6)
    title = f"Every trial over time: {group.workload} on {group.engine}"
    described = f"{group.metric.label} of {chosen.size} trials in the order they ran; crosses are trials not counted"
    return drawing(WIDTH, HEIGHT, title, described, body, name)


def time_figure(summary: Summary, group: Group) -> str:
    """Draw a group as a file shows it: with its legend, which a page has outside of the figure."""
    return with_legend(timeline(summary, group), summary, group)


def with_legend(drawn: str, summary: Summary, group: Group) -> str:
    """Return a figure of this one's size with the group's legend below it; '' of none."""
    return widened(drawn, WIDTH, HEIGHT, *_legend(summary, group)) if drawn else ""


def _legend(summary: Summary, group: Group) -> tuple[float, str]:
    """Return the height of the legend and what it draws, in columns of equal width."""
    colours = colour_of(summary)
    names = list(dict.fromkeys(row.arm.environment for row in group.all_rows))
    parts = []
    for place, name in enumerate(names):
        down, across = divmod(place, _LEGEND_COLUMNS)
        x, y = 12.0 + across * (WIDTH - 12) / _LEGEND_COLUMNS, HEIGHT + 14.0 + 18 * down
        kind = colours[name]
        drawn = mark(x, y, kind // COLOURS, 4.5) + text(x + 10, y + 4, name, limit=_LEGEND_LETTERS)
        parts.append(f'<g class="k{kind % COLOURS}">{drawn}</g>')
    return 10.0 + 18 * -(-len(names) // _LEGEND_COLUMNS), "".join(parts)
