"""Parse JSON that may have been edited or damaged; report errors with line and column."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from pydantic import JsonValue

from envmatrix.errors import StoreError, Where, where_in

_RESTORE = "restore it from a copy"
#: An escape in JSON; the group contains a lone surrogate.
_ESCAPE = re.compile(r"\\(?:u[dD][89abAB]\w\w\\u[dD][c-fC-F]\w\w|(u[dD][89a-fA-F]\w\w)|.)")
#: Brackets and numbers of JSON; strings are separate tokens, so that their content does not count.
_TOKEN = re.compile(r'"(?:[^"\\]+|\\.)*"?|[\[\]{}]|\d+', re.DOTALL)


def replace_surrogate_escapes(text: str) -> str:
    """Return a JSON text with U+FFFD for each lone surrogate, which represents bytes that are not UTF-8."""
    return _ESCAPE.sub(lambda escape: r"\ufffd" if escape[1] else escape[0], text)


def parse_json(text: str, file: Path) -> JsonValue:
    """Parse a JSON document. Raises StoreError with the position of the error."""
    try:
        document: JsonValue = json.loads(text)
    except (ValueError, RecursionError) as error:
        message, position = json_error_and_offset(text, error)
        where = where_in(file, text, position)
        raise StoreError(f"not valid JSON: {message}", where=where, remedy=_RESTORE) from error
    half = next((match for match in _ESCAPE.finditer(text) if match[1]), None)
    if half:
        where = where_in(file, text, half.start())
        raise StoreError("half a character (a lone surrogate)", where=where, remedy=_RESTORE)
    return document


def parse_json_line(line: str, file: Path, number: int, remedy: str) -> JsonValue:
    """Parse one line of a file as JSON. Raises StoreError with the position of the error."""
    try:
        document: JsonValue = json.loads(line)
    except (ValueError, RecursionError) as error:
        message, position = json_error_and_offset(line, error)
        where = Where(file, number, position + 1)
        raise StoreError(f"this line is damaged: {message}", where=where, remedy=remedy) from error
    return document


def json_error_and_offset(text: str, error: ValueError | RecursionError) -> tuple[str, int]:
    """Return a message for an error of ``json``, and its position in the text."""
    if isinstance(error, json.JSONDecodeError):
        return error.msg, error.pos
    tokens = _TOKEN.finditer(text)
    if isinstance(error, RecursionError):
        return "nested too deeply", _deepest_nesting(tokens)
    numbers = (token for token in tokens if token[0].isdecimal())
    return "a number with too many digits", max(numbers, key=lambda token: len(token[0])).start()


def _deepest_nesting(tokens: Iterator[re.Match[str]]) -> int:
    """Return the position at which the most lists and objects are open."""
    depth, max_depth, position = 0, 0, 0
    for token in tokens:
        depth += (token[0] in "[{") - (token[0] in "]}")
        if depth > max_depth:
            max_depth, position = depth, token.start()
    return position
