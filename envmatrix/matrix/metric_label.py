"""Derive a name for a metric from the regular expression that finds its number."""

from __future__ import annotations

import re

_MAX_LENGTH = 40
_NAME = re.compile(r"[\w ./()%+-]+")
#: One element of a pattern: an escape, a class, a non-capturing group, the first group, or one character.
_PATTERN_ELEMENT = re.compile(
    r"""(?P<flags>\(\?[aiLmsux]+\)) | \\(?P<escaped>.) | (?P<class>\[\^?\]?[^\]]*\]) | \(\?:(?P<group>[^()]*)\)
    | (?P<number>\() | (?P<often>[*+?]\??|\{[0-9,]*\}\??) | (?P<edge>\^) | (?P<any>[.|$)]) | (?P<plain>.)""",
    re.VERBOSE | re.DOTALL,
)
#: Separators between a label and its number: `[:=]`, `(?:[:=]|is)`, a space, `[^\\w\\n]`.
_SEPARATOR = re.compile(r"\[\^\\w\\n\]|(?:[\s:=|\[\]\\-]|is|\\s)*")
#: Marks a wildcard in the words of a pattern.
_ANYTHING = "\0"


def words_before_group(pattern: str) -> str:
    """Return the literal words right before a pattern's first group; '' if they are not fixed."""
    label = ""
    for part in _PATTERN_ELEMENT.finditer(pattern):
        kind, text = part.lastgroup or "plain", part[0]
        if kind == "number":
            return _trailing_words(label)
        if kind == "any" and text == "|":
            return ""
        if kind in ("class", "group"):
            label += " " if _SEPARATOR.fullmatch(part["group"] or part["class"]) else _ANYTHING
        elif kind in ("any", "escaped"):
            label += _escape_text(part["escaped"]) if kind == "escaped" else f"{_ANYTHING} "
        elif kind == "plain":
            label += text
    return ""


def _escape_text(letter: str) -> str:
    if letter in "sbt":
        return " "
    return _ANYTHING if letter.isalnum() else letter


def _trailing_words(text: str) -> str:
    """Return the words at the end of a text. After a wildcard, drop the partial first word."""
    _, wildcard, words = text.rpartition(_ANYTHING)
    words = re.sub(r"^\w+", "", words) if wildcard else words
    return printable_name(re.sub(r"^[\W_]+|[^\w)%]+$", "", words))


def printable_name(text: str) -> str:
    """Return a text as a name that is safe in every report; '' if it cannot be one."""
    name = " ".join(text.split())
    return name if len(name) <= _MAX_LENGTH and _NAME.fullmatch(name) and re.search(r"[^\W\d_]", name) else ""
