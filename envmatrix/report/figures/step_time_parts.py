"""Figure of the parts of each effect: one bar per environment, whose parts add up to the difference of its step."""

from __future__ import annotations

from envmatrix.report.explanation import Scale, line_of, whys
from envmatrix.report.figures import svg
from envmatrix.report.group import Group
from envmatrix.stats.attribution.explanation import Explanation
from envmatrix.stats.step_account import PARTS

#: Margins leave room for the larger letters of a narrow screen.
_WIDTH, _ROW, _TOP, _RIGHT, _LETTER, _LETTERS = 860.0, 26.0, 30.0, 100.0, 10.0, 34
_HEIGHT = 14.0
_COLOURS = {name: f"k{number}" for number, name in enumerate(PARTS)}


def step_time_change_bars(group: Group, name: str = "why") -> str:
    """Return the figure as an svg element, '' if no effect of the group is explained.

    Parts that make a step longer are to the right of 0, those that make it shorter to the left; a mark is their sum.
    """
    explained = whys(group)
    if not explained:
        return ""
    ends = [end for _, why in explained for end in _bar_ends(why)]
    unit = Scale.of(max(ends, key=abs))
    bottom = _TOP + _ROW * len(explained) + 6
    left = 24 + _LETTER * min(_LETTERS, max(len(label) for label, _ in explained))
    scale = svg.Scale(min(0.0, *ends), max(0.0, *ends), left, _WIDTH - _RIGHT)
    values = svg.ticks(scale.low / unit.seconds, scale.high / unit.seconds)
    body = _legend(explained) + svg.x_grid(scale, values, _TOP, bottom, base=0.0, unit=unit.seconds)
    for number, (label, why) in enumerate(explained):
        body += _bar(label, why, scale, _TOP + _ROW * (number + 0.5) + 3, unit)
    body += svg.text((left + _WIDTH - _RIGHT) / 2, bottom + 38, f"{unit.unit} per {explained[0][1].per}", "mid")
    described = "; ".join(f"{label}: {line_of(why)}" for label, why in explained)
    return svg.drawing(_WIDTH, bottom + 46, f"Why: {group.workload} on {group.engine}", described, body, name)


def _bar_ends(why: Explanation) -> tuple[float, float]:
    """Return the positions of a bar's ends on either side of 0."""
    means = [part.change.mean for part in why.parts.parts]
    return sum(mean for mean in means if mean < 0), sum(mean for mean in means if mean > 0)


def _legend(explained: list[tuple[str, Explanation]]) -> str:
    counted = {part.name for _, why in explained for part in why.parts.parts}
    body, x = "", 12.0
    for name, label in PARTS.items():
        if name in counted:
            body += f'<g class="{_COLOURS[name]}">{svg.rectangle(x, 6, 12, _HEIGHT)}</g>'
            body += svg.text(x + 18, 17, label, "soft")
            x += 40 + _LETTER * len(label)
    return body


def _bar(label: str, why: Explanation, scale: svg.Scale, y: float, unit: Scale) -> str:
    at, body = {False: 0.0, True: 0.0}, ""
    for part in why.parts.parts:
        grows = part.change.mean > 0
        start, end = at[grows], at[grows] + part.change.mean
        left, right = sorted((scale(start), scale(end)))
        at[grows] = end
        drawn = svg.rectangle(left, y - _HEIGHT / 2, max(0.5, right - left), _HEIGHT)
        body += f'<g class="{_COLOURS[part.name]}">{drawn}</g>'
    whole = why.parts.whole.mean
    total = f'<g class="same">{svg.marker(scale(whole), y, 3)}</g>'
    words = svg.text(_WIDTH - _RIGHT + 14, y + 4, f"{unit.number(whole)} {unit.unit}")
    return "".join((svg.text(scale.start - 12, y + 4, label, "end", _LETTERS), body, total, words))
