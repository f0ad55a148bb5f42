"""The words of a report that `envmatrix docs` explains: its verdicts, flags and warnings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envmatrix.report.summary import Summary
from envmatrix.stats.effects import Flag
from envmatrix.system.printable import printable_line
from envmatrix.system.topics import explained_topics

if TYPE_CHECKING:
    from markupsafe import Markup


def glossary_words(summary: Summary) -> tuple[str, ...]:
    """Return the explained words that the report uses, in the order of the page that explains them."""
    rows = [(group.metric, row.effect) for group in summary.groups for row in group.all_rows if row.effect]
    flags = [flag for _, effect in rows for flag in effect.flags if flag != Flag.STAND_IN]
    verdicts = [metric.said(effect.verdict) for metric, effect in rows]
    return explained_topics([*verdicts, *flags, *(item.kind.value for item in summary.cautions)])


def glossary_sentence(summary: Summary) -> str:
    """Return the sentence that points to the explanations; '' if there are no words to explain."""
    words = glossary_words(summary)
    return f"what a word means: envmatrix docs WORD ({', '.join(words)})" if words else ""


def link_words(text: str, words: tuple[str, ...]) -> Markup:
    """Return a cell as markup, in which the comma-separated parts that are in ``words`` link to their explanation."""
    from markupsafe import Markup, escape

    parts = [
        Markup('<a class="word" href="#word-{0}">{0}</a>').format(part) if part in words else escape(part)
        for part in printable_line(text).split(", ")
    ]
    return Markup(", ").join(parts)


def code_markup(text: str) -> Markup:
    """Return a sentence as markup, with text between backticks as code."""
    from markupsafe import Markup, escape

    parts = text.split("`")
    if len(parts) % 2 == 0:  # an unpaired backtick: part of the text
        return escape(text)
    markup = [Markup("<code>{}</code>").format(part) if index % 2 else escape(part) for index, part in enumerate(parts)]
    return Markup("").join(markup)
