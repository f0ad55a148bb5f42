"""Format the words and numbers of reports; text from users or programs is escaped here."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence

from envmatrix.stats.effects import Effect, Flag
from envmatrix.stats.metrics import Metric
from envmatrix.system.printable import printable_line

# Characters with a meaning inside a line; `-` and `#` have one only at its start, where no user text is.
# `<`, `>` and `&` become entities instead, because a backslash would show the entity itself.
_MARKDOWN = re.compile(r"([\\`*_{}\[\]!|~$])")
NONE = "\N{EN DASH}"
#: Values closer to 1 would be rounded to it.
_NEAR = 0.005
#: The end of an interval beyond this factor is shown as a bound.
_FAR = 100.0
#: Longest sentence, in characters; it may list many environments.
_SENTENCE = 2000


def markdown_cell(text: object) -> str:
    """Return text escaped for a cell of a Markdown table, HTML included."""
    return markdown_text(printable_line(text)) if str(text) else ""


def markdown_text(text: object) -> str:
    """Return a sentence escaped for Markdown."""
    return html.escape(_MARKDOWN.sub(r"\\\1", printable_line(text, _SENTENCE)), quote=False)


def svg_text(text: object, limit: int = 40) -> str:
    """Return text for an SVG element or attribute."""
    return html.escape(printable_line(text, limit), quote=True)


def format_ratio(value: float | None, more: int = 0) -> str:
    """Format a ratio, with ``more`` digits than usual."""
    if value is None:
        return NONE
    return f"{value:.{2 + more}f}" if 0.1 <= value < 100 else f"{value:.{3 + more}g}"


def format_decided_ratio(value: float | None) -> str:
    """Format a ratio that differs from 1 with enough digits that it is not rounded to 1.00."""
    if value is None or not 0 < abs(value - 1.0) < _NEAR:
        return format_ratio(value)
    digits = next((digits for digits in (3, 4, 5) if round(value, digits) != 1.0), 6)
    return f"{value:.{digits}f}"


def format_speed_up(effect: Effect) -> str:
    """Format an effect's ratio, with the digits of a narrow interval; if that excludes 1, it does not read 1.00."""
    if more := _more_digits(effect.low, effect.high):
        return format_ratio(effect.ratio, more)
    is_decided = effect.low is not None and effect.high is not None and not effect.low <= 1.0 <= effect.high
    return format_decided_ratio(effect.ratio) if is_decided else format_ratio(effect.ratio)


def format_interval(effect: Effect) -> str:
    """Format an effect's interval, or what is missing for one."""
    if effect.blocks == 0:
        return "no complete block"
    if effect.low is None or effect.high is None:
        return f"{effect.missing} more block{'s' * (effect.missing != 1)} needed" if effect.missing else NONE
    return format_bounds(effect.low, effect.high)


def format_bounds(low: float | None, high: float | None) -> str:
    """Format both ends of an interval, a dash without one; a narrow one has enough digits to show its width."""
    if low is None or high is None:
        return NONE
    if more := _more_digits(low, high):
        return f"{format_ratio(low, more)} to {format_ratio(high, more)}"
    format_end = format_ratio if low > _FAR or high < 1 / _FAR else _format_bound  # ">100 to >100" has no information
    return f"{format_end(low)} to {format_end(high)}"


def _more_digits(low: float | None, high: float | None) -> int:
    """Return how many more digits than usual the ends of an interval need to differ; 0 if they are equal."""
    if low is None or high is None or low == high:
        return 0
    return next((more for more in range(5) if format_ratio(low, more) != format_ratio(high, more)), 5)


def _format_bound(value: float) -> str:
    """Format one end of an interval; beyond a factor of 100 as a bound."""
    return f"<{1 / _FAR:g}" if value < 1 / _FAR else f">{_FAR:g}" if value > _FAR else format_decided_ratio(value)


def format_p_value(value: float | None) -> str:
    """Format a p-value; below 0.001 as a bound."""
    if value is None:
        return NONE
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def format_confidence(level: float) -> str:
    """Format a confidence level with all its nines and one more digit."""
    places = max(1, math.ceil(-math.log10(1.0 - level)) - 1)
    return f"{100 * level:.{places}f} %"


def format_value(metric: Metric, value: float) -> str:
    """Return a metric's value with its unit, which the text of times and sizes already includes."""
    return f"{metric.show(value)} {metric.unit_beside}".rstrip()


def format_count(number: int, noun: str) -> str:
    """Return '1 block', '2 blocks'."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def list_names(names: Sequence[str], width: int = 80) -> str:
    """Return 'a, b and 3 more': as many names as fit in ``width`` characters, at least one."""
    shown = list(names)
    while len(shown) > 1 and len(", ".join(shown)) > width:
        shown.pop()
    more = f" and {len(names) - len(shown)} more" if len(shown) < len(names) else ""
    return printable_line(", ".join(shown), width) + more


def join_texts(texts: Sequence[str]) -> str:
    """Return 'a, b and c'."""
    return " and ".join(filter(None, (", ".join(texts[:-1]), *texts[-1:])))


def list_numbers(numbers: Sequence[int], max_shown: int = 8) -> str:
    """Return '6, 9 and 12'; of a long list, only the first ones and the last."""
    texts = [str(number) for number in numbers]
    if len(texts) > max_shown:
        texts = [*texts[:3], f"{len(texts) - 4} more", texts[-1]]
    return join_texts(texts)


def flags_text(effect: Effect) -> str:
    """Return an effect's flags as text, without the flag for generated data, which the table's title shows."""
    return ", ".join(flag for flag in effect.flags if flag != Flag.STAND_IN)


def reference_name(effect: Effect) -> str:
    """Return the reference's environment, with its engine if that differs."""
    environment, _, where = effect.reference.partition(":")
    engine = where.rpartition("@")[2]
    return environment if engine == effect.engine else f"{environment} on {engine}"
