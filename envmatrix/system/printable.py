"""Sanitize text of users and programs before it is displayed."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable_text(text: object, limit: int = 2000) -> str:
    """Return text without control, escape and direction characters and lone surrogates, cut to ``limit``."""
    printable = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", str(text)[:limit])
    return printable.encode("utf-8", "replace").decode()


def printable_line(text: object, limit: int = 200) -> str:
    """Return text on one line, cut to ``limit``."""
    single_spaced = " ".join(printable_text(text).split())
    return single_spaced if len(single_spaced) <= limit else single_spaced[: limit - 1] + "…"


def html_lines(lines: Iterable[str]) -> str:
    """Return lines as a paragraph of HTML, which keeps their columns."""
    return f"<pre>{html.escape(chr(10).join(map(printable_text, lines)))}</pre>"
