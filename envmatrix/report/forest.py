"""The forest plot: every environment's speed-up with its interval, the noise floor as a band behind them."""

from __future__ import annotations

from envmatrix.report.formatting import interval, speed_up
from envmatrix.report.summary import Group, Row, Summary
from envmatrix.report.svg import Scale, drawing, line, log_ticks, mark, text
from envmatrix.stats.effects import Effect, Flag

_WIDTH, _ROW, _TOP, _RIGHT = 860.0, 26.0, 30.0, 215.0
_LONGEST = 32
_BARRED = {
    Flag.UNEQUAL_WORK: ", unequal work", Flag.FAILS_MORE: ", fails more", Flag.UNPROVEN: ", unproven",
}  # fmt: skip
_WIDEST = 8.0


def _bounds(effects: list[Effect]) -> tuple[float, float]:
    """Return the axis: all intervals fit, within a factor of 8 either way, and 1 is on it."""
    values = [value for e in effects for value in (e.low, e.high, e.ratio) if value is not None and value > 0]
    low, high = min([0.95, *values]), max([1.05, *values])
    return max(low * 0.98, 1 / _WIDEST), min(high * 1.02, _WIDEST)


def _left(rows: list[Row]) -> float:
    """Return the room for names: as much as the longest needs at 12 pixels."""
    longest = max((len(row.arm.environment) for row in rows), default=0)
    return 22.0 + 7.0 * min(_LONGEST, max(8, longest))


def _band(effect: Effect | None, scale: Scale, bottom: float) -> str:
    if effect is None or effect.low is None or effect.high is None:
        return ""
    left, right = scale(effect.low), scale(effect.high)
    size = f'width="{right - left:.1f}" height="{bottom - _TOP:.1f}"'
    return (
        f'<rect class="band" x="{left:.1f}" y="{_TOP:.1f}" {size}>'
        f"<title>noise floor: the control's interval, {interval(effect)}</title></rect>"
    )


def _axis(scale: Scale, bottom: float) -> str:
    parts = []
    for value in log_ticks(scale.low, scale.high):
        x = scale(value)
        parts.append(line(x, _TOP, x, bottom, "one" if value == 1.0 else "grid"))
        parts.append(text(x, bottom + 16, f"{value:.6g}", "mid soft"))
    return "".join(parts)


def _row(row: Row, scale: Scale, y: float) -> str:
    effect = row.effect
    name = text(scale.start - 12, y + 4, row.arm.environment, "end", _LONGEST)
    if effect is None or effect.ratio is None:
        return name + text(scale.start + 8, y + 4, row.skipped or "no complete block", "soft", 70)
    bar = ""
    if effect.low is not None and effect.high is not None:
        bar = line(scale(effect.low), y, scale(effect.high), y, "bar")
    words = f"{speed_up(effect)}  ({interval(effect)})"
    words += "".join(text for flag, text in _BARRED.items() if flag in effect.flags)
    kind = effect.verdict if _BARRED.keys().isdisjoint(effect.flags) else "same"  # what did other work is not green
    return f'<g class="{kind}">{name}{bar}{mark(scale(effect.ratio), y, 1)}</g>' + text(
        _WIDTH - _RIGHT + 14, y + 4, words
    )


def forest(group: Group, name: str = "forest") -> str:
    """Return the forest plot of a group as an svg element."""
    rows = [row for row in group.all_rows if not (row is group.baseline or row.arm.is_alone)]
    effects = [row.effect for row in rows if row.effect]
    low, high = _bounds(effects)
    bottom = _TOP + _ROW * max(1, len(rows)) + 6
    left = _left(rows)
    scale = Scale(low, high, left, _WIDTH - _RIGHT, log=True)
    body = _band(group.control.effect if group.control else None, scale, bottom) + _axis(scale, bottom)
    said, over = group.metric.said, "speed-up over" if group.metric.is_speed else f"{group.metric.label}: ratio over"
    body += text(left, 16, said("slower"), "soft") + text(_WIDTH - _RIGHT, 16, said("faster"), "end soft")
    body += "".join(_row(row, scale, _TOP + _ROW * (index + 0.5) + 3) for index, row in enumerate(rows))
    body += text((left + _WIDTH - _RIGHT) / 2, bottom + 34, f"{over} {group.baseline_name}", "mid")
    described = "; ".join(f"{e.environment} {speed_up(e)}, {interval(e)}, {said(e.verdict)}" for e in effects)
    title = f"{over[:1].upper()}{over[1:]} {group.baseline_name}: {group.workload} on {group.engine}"
    return drawing(_WIDTH, bottom + 44, title, described or "nothing measured", body, name)


def forest_figure(_summary: Summary, group: Group) -> str:
    """Draw a group as every figure is asked for: with the run that it is of."""
    return forest(group)
