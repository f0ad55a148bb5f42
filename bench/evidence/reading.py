"""Readers of small files and values that may not exist."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

Read = TypeVar("Read")


def attempt(read: Callable[[], Read]) -> Read | None:
    """Return ``read()``, or None if it fails on this machine."""
    try:
        return read()
    except Exception:  # evidence must never end a run, whatever a kernel answers
        return None


def text(path: str) -> str | None:
    """Return a small file's stripped text, or None."""
    return attempt(lambda: _text(path))


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read().strip()


def number(path: str) -> int | None:
    """Return the integer in a small file, or None."""
    return attempt(lambda: int(_text(path)))


def selected_choice(path: str) -> str | None:
    """Return the choice in square brackets of a kernel switch such as ``always [madvise] never``, or None."""
    return attempt(lambda: _text(path).split("[", 1)[1].split("]", 1)[0])


def first_match(pattern: str, searched: str | None) -> str | None:
    """Return the stripped group of the first match of a pattern in a text, or None."""
    match = re.search(pattern, searched or "")
    return match[1].strip() if match else None


def fields(path: str) -> dict[str, str]:
    """Return a ``Name: value`` file such as /proc/self/status as a dict, empty if it is not readable."""
    lines = (text(path) or "").splitlines()
    return {
        name.strip(): value.strip() for name, separator, value in (line.partition(":") for line in lines) if separator
    }
