"""Differences between the evidence of two processes by path, without values that always differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

#: Last parts of paths whose values differ between any two processes, times or package folders.
_ALWAYS_DIFFERENT = frozenset(
    {
        "affinity_after",
        "arenas",
        "build",
        "clocks",
        "cpu_periods",
        "executable",
        "load_1m",
        "mhz",
        "path",
        "pid",
        "power_mw",
        "processes",
        "ranks",
        "steal_ticks",
        "stops",
        "temperature_c",
        "thread_affinity",
        "throttle",
        "throttled_periods",
        "uptime_s",
        "used_bytes",
    }
)
_FILES = ("libraries", "loaded", "preloaded")


def differing(first: object, second: object, path: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield (path, first text, second text) for each difference; '' if a side has no value."""
    if isinstance(first, Mapping) or isinstance(second, Mapping):
        one, other = (value if isinstance(value, Mapping) else {} for value in (first, second))
        for key in sorted({*one, *other} - _ALWAYS_DIFFERENT):
            left, right = _files(key, one.get(key)), _files(key, other.get(key))
            yield from differing(left, right, f"{path}.{key}".strip("."))
    elif first != second:
        yield path, _text(first), _text(second)


def _files(key: str, value: object) -> object:
    """Return files by name only, because their folders differ between any two images."""
    if key not in _FILES or not isinstance(value, (list, Mapping)):
        return value
    return {PurePosixPath(str(file)).name: "loaded" for file in value}


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(_text, value)) if isinstance(value, list) else str(value)
