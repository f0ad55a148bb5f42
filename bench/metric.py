"""Reading a program's own metric: from its output, from a JSON file that it writes, or its wall time."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NamedTuple

from bench.errors import BenchError, RunError


class MetricSource(NamedTuple):
    """``kind`` is regex, json or wall; ``source`` the pattern or the file, ``key`` the dotted path in the file."""

    name: str
    kind: str
    source: str | None
    key: str | None
    better: str


class LastMatch:
    """Finds a pattern in a stream of lines; the last match counts, as programs report progress first."""

    def __init__(self, pattern: str) -> None:
        try:
            self.pattern = re.compile(pattern, re.MULTILINE)
        except re.error as error:
            raise BenchError(f"--metric-regex {pattern!r} is no regular expression: {error}") from error
        if self.pattern.groups < 1:
            raise BenchError(f"--metric-regex {pattern!r} has no group: put ( ) around the number")
        self.found: str | None = None
        self.seen = 0

    def look(self, lines: str) -> None:
        """Look at some whole lines of output."""
        self.seen += len(lines)
        for match in self.pattern.finditer(lines):
            self.found = match[1]


def number_from_text(metric: MetricSource, matcher: LastMatch) -> float:
    """Return the number of the last match; raises RunError when there is none."""
    if matcher.found is None:
        raise RunError(f"metric not found: {metric.source!r} matched nothing in {matcher.seen} characters of output")
    return _number(matcher.found, f"what {metric.source!r} matched")


def number_from_file(metric: MetricSource) -> float:
    """Return the number at ``key`` in the JSON file that the program wrote."""
    assert metric.source is not None
    assert metric.key is not None
    try:
        with open(metric.source, encoding="utf-8") as file:
            value = json.load(file)
    except OSError as error:
        raise RunError(f"metric not found: cannot read {metric.source}: {error.strerror}") from error
    except ValueError as error:
        raise RunError(f"metric not found: {metric.source} is not JSON: {error}") from error
    for part in metric.key.split("."):
        try:
            value = value[int(part)] if isinstance(value, list) else value[part]
        except (KeyError, IndexError, TypeError, ValueError):
            raise RunError(f"metric not found: {metric.source} has no {metric.key!r} (stopped at {part!r})") from None
    return _number(value, f"{metric.key!r} in {metric.source}")


def _number(value: Any, what: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise RunError(f"metric is no number: {what} is {str(value)[:60]!r}") from None
    if isinstance(value, bool) or not math.isfinite(number):
        raise RunError(f"metric is no finite number: {what} is {value}")
    return number
