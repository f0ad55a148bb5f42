"""Reading JSON that anybody may have changed: what is wrong with it is said with its line and column."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from pydantic import JsonValue

from envmatrix.errors import StoreError, Where, where_in

_RESTORE = "restore it from a copy"
#: An escape in JSON; a half of a character that stands without its other one is in the group.
_ESCAPE = re.compile(r"\\(?:u[dD][89abAB]\w\w\\u[dD][c-fC-F]\w\w|(u[dD][89a-fA-F]\w\w)|.)")
#: What makes JSON deep, and its numbers; texts are tokens of their own, so that nothing in them counts.
_TOKEN = re.compile(r'"(?:[^"\\]+|\\.)*"?|[\[\]{}]|\d+', re.DOTALL)


def replace_lone_surrogates(text: str) -> str:
    """Return a text of JSON with U+FFFD for each half of a character, which a word that is no UTF-8 has."""
    return _ESCAPE.sub(lambda escape: r"\ufffd" if escape[1] else escape[0], text)


def parse_json(text: str, file: Path) -> JsonValue:
    """Read the text of a JSON document; a StoreError says what is wrong with it, and where."""
    try:
        document: JsonValue = json.loads(text)
    except (ValueError, RecursionError) as error:
        message, position = json_error(text, error)
        where = where_in(file, text, position)
        raise StoreError(f"not valid JSON: {message}", where=where, remedy=_RESTORE) from error
    half = next((match for match in _ESCAPE.finditer(text) if match[1]), None)
    if half:
        where = where_in(file, text, half.start())
        raise StoreError("half a character (a lone surrogate)", where=where, remedy=_RESTORE)
    return document


def parse_json_line(line: str, file: Path, number: int, remedy: str) -> JsonValue:
    """Read one line of a file as JSON; a StoreError says what is wrong with it, and where."""
    try:
        document: JsonValue = json.loads(line)
    except (ValueError, RecursionError) as error:
        message, position = json_error(line, error)
        where = Where(file, number, position + 1)
        raise StoreError(f"this line is damaged: {message}", where=where, remedy=remedy) from error
    return document


def json_error(text: str, error: ValueError | RecursionError) -> tuple[str, int]:
    """Return what ``json`` could not read, and its position in the text."""
    if isinstance(error, json.JSONDecodeError):
        return error.msg, error.pos
    tokens = _TOKEN.finditer(text)
    if isinstance(error, RecursionError):
        return "nested too deeply", _deepest_nesting(tokens)
    numbers = (token for token in tokens if token[0].isdecimal())
    return "a number with too many digits", max(numbers, key=lambda token: len(token[0])).start()


def _deepest_nesting(tokens: Iterator[re.Match[str]]) -> int:
    """Return where most lists and objects are open at once."""
    depth, max_depth, position = 0, 0, 0
    for token in tokens:
        depth += (token[0] in "[{") - (token[0] in "]}")
        if depth > max_depth:
            max_depth, position = depth, token.start()
    return position
