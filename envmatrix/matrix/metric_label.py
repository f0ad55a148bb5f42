"""What a program calls a number: the words before it on its line, as the pattern that finds it has them."""

from __future__ import annotations

import re

_LONGEST = 40
_NAME = re.compile(r"[\w ./()%+-]+")
#: One element of a pattern: an escape, a class, a group that captures nothing, the first group, or one character.
_PART = re.compile(
    r"""(?P<flags>\(\?[aiLmsux]+\)) | \\(?P<escaped>.) | (?P<class>\[\^?\]?[^\]]*\]) | \(\?:(?P<group>[^()]*)\)
    | (?P<number>\() | (?P<often>[*+?]\??|\{[0-9,]*\}\??) | (?P<edge>\^) | (?P<any>[.|$)]) | (?P<plain>.)""",
    re.VERBOSE | re.DOTALL,
)
#: What stands between words and their number: `[:=]`, `(?:[:=]|is)`, a space, `[^\\w\\n]`.
_BETWEEN = re.compile(r"\[\^\\w\\n\]|(?:[\s:=|\[\]\\-]|is|\\s)*")
#: In a pattern's words: here stood what may be anything.
_ANYTHING = "\0"


def words_before(pattern: str) -> str:
    """Return the words that a pattern looks for right before its first group; '' where they cannot be told."""
    found = ""
    for part in _PART.finditer(pattern):
        kind, text = part.lastgroup or "plain", part[0]
        if kind == "number":
            return _plain(found)
        if kind == "any" and text == "|":
            return ""
        if kind in ("class", "group"):
            found += " " if _BETWEEN.fullmatch(part["group"] or part["class"]) else _ANYTHING
        elif kind in ("any", "escaped"):
            found += _of_escape(part["escaped"]) if kind == "escaped" else f"{_ANYTHING} "
        elif kind == "plain":
            found += text
    return ""


def _of_escape(letter: str) -> str:
    if letter in "sbt":
        return " "
    return _ANYTHING if letter.isalnum() else letter


def _plain(text: str) -> str:
    """Return the words at the end of a text; of one that is cut by what may be anything, no part of a word."""
    _, cut, words = text.rpartition(_ANYTHING)
    words = re.sub(r"^\w+", "", words) if cut else words
    return plain_name(re.sub(r"^[\W_]+|[^\w)%]+$", "", words))


def plain_name(text: str) -> str:
    """Return a text as a name that can stand in any report, '' where it is none."""
    name = " ".join(text.split())
    return name if len(name) <= _LONGEST and _NAME.fullmatch(name) and re.search(r"[^\W\d_]", name) else ""
