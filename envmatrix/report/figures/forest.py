"""The forest plot: every environment's speed-up with its interval, over a band for the control's interval."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from envmatrix.report.figures import svg
from envmatrix.report.formatting import format_bounds, format_interval, format_ratio, format_speed_up, svg_text
from envmatrix.report.group import Group, Row
from envmatrix.report.report_data import Summary
from envmatrix.results.atlas_entries import StoredEffect
from envmatrix.stats.effects import Effect, Flag
from envmatrix.stats.steady_state.effect import SteadyEffect

_TOP = 30.0
_FLAG_SUFFIXES = {
    Flag.UNEQUAL_WORK: ", unequal work",
    Flag.FAILS_MORE: ", fails more",
    Flag.UNPROVEN: ", unproven",
}
_MAX_RATIO = 8.0
_THIN_ROW = 4.0
#: The height of a thin row with words, which belongs to the row above it.
_SECOND_ROW = 13.0


@dataclass(frozen=True)
class ForestLayout:
    """The layout of a forest plot; ``stacked``: names and figures above their bars, for a narrow screen."""

    width: float
    row: float
    right: float
    most_ticks: int
    letters: int
    stacked: bool = False


WIDE = ForestLayout(width=860.0, row=26.0, right=215.0, most_ticks=8, letters=32)
NARROW = ForestLayout(width=360.0, row=42.0, right=8.0, most_ticks=5, letters=20, stacked=True)


@dataclass(frozen=True)
class ForestRow:
    """One row: a ratio with its interval, drawn as ``shape`` in the colour of ``kind``, and ``words`` next to it.

    Without a ratio, ``words`` say why. The name of a ``heading`` is bold. ``prediction`` is a second, wider interval.
    ``hint`` is shown to those who point at the row; a ``thin`` row has no name, and
    may have words if it belongs to the row above it.
    """

    name: str
    words: str
    kind: str = ""
    ratio: float | None = None
    interval: tuple[float, float] | None = None
    prediction: tuple[float, float] | None = None
    shape: int = 1
    heading: bool = False
    hint: str = ""
    thin: bool = False

    @property
    def values(self) -> tuple[float, ...]:
        """All ratios of the row that the axis should include."""
        return *((self.ratio,) if self.ratio else ()), *(self.interval or ()), *(self.prediction or ())


@dataclass(frozen=True)
class ForestTexts:
    """The texts of a forest plot: its title, that of its axis, both directions, and a description of all rows.

    ``second`` is a line below the axis that says what thin rows are.
    """

    title: str
    axis: str
    worse: str
    better: str
    description: str
    second: str = ""


def _axis_bounds(rows: Sequence[ForestRow]) -> tuple[float, float]:
    """Return the ends of the axis: it fits all intervals up to a factor of 8, and includes 1."""
    values = [value for row in rows for value in row.values if value > 0]
    low, high = min([0.95, *values]), max([1.05, *values])
    return max(low * 0.98, 1 / _MAX_RATIO), min(high * 1.02, _MAX_RATIO)


def _name_width(rows: Sequence[ForestRow], layout: ForestLayout) -> float:
    """Return the width for names: that of the longest at 12 pixels."""
    longest = max((len(row.name) for row in rows if not row.thin), default=0)
    return 8.0 if layout.stacked else 22.0 + 7.0 * min(layout.letters, max(8, longest))


def _noise_band(effect: Effect | None, scale: svg.Scale, bottom: float) -> str:
    if effect is None or effect.low is None or effect.high is None:
        return ""
    left, right = scale(effect.low), scale(effect.high)
    size = f'width="{right - left:.1f}" height="{bottom - _TOP:.1f}"'
    return (
        f'<rect class="band" x="{left:.1f}" y="{_TOP:.1f}" {size}>'
        f"<title>noise floor: the control's interval, {format_interval(effect)}</title></rect>"
    )


def _row(row: ForestRow, scale: svg.Scale, y: float, layout: ForestLayout) -> str:
    """Draw a row around ``y``, with name and figures next to the bar or, if stacked, above it."""
    bar_y, letters = (y + 12 if layout.stacked and not row.thin else y), layout.letters
    name_x, kind = (scale.start, "") if layout.stacked else (scale.start - 12, "end")
    if row.heading:
        kind, letters = f"{kind} bold", letters - 3  # bold letters are wider
    name_y = y - 2 if layout.stacked else y + 4
    name = "" if row.thin else svg.text(name_x, name_y, row.name, kind, letters)
    if row.ratio is None:
        return name + svg.text(scale.start + 8, bar_y + 4, row.words, "soft", 70 - layout.letters)
    lines = [(row.prediction, "thin"), (row.interval, "thin" if row.thin else "bar")]
    bar = "".join(svg.line(scale(ends[0]), bar_y, scale(ends[1]), bar_y, line) for ends, line in lines if ends)
    marker = svg.marker(scale(row.ratio), bar_y, row.shape, *([] if row.words else [1.5]))
    hint = f"<title>{svg_text(row.hint, 200)}</title>" if row.hint else ""
    drawn = f'<g class="{svg_text(row.kind)}">{name}{bar}{marker}{hint}</g>'
    if row.thin:
        return drawn if layout.stacked else drawn + svg.text(scale.end + 14, y + 4, row.words, "soft")
    place = (scale.end, y - 2, row.words, "end") if layout.stacked else (scale.end + 14, y + 4, row.words, "")
    return drawn + svg.text(*place)


def draw_forest(
    rows: Sequence[ForestRow], texts: ForestTexts, name: str, layout: ForestLayout = WIDE, control: Effect | None = None
) -> str:
    """Return a forest plot as an svg element, with a band for the interval of the control."""
    low, high = _axis_bounds(rows)
    heights = [(_SECOND_ROW if row.words else _THIN_ROW) if row.thin else layout.row for row in rows]
    tops = itertools.accumulate(heights, initial=_TOP)
    bottom = _TOP + (sum(heights) or layout.row) + 6
    left, right = _name_width(rows, layout), layout.width - layout.right
    scale = svg.Scale(low, high, left, right, log=True)
    body = _noise_band(control, scale, bottom)
    body += svg.x_grid(scale, svg.log_ticks(low, high, layout.most_ticks), _TOP, bottom, base=1.0)
    body += svg.text(left, 16, texts.worse, "soft") + svg.text(right, 16, texts.better, "end soft")
    places = zip(rows, tops, heights, strict=False)
    body += "".join(_row(row, scale, top + _middle(row, height), layout) for row, top, height in places)
    lines = (texts.axis, texts.second) if texts.second else (texts.axis,)
    for number, line in enumerate(lines):
        body += svg.text((left + right) / 2, bottom + 34 + 16 * number, line, "mid")
    return svg.drawing(layout.width, bottom + 28 + 16 * len(lines), texts.title, texts.description, body, name)


def _middle(row: ForestRow, height: float) -> float:
    """Return how far below the top of a row its bar lies: next to the row above it if it belongs to that."""
    return 3.0 if row.thin and row.words else height / 2 + 3.0


def steady_row(steady: SteadyEffect | StoredEffect) -> ForestRow:
    """Return the thin row of an effect in later steps, below that of the first steps."""
    words = f"{format_ratio(steady.ratio)} ({format_bounds(steady.low, steady.high)})"
    return ForestRow("", words, steady.verdict, steady.ratio, (steady.low, steady.high), shape=0, thin=True)


def _forest_row(row: Row) -> ForestRow:
    effect = row.effect
    if effect is None or effect.ratio is None:
        return ForestRow(row.arm.environment, row.skipped or "no complete block")
    words = f"{format_speed_up(effect)}  ({format_interval(effect)})"
    words += "".join(text for flag, text in _FLAG_SUFFIXES.items() if flag in effect.flags)
    interval = None if effect.low is None or effect.high is None else (effect.low, effect.high)
    # disqualified results are not green
    colour = effect.verdict if _FLAG_SUFFIXES.keys().isdisjoint(effect.flags) else "same"
    return ForestRow(row.arm.environment, words, colour, effect.ratio, interval)


def forest(group: Group, name: str = "forest", layout: ForestLayout = WIDE) -> str:
    """Return the forest plot of a group as an svg element."""
    rows = [row for row in group.all_rows if not (row is group.baseline or row.arm.is_uninterrupted_copy)]
    word = group.metric.said
    label = "speed-up over" if group.metric.is_speed else f"{group.metric.label}: ratio over"
    drawn, descriptions, seconds = [], [], group.steady_range_text
    for row in rows:
        drawn.append(_forest_row(row))
        if effect := row.effect:
            figures = f"{effect.environment} {format_speed_up(effect)}, {format_interval(effect)}"
            descriptions.append(f"{figures}, {word(effect.verdict)}")
        if row.steady:
            drawn.append(steady_row(row.steady))
            descriptions.append(
                f"{row.arm.environment} in {row.steady.time_range_text} {format_ratio(row.steady.ratio)}"
            )
    texts = ForestTexts(
        title=f"{label[:1].upper()}{label[1:]} {group.baseline_name}: {group.workload} on {group.engine}",
        axis=f"{label} {group.baseline_name}",
        second=f"{group.steps}, and below them {seconds}" if seconds else "",
        worse=word("slower"),
        better=word("faster"),
        description="; ".join(descriptions) or "nothing measured",
    )
    return draw_forest(drawn, texts, name, layout, group.control.effect if group.control else None)


def forest_figure(_summary: Summary, group: Group) -> str:
    """Draw the forest plot of a group, with the signature that FIGURES needs."""
    return forest(group)
