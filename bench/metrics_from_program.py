"""The metrics of a program: from its output, from a JSON file that it writes, its wall time or its steps."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NamedTuple

from bench.errors import BenchError, RunError
from bench.step_times_from_output import Marks


class MetricSource(NamedTuple):
    """The source of a number: ``kind`` is regex, json, wall or steps, ``source`` the pattern or the file.

    ``key`` is the dotted path in the JSON file. A match is read with its separators, its factor and its unit, and
    converted to ``unit``. ``tolerance`` (a fraction) makes it a check of equal work. ``warmup`` is the number of steps
    before the first that counts.
    """

    name: str
    kind: str
    source: str | None
    key: str | None
    better: str
    unit: str = ""
    tolerance: float | None = None
    warmup: int = 1

    def as_record(self) -> dict[str, Any]:
        """Return it in the record's form."""
        return {name: value for name, value in self._asdict().items() if name != "warmup" or self.kind == "steps"}


class WantedNumbers(NamedTuple):
    """The numbers to read from a program: the main metric, which decides verdicts, further metrics, and checks."""

    metric: MetricSource
    more: tuple[MetricSource, ...] = ()
    checks: tuple[MetricSource, ...] = ()


def parse_also_or_check(text: str, *, check: bool) -> MetricSource:
    """Parse ``--also`` or ``--check``: {"name", "regex" | "json_file": "FILE:KEY" | "wall", ...}."""
    flag = "--check" if check else "--also"
    try:
        fields = dict(json.loads(text))
    except (ValueError, TypeError) as error:
        raise BenchError(f"{flag} {text!r} is no JSON object: {error}") from None
    file, _, key = str(fields.get("json_file", "")).partition(":")
    kind, source = ("regex", str(fields["regex"])) if "regex" in fields else ("json", file) if file else ("wall", None)
    tolerance = fields.get("tolerance") if check else None
    if (kind == "wall") != (fields.get("wall") is True) or (kind == "json" and not key):
        raise BenchError(f"{flag} {text!r} names no regex, json_file (FILE:KEY) or wall")
    if check and (kind == "wall" or not isinstance(tolerance, (int, float)) or not 0 <= tolerance < 1):
        raise BenchError(f"--check {text!r} wants a regex or json_file, and a tolerance from 0 to below 1")
    name, better = str(fields.get("name") or source or kind), str(fields.get("better", "lower"))
    return MetricSource(name, kind, source, key or None, better, str(fields.get("unit", "")), tolerance)


class LastMatch:
    """Searches lines of output for a pattern; the last match counts, because programs report progress first.

    ``found`` is (line, start, end) of the match's group.
    """

    def __init__(self, pattern: str) -> None:
        try:
            self.pattern = re.compile(pattern, re.MULTILINE)
        except re.error as error:
            raise BenchError(f"--metric-regex {pattern!r} is no regular expression: {error}") from error
        if self.pattern.groups < 1:
            raise BenchError(f"--metric-regex {pattern!r} has no group: put ( ) around the number")
        self.found: tuple[str, int, int] | None = None
        self.seen = 0

    def look(self, lines: str) -> None:
        """Search whole lines of output, which must be free of colour codes."""
        self.seen += len(lines)
        matches = [match for match in self.pattern.finditer(lines) if match[1] is not None]
        if matches:
            last_match = matches[-1]
            (start, end), line_start = last_match.span(1), lines.rfind("\n", 0, last_match.start(1)) + 1
            line = lines[line_start:end] + lines[end:].partition("\n")[0]
            self.found = line, start - line_start, end - line_start


