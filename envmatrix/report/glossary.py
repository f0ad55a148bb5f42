"""The words of a report that `envmatrix docs` explains: its verdicts, marks and warnings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envmatrix.report.summary import Summary
from envmatrix.stats.effects import Flag
from envmatrix.system.printable import one_line
from envmatrix.system.topics import chosen

if TYPE_CHECKING:
    from markupsafe import Markup


def words_of(summary: Summary) -> tuple[str, ...]:
    """Return the words that the report uses, in the order of the page that explains them."""
    rows = [(group.metric, row.effect) for group in summary.groups for row in group.all_rows if row.effect]
    flags = [flag for _, effect in rows for flag in effect.flags if flag != Flag.STAND_IN]
    verdicts = [metric.said(effect.verdict) for metric, effect in rows]
    return chosen([*verdicts, *flags, *(item.kind.value for item in summary.cautions)])


def words_sentence(summary: Summary) -> str:
    """Return where the words are explained; '' where there is none."""
    words = words_of(summary)
    return f"what a word means: envmatrix docs WORD ({', '.join(words)})" if words else ""


def linked(text: str, words: tuple[str, ...]) -> Markup:
    """Return a cell as markup: those of ``words`` that stand in it between commas are links to what they mean."""
    from markupsafe import Markup, escape

    parts = [
        Markup('<a class="word" href="#word-{0}">{0}</a>').format(part) if part in words else escape(part)
        for part in one_line(text).split(", ")
    ]
    return Markup(", ").join(parts)


def coded(text: str) -> Markup:
    """Return a sentence as markup: what stands in it between backticks is code."""
    from markupsafe import Markup, escape

    parts = text.split("`")
    if len(parts) % 2 == 0:  # one without its second: the text has it for itself
        return escape(text)
    shown = [Markup("<code>{}</code>").format(part) if at % 2 else escape(part) for at, part in enumerate(parts)]
    return Markup("").join(shown)
