"""The figure of step times from the first step on, from the steady-state run of each environment."""

from __future__ import annotations

from statistics import median

from envmatrix.report.figures.svg import COLOURS, Scale, line_element, marker_element, svg_drawing, text_element, ticks
from envmatrix.report.figures.timeline import HEIGHT, WIDTH, environment_colours, with_legend
from envmatrix.report.group import Group
from envmatrix.report.summary import Summary
from envmatrix.stats.metrics import TICK_DIGITS, show_seconds
from envmatrix.stats.steady_state.startup import Start

_LEFT, _RIGHT, _TOP, _BOTTOM = 70.0, 14.0, 28.0, 40.0
#: Upper end of the axis in median steps; a slow first step would flatten all others.
_HIGHEST = 2.0


def step_time_curve(summary: Summary, group: Group, name: str = "start") -> str:
    """Return the figure of a group's steady-state runs as an svg element; '' without any."""
    names = {row.arm.name for row in group.all_rows}
    shown_starts = [start for start in summary.starts if start.curve and start.arm.name in names]
    if not shown_starts:
        return ""
    steps = [step for start in shown_starts for _, step in start.curve]
    high = min(max(steps), _HIGHEST * median(steps))
    across = Scale(0.0, max(start.curve[-1][0] for start in shown_starts), _LEFT, WIDTH - _RIGHT)
    up = Scale(0.9 * min(steps), high * 1.02, HEIGHT - _BOTTOM, _TOP)
    colours = environment_colours(summary)
    body = _axes(across, up) + "".join(
        _line(start, colours[start.arm.environment], across, up) for start in shown_starts
    )
    title = f"Step times from the first step on: {group.workload} on {group.engine}"
    description = f"times of the steps of {len(shown_starts)} processes over the seconds since their first step began"
    return svg_drawing(WIDTH, HEIGHT, title, description, body, name)


def start_figure(summary: Summary, group: Group) -> str:
    """Draw the figure for a separate file, with its legend (in HTML the legend is outside the figure)."""
    return with_legend(step_time_curve(summary, group), summary, group)


def _axes(across: Scale, up: Scale) -> str:
    parts = [text_element(4, 14, "time of a step", "soft")]
    for value in ticks(up.low, up.high, 6):
        parts.append(line_element(_LEFT, up(value), WIDTH - _RIGHT, up(value), "grid"))
        parts.append(text_element(_LEFT - 8, up(value) + 4, show_seconds(value, digits=TICK_DIGITS), "end soft"))
    parts += [
        text_element(across(tick), HEIGHT - _BOTTOM + 18, f"{tick:g}", "mid soft")
        for tick in ticks(0.0, across.high, 8)
    ]
    return "".join(parts) + text_element(
        (_LEFT + WIDTH) / 2, HEIGHT - 4, "seconds since the first step began", "mid soft"
    )


def _line(start: Start, kind: int, across: Scale, up: Scale) -> str:
    points = " ".join(f"{across(seconds):.1f},{up(step):.1f}" for seconds, step in start.curve)
    shapes = f'<polyline points="{points}" class="thin"/>'
    steady = start.steady
    if steady and steady.seconds is not None and steady.step_s is not None:
        shapes += marker_element(across(steady.seconds), up(steady.step_s), kind // COLOURS)
    return f'<g class="s k{kind % COLOURS} s{kind}">{shapes}</g>'