class Numbers:
    """Reads all wanted numbers: patterns while the program runs, the rest after it has ended."""

    def __init__(self, wanted: WantedNumbers) -> None:
        self.wanted = wanted
        everything = (wanted.metric, *wanted.more, *wanted.checks)
        patterns = [number.source for number in everything if number.kind == "regex" and number.source is not None]
        self.matchers = {pattern: LastMatch(pattern) for pattern in patterns}
        main_metric = wanted.metric
        self.marks = Marks(main_metric.source or "", main_metric.warmup) if main_metric.kind == "steps" else None
        if self.looks:  # loaded now, as it takes 20 ms: not next to the program, and not for its wall time
            from bench import number_parser  # noqa: F401

    @property
    def looks(self) -> bool:
        """Whether the program's output must be searched."""
        return bool(self.matchers or self.marks)

    def look(self, writes: list[str], at_ns: int, full: bool) -> None:
        """Search the whole lines of each write; all were available at ``at_ns`` (see ``user_program_output.Burst``)."""
        from bench import number_parser

        if self.marks:
            self.marks.look([number_parser.without_colours(write) for write in writes], at_ns, full)
        texts = [number_parser.redraws_as_lines(write) for write in writes] if self.matchers else []
        for matcher in self.matchers.values():
            for text in texts:
                matcher.look(text)

    def value(self, number: MetricSource, wall_ns: int) -> float:
        """Return a number; raises RunError if the program did not report it."""
        if number.kind == "wall":
            return wall_ns / 1e9
        if self.marks and number.kind == "steps":
            steps_ns = self.marks.counted_steps_ns()
            return 1e9 * len(steps_ns) / sum(steps_ns)
        try:
            if number.kind == "json":
                return number_from_file(number)
            return number_from_text(number, self.matchers[number.source or ""])
        except RunError as error:
            raise RunError(f"{'metric' if number.tolerance is None else 'check'} {error}") from None

    def as_record(self, wall_ns: int) -> dict[str, Any]:
        """Return the record's ``metric``, ``more_metrics`` and ``checks``."""
        main_metric, more, checks = self.wanted

        def entry(number: MetricSource, *fields: str) -> dict[str, Any]:
            value = self.value(number, wall_ns)
            return {"name": number.name, "value": value, **{field: getattr(number, field) for field in fields}}

        return {
            "metric": entry(main_metric, "better"),
            "more_metrics": [entry(number, "better", "unit") for number in more],
            "checks": [entry(number, "tolerance") for number in checks],
        }


def number_from_text(metric: MetricSource, matcher: LastMatch) -> float:
    """Return the number of the last match; raises RunError if there is none."""
    from bench import number_parser

    if matcher.found is None:
        raise RunError(f"not found: {metric.source!r} matched nothing in {matcher.seen} characters of output")
    line, start, end = matcher.found
    origin = f"what {metric.source!r} matched"
    if line[start:end].strip(" +-").lower() in ("nan", "inf", "infinity"):
        return _number(line[start:end], origin)
    try:
        field = number_parser.number_around(line, start, end, literally="," in matcher.pattern.pattern)
        value = number_parser.converted(field, metric.unit, metric.better if metric.tolerance is None else "")
    except ValueError as error:
        raise RunError(f"is no number: {origin}: {error}") from None
    return _number(value, origin)


def number_from_file(metric: MetricSource) -> float:
    """Return the number at ``key`` in the JSON file that the program wrote; raises RunError if there is none."""
    assert metric.source is not None
    assert metric.key is not None
    try:
        with open(metric.source, encoding="utf-8") as file:
            value = json.load(file)
    except OSError as error:
        raise RunError(f"not found: cannot read {metric.source}: {error.strerror}") from error
    except ValueError as error:
        raise RunError(f"not found: {metric.source} is not JSON: {error}") from error
    for part in metric.key.split("."):
        try:
            value = value[int(part)] if isinstance(value, list) else value[part]
        except (KeyError, IndexError, TypeError, ValueError):
            raise RunError(f"not found: {metric.source} has no {metric.key!r} (stopped at {part!r})") from None
    return _number(value, f"{metric.key!r} in {metric.source}")


def _number(value: Any, origin: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise RunError(f"is no number: {origin} is {str(value)[:60]!r}") from None
    if isinstance(value, bool) or not math.isfinite(number):
        raise RunError(f"is no finite number: {origin} is {value}")
    return number
