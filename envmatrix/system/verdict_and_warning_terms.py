"""Names of verdicts, marks, warnings and errors with their meanings: stable identifiers, like a linter's rules.

``envmatrix docs WORD`` prints the section of docs/verdicts.md on one of them, and reports link to it. Other terms are
in docs/glossary.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import yaml

#: The documentation page with a section for every word.
PAGE = "verdicts"

_TEXTS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
VERDICTS: Mapping[str, str] = _TEXTS["verdicts"]
OUTCOME_MARKS: Mapping[str, str] = _TEXTS["outcome marks"]
WARNINGS: Mapping[str, str] = _TEXTS["warnings"]
ERRORS: Mapping[str, str] = _TEXTS["errors"]
#: Every word, in the order in which a reader meets them.
TOPICS: Mapping[str, str] = {**VERDICTS, **OUTCOME_MARKS, **WARNINGS, **ERRORS}
#: The page that explains other terms in one line each.
GLOSSARY = "glossary"
_SECTION = r"^### {}\n(.*?)(?=^#{{1,3}} |\Z)"
_TERM = re.compile(r"^### (.*)\n\n(.*?)(?: \*Also: (.*)\.\*)?$", re.MULTILINE)


def explained_topics(words: Iterable[str]) -> tuple[str, ...]:
    """Return the topics among ``words``, each once, in the order of the page."""
    given_words = set(words)
    return tuple(word for word in TOPICS if word in given_words)


def topic_section(page: str, word: str) -> str:
    """Return a word's section in the page's text, with its heading; '' if there is none."""
    match = re.search(_SECTION.format(re.escape(word)), page, re.DOTALL | re.MULTILINE)
    return f"### {word}\n{match[1]}".rstrip() if match else ""


def terms(page: str) -> dict[str, str]:
    """Return the glossary's entry for each term and each of its other names."""
    return {
        name: f"{term}: {line}"
        for term, line, others in _TERM.findall(page)
        for name in (term, *filter(None, others.split(", ")))
    }


def term_lookup_key(word: str) -> str:
    """Return a term in the form used for lookup: lower case, spaces, no plural ending."""
    return re.sub(r"[\s_-]+", " ", word.strip().lower()).removesuffix("s")
