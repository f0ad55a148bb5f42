"""Words and numbers of reports; everything a user or a program wrote is made harmless here."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence

from envmatrix.stats.effects import Effect, Flag
from envmatrix.system.printable import printable_line

# What changes a sentence inside a line; `-` and `#` do so only at its start, where no text of a user stands.
# `<`, `>` and `&` are written as entities instead: a backslash before one would show the entity itself.
_MARKDOWN = re.compile(r"([\\`*_{}\[\]!|~$])")
NONE = "\N{EN DASH}"
#: What is nearer to 1 would be rounded to it.
_NEAR = 0.005
#: Of an end of an interval beyond this factor only that is known.
_FAR = 100.0
#: Characters of a sentence that names many environments.
_SENTENCE = 2000


def markdown_cell(text: object) -> str:
    """Return text that stays text in a cell of a Markdown table, HTML included."""
    return markdown_text(printable_line(text)) if str(text) else ""


def markdown_text(text: object) -> str:
    """Return a sentence that stays text in Markdown, whole."""
    return html.escape(_MARKDOWN.sub(r"\\\1", printable_line(text, _SENTENCE)), quote=False)


def svg_text(text: object, limit: int = 40) -> str:
    """Return text for an SVG element or attribute."""
    return html.escape(printable_line(text, limit), quote=True)


def format_ratio(value: float | None) -> str:
    """Format a speed-up."""
    if value is None:
        return NONE
    return f"{value:.2f}" if 0.1 <= value < 100 else f"{value:.3g}"


def format_decided_ratio(value: float | None) -> str:
    """Format a speed-up that is told as one: 1.00 would hide on which side of 1 it lies."""
    if value is None or not 0 < abs(value - 1.0) < _NEAR:
        return format_ratio(value)
    digits = next((digits for digits in (3, 4, 5) if round(value, digits) != 1.0), 6)
    return f"{value:.{digits}f}"


def format_speed_up(effect: Effect) -> str:
    """Format an effect's ratio; where its interval leaves out 1, so does this."""
    is_decided = effect.low is not None and effect.high is not None and not effect.low <= 1.0 <= effect.high
    return format_decided_ratio(effect.ratio) if is_decided else format_ratio(effect.ratio)


def format_interval(effect: Effect) -> str:
    """Format an effect's interval, or say what is missing for one."""
    if effect.blocks == 0:
        return "no complete block"
    if effect.low is None or effect.high is None:
        return f"{effect.missing} more block{'s' * (effect.missing != 1)} needed" if effect.missing else NONE
    return format_bounds(effect.low, effect.high)


def format_bounds(low: float | None, high: float | None) -> str:
    """Format both ends of an interval, a dash where there is none."""
    if low is None or high is None:
        return NONE
    format_end = format_ratio if low > _FAR or high < 1 / _FAR else _format_bound  # ">100 to >100" would say nothing
    return f"{format_end(low)} to {format_end(high)}"


def _format_bound(value: float) -> str:
    """Format one end of an interval; beyond a factor of a hundred only that is known."""
    return f"<{1 / _FAR:g}" if value < 1 / _FAR else f">{_FAR:g}" if value > _FAR else format_decided_ratio(value)


def format_p_value(value: float | None) -> str:
    """Format a p-value; below a thousandth only that is said."""
    if value is None:
        return NONE
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def format_confidence(level: float) -> str:
    """Return a confidence with as many nines as it has, and a digit more."""
    places = max(1, math.ceil(-math.log10(1.0 - level)) - 1)
    return f"{100 * level:.{places}f} %"


def format_count(number: int, noun: str) -> str:
    """Return '1 block', '2 blocks'."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def list_numbers(numbers: Sequence[int], max_shown: int = 8) -> str:
    """Return '6, 9 and 12'; of many the first ones and the last."""
    texts = [str(number) for number in numbers]
    if len(texts) > max_shown:
        texts = [*texts[:3], f"{len(texts) - 4} more", texts[-1]]
    return " and ".join(filter(None, (", ".join(texts[:-1]), texts[-1])))


def effect_note(effect: Effect) -> str:
    """Return an effect's flags as one text for a table, which names stand-in data once, in its title."""
    return ", ".join(flag for flag in effect.flags if flag != Flag.STAND_IN)


def reference_name(effect: Effect) -> str:
    """Return the reference's environment, with its engine where that differs."""
    environment, _, where = effect.reference.partition(":")
    engine = where.rpartition("@")[2]
    return environment if engine == effect.engine else f"{environment} on {engine}"
