"""The forest plot: every environment's speed-up with its interval, the noise floor as a band behind them."""

from __future__ import annotations

from dataclasses import dataclass

from envmatrix.report.formatting import interval, speed_up
from envmatrix.report.group import Group, Row
from envmatrix.report.summary import Summary
from envmatrix.report.svg import Scale, drawing, line, log_ticks, mark, text
from envmatrix.stats.effects import Effect, Flag

_TOP = 30.0
_LONGEST = 32
_BARRED = {
    Flag.UNEQUAL_WORK: ", unequal work", Flag.FAILS_MORE: ", fails more", Flag.UNPROVEN: ", unproven",
}  # fmt: skip
_WIDEST = 8.0


@dataclass(frozen=True)
class Shape:
    """How a forest plot is laid out: ``stacked`` has names and figures above their bars, for a narrow screen."""

    width: float
    row: float
    right: float
    most_ticks: int
    stacked: bool = False


WIDE = Shape(width=860.0, row=26.0, right=215.0, most_ticks=8)
NARROW = Shape(width=360.0, row=42.0, right=8.0, most_ticks=5, stacked=True)


def _bounds(effects: list[Effect]) -> tuple[float, float]:
    """Return the axis: all intervals fit, within a factor of 8 either way, and 1 is on it."""
    values = [value for e in effects for value in (e.low, e.high, e.ratio) if value is not None and value > 0]
    low, high = min([0.95, *values]), max([1.05, *values])
    return max(low * 0.98, 1 / _WIDEST), min(high * 1.02, _WIDEST)


def _left(rows: list[Row], shape: Shape) -> float:
    """Return the room for names: as much as the longest needs at 12 pixels."""
    longest = max((len(row.arm.environment) for row in rows), default=0)
    return 8.0 if shape.stacked else 22.0 + 7.0 * min(_LONGEST, max(8, longest))


def _band(effect: Effect | None, scale: Scale, bottom: float) -> str:
    if effect is None or effect.low is None or effect.high is None:
        return ""
    left, right = scale(effect.low), scale(effect.high)
    size = f'width="{right - left:.1f}" height="{bottom - _TOP:.1f}"'
    return (
        f'<rect class="band" x="{left:.1f}" y="{_TOP:.1f}" {size}>'
        f"<title>noise floor: the control's interval, {interval(effect)}</title></rect>"
    )


def _axis(scale: Scale, bottom: float, most: int) -> str:
    parts = []
    for value in log_ticks(scale.low, scale.high, most):
        x = scale(value)
        parts.append(line(x, _TOP, x, bottom, "one" if value == 1.0 else "grid"))
        parts.append(text(x, bottom + 16, f"{value:.6g}", "mid soft"))
    return "".join(parts)


def _row(row: Row, scale: Scale, y: float, shape: Shape) -> str:
    """Draw a row around ``y``: beside each other, or name and figures above the bar."""
    effect, bar_y = row.effect, y + 12 if shape.stacked else y
    name_x, kind = (scale.start, "") if shape.stacked else (scale.start - 12, "end")
    letters = 20 if shape.stacked else _LONGEST
    name = text(name_x, y - 2 if shape.stacked else y + 4, row.arm.environment, kind, letters)
    if effect is None or effect.ratio is None:
        return name + text(scale.start + 8, bar_y + 4, row.skipped or "no complete block", "soft", 70 - letters)
    bar = ""
    if effect.low is not None and effect.high is not None:
        bar = line(scale(effect.low), bar_y, scale(effect.high), bar_y, "bar")
    words = f"{speed_up(effect)}  ({interval(effect)})"
    words += "".join(text for flag, text in _BARRED.items() if flag in effect.flags)
    colour = effect.verdict if _BARRED.keys().isdisjoint(effect.flags) else "same"  # what did other work is not green
    place = (scale.end, y - 2, words, "end") if shape.stacked else (shape.width - shape.right + 14, y + 4, words, "")
    return f'<g class="{colour}">{name}{bar}{mark(scale(effect.ratio), bar_y, 1)}</g>' + text(*place)


def forest(group: Group, name: str = "forest", shape: Shape = WIDE) -> str:
    """Return the forest plot of a group as an svg element."""
    rows = [row for row in group.all_rows if not (row is group.baseline or row.arm.is_alone)]
    effects = [row.effect for row in rows if row.effect]
    low, high = _bounds(effects)
    bottom = _TOP + shape.row * max(1, len(rows)) + 6
    left, right = _left(rows, shape), shape.width - shape.right
    scale = Scale(low, high, left, right, log=True)
    body = _band(group.control.effect if group.control else None, scale, bottom)
    body += _axis(scale, bottom, shape.most_ticks)
    said, over = group.metric.said, "speed-up over" if group.metric.is_speed else f"{group.metric.label}: ratio over"
    body += text(left, 16, said("slower"), "soft") + text(right, 16, said("faster"), "end soft")
    body += "".join(_row(row, scale, _TOP + shape.row * (index + 0.5) + 3, shape) for index, row in enumerate(rows))
    body += text((left + right) / 2, bottom + 34, f"{over} {group.baseline_name}", "mid")
    described = "; ".join(f"{e.environment} {speed_up(e)}, {interval(e)}, {said(e.verdict)}" for e in effects)
    title = f"{over[:1].upper()}{over[1:]} {group.baseline_name}: {group.workload} on {group.engine}"
    return drawing(shape.width, bottom + 44, title, described or "nothing measured", body, name)


def forest_figure(_summary: Summary, group: Group) -> str:
    """Draw a group as every figure is asked for: with the run that it is of."""
    return forest(group)
