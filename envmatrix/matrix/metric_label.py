"""What a program calls a number: the words before it on its line, as the pattern that finds it has them."""

from __future__ import annotations

import re

_MAX_LENGTH = 40
_NAME = re.compile(r"[\w ./()%+-]+")
#: One element of a pattern: an escape, a class, a group that captures nothing, the first group, or one character.
_PATTERN_ELEMENT = re.compile(
    r"""(?P<flags>\(\?[aiLmsux]+\)) | \\(?P<escaped>.) | (?P<class>\[\^?\]?[^\]]*\]) | \(\?:(?P<group>[^()]*)\)
    | (?P<number>\() | (?P<often>[*+?]\??|\{[0-9,]*\}\??) | (?P<edge>\^) | (?P<any>[.|$)]) | (?P<plain>.)""",
    re.VERBOSE | re.DOTALL,
)
#: What stands between words and their number: `[:=]`, `(?:[:=]|is)`, a space, `[^\\w\\n]`.
_SEPARATOR = re.compile(r"\[\^\\w\\n\]|(?:[\s:=|\[\]\\-]|is|\\s)*")
#: In a pattern's words: here stood what may be anything.
_ANYTHING = "\0"


def words_before_group(pattern: str) -> str:
    """Return the words that a pattern looks for right before its first group; '' where they cannot be told."""
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
    """Return the words at the end of a text; of one that is cut by what may be anything, no part of a word."""
    _, wildcard, words = text.rpartition(_ANYTHING)
    words = re.sub(r"^\w+", "", words) if wildcard else words
    return printable_name(re.sub(r"^[\W_]+|[^\w)%]+$", "", words))


def printable_name(text: str) -> str:
    """Return a text as a name that can stand in any report, '' where it is none."""
    name = " ".join(text.split())
    return name if len(name) <= _MAX_LENGTH and _NAME.fullmatch(name) and re.search(r"[^\W\d_]", name) else ""
