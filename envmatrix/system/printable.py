"""Text that a user or a program wrote, made harmless before it is shown."""

from __future__ import annotations

import re

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable_text(text: object, limit: int = 2000) -> str:
    """Return printable text: no control, escape or direction characters, no lone surrogates, not endless."""
    printable = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", str(text)[:limit])
    return printable.encode("utf-8", "replace").decode()


def printable_line(text: object, limit: int = 200) -> str:
    """Return text on one line, shortened."""
    single_spaced = " ".join(printable_text(text).split())
    return single_spaced if len(single_spaced) <= limit else single_spaced[: limit - 1] + "…"
