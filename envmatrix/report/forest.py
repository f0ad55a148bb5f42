"""The forest plot: every environment's speed-up with its interval, over a band for the control's interval."""

from __future__ import annotations

from dataclasses import dataclass

from envmatrix.report.formatting import format_bounds, format_interval, format_ratio, format_speed_up
from envmatrix.report.group import Group, Row
from envmatrix.report.summary import Summary
from envmatrix.report.svg import Scale, line_element, log_ticks, marker_element, svg_drawing, text_element
from envmatrix.stats.effects import Effect, Flag
from envmatrix.stats.steady_effect import SteadyEffect

_TOP = 30.0
_MAX_NAME_LENGTH = 32
_FLAG_SUFFIXES = {
    Flag.UNEQUAL_WORK: ", unequal work",
    Flag.FAILS_MORE: ", fails more",
    Flag.UNPROVEN: ", unproven",
}
_MAX_RATIO = 8.0
#: How far the bar of the steady effect lies below that of the first steps.
_STEADY = 13.0


@dataclass(frozen=True)
class ForestLayout:
    """The layout of a forest plot; ``stacked``: names and figures above their bars, for a narrow screen."""

    width: float
    row: float
    right: float
    most_ticks: int
    stacked: bool = False


WIDE = ForestLayout(width=860.0, row=26.0, right=215.0, most_ticks=8)
NARROW = ForestLayout(width=360.0, row=42.0, right=8.0, most_ticks=5, stacked=True)


def _axis_bounds(effects: list[Effect | SteadyEffect]) -> tuple[float, float]:
    """Return the ends of the axis: it fits all intervals up to a factor of 8, and includes 1."""
    values = [value for e in effects for value in (e.low, e.high, e.ratio) if value is not None and value > 0]
    low, high = min([0.95, *values]), max([1.05, *values])
    return max(low * 0.98, 1 / _MAX_RATIO), min(high * 1.02, _MAX_RATIO)


def _name_width(rows: list[Row], layout: ForestLayout) -> float:
    """Return the width for names: that of the longest at 12 pixels."""
    longest = max((len(row.arm.environment) for row in rows), default=0)
    return 8.0 if layout.stacked else 22.0 + 7.0 * min(_MAX_NAME_LENGTH, max(8, longest))


def _noise_band(effect: Effect | None, scale: Scale, bottom: float) -> str:
    if effect is None or effect.low is None or effect.high is None:
        return ""
    left, right = scale(effect.low), scale(effect.high)
    size = f'width="{right - left:.1f}" height="{bottom - _TOP:.1f}"'
    return (
        f'<rect class="band" x="{left:.1f}" y="{_TOP:.1f}" {size}>'
        f"<title>noise floor: the control's interval, {format_interval(effect)}</title></rect>"
    )


def _axis(scale: Scale, bottom: float, max_ticks: int) -> str:
    parts = []
    for value in log_ticks(scale.low, scale.high, max_ticks):
        x = scale(value)
        parts.append(line_element(x, _TOP, x, bottom, "one" if value == 1.0 else "grid"))
        parts.append(text_element(x, bottom + 16, f"{value:.6g}", "mid soft"))
    return "".join(parts)


def _row(row: Row, scale: Scale, y: float, layout: ForestLayout) -> str:
    """Draw a row around ``y``, with name and figures next to the bar or, if stacked, above it."""
    effect, bar_y = row.effect, y + 12 if layout.stacked else y
    name_x, kind = (scale.start, "") if layout.stacked else (scale.start - 12, "end")
    letters = 20 if layout.stacked else _MAX_NAME_LENGTH
    name = text_element(name_x, y - 2 if layout.stacked else y + 4, row.arm.environment, kind, letters)
    if effect is None or effect.ratio is None:
        return name + text_element(scale.start + 8, bar_y + 4, row.skipped or "no complete block", "soft", 70 - letters)
    bar = ""
    if effect.low is not None and effect.high is not None:
        bar = line_element(scale(effect.low), bar_y, scale(effect.high), bar_y, "bar")
    words = f"{format_speed_up(effect)}  ({format_interval(effect)})"
    words += "".join(text for flag, text in _FLAG_SUFFIXES.items() if flag in effect.flags)
    colour = (
        effect.verdict if _FLAG_SUFFIXES.keys().isdisjoint(effect.flags) else "same"
    )  # disqualified results are not green
    place = (scale.end, y - 2, words, "end") if layout.stacked else (layout.width - layout.right + 14, y + 4, words, "")
    drawn = f'<g class="{colour}">{name}{bar}{marker_element(scale(effect.ratio), bar_y, 1)}</g>' + text_element(*place)
    return drawn + (_steady_bar(row.steady, scale, bar_y + _STEADY, layout) if row.steady else "")


def _steady_bar(steady: SteadyEffect, scale: Scale, y: float, layout: ForestLayout) -> str:
    """Draw a steady effect as a thin bar, with its figures if there is room for them."""
    bar = line_element(scale(steady.low), y, scale(steady.high), y, "thin")
    words = f"{format_ratio(steady.ratio)} ({format_bounds(steady.low, steady.high)})"
    figures = "" if layout.stacked else text_element(layout.width - layout.right + 14, y + 4, words, "soft")
    return f'<g class="{steady.verdict}">{bar}{marker_element(scale(steady.ratio), y, 0)}</g>' + figures


def forest(group: Group, name: str = "forest", layout: ForestLayout = WIDE) -> str:
    """Return the forest plot of a group as an svg element."""
    rows = [row for row in group.all_rows if not (row is group.baseline or row.arm.is_alone)]
    effects = [row.effect for row in rows if row.effect]
    steady = [row.steady for row in rows if row.steady]
    low, high = _axis_bounds([*effects, *steady])
    height = layout.row + (_STEADY if steady else 0.0)
    bottom = _TOP + height * max(1, len(rows)) + 6
    left, right = _name_width(rows, layout), layout.width - layout.right
    scale = Scale(low, high, left, right, log=True)
    body = _noise_band(group.control.effect if group.control else None, scale, bottom)
    body += _axis(scale, bottom, layout.most_ticks)
    later = f": {group.steps}, and below them {steady[0].seconds}" if steady else ""
    verdict_word, axis_label = (
        group.metric.said,
        "speed-up over" if group.metric.is_speed else f"{group.metric.label}: ratio over",
    )
    body += text_element(left, 16, verdict_word("slower"), "soft") + text_element(
        right, 16, verdict_word("faster"), "end soft"
    )
    body += "".join(
        _row(row, scale, _TOP + height * index + layout.row / 2 + 3, layout) for index, row in enumerate(rows)
    )
    body += text_element((left + right) / 2, bottom + 34, f"{axis_label} {group.baseline_name}{later}", "mid", 90)
    texts = [f"{e.environment} {format_speed_up(e)}, {format_interval(e)}, {verdict_word(e.verdict)}" for e in effects]
    later_ratios = {row.arm.environment: row.steady for row in rows if row.steady}
    texts += [f"{name} in {one.seconds} {format_ratio(one.ratio)}" for name, one in later_ratios.items()]
    description = "; ".join(texts)
    title = f"{axis_label[:1].upper()}{axis_label[1:]} {group.baseline_name}: {group.workload} on {group.engine}"
    return svg_drawing(layout.width, bottom + 44, title, description or "nothing measured", body, name)


def forest_figure(_summary: Summary, group: Group) -> str:
    """Draw the forest plot of a group, with the signature that FIGURES needs."""
    return forest(group)
