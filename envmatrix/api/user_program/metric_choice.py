"""Choose the metric of a program on the command line: the requested one, or one found in its output."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from pydantic import ValidationError

from envmatrix.errors import InputError
from envmatrix.matrix.metric_sources import WALL_TIME, MetricSource
from envmatrix.matrix.program_output.throughput import (
    Throughput,
    has_pytest_benchmark_table,
    is_truncated,
    step_line_pattern,
    throughput_candidates,
)
from envmatrix.system import shared_bench_modules as bench
from envmatrix.system.validation_messages import validation_message
from envmatrix.trials.user_program.preliminary_run import Arrivals

#: One in ``_WARMUP_SHARE`` steps of a program counts as warm-up, and at most ``_MAX_WARMUP`` steps.
_WARMUP_SHARE, _MAX_WARMUP = 5, 10
#: Steps shorter than this cannot be timed by their lines. At most this share of the lines may arrive at once.
_SHORTEST_STEP_S, _MAX_BURST_SHARE = 0.01, 0.1
#: Characters of a line shown on each side of its number, and the most numbers shown.
_EXCERPT_WIDTH, _MAX_CANDIDATES = 60, 6
_PYTEST_BENCHMARK_NOTE = (
    "wall time, which is misleading for pytest-benchmark: it repeats until its time is up; better: "
    "--metric-json speed.json:benchmarks.0.stats.ops -- pytest --benchmark-json=speed.json ..."
)


def check_patterns(regex: str, steps: str) -> None:
    """Raise InputError for a requested pattern that works with no output; '' is none."""
    if regex:
        _make_source("--metric-regex", regex=regex, better="higher")
    if steps:
        _make_source("--metric-steps", steps=steps, better="higher")


def choose_metric(
    regex: str, steps: str, output: str, wall_s: float | None = None, arrivals: Arrivals = ()
) -> tuple[MetricSource, str]:
    """Return the metric of a program that printed ``output``, and why: one line, and optional lines below it.

    ``regex`` and ``steps`` are requested patterns, or ''. ``wall_s`` is the program's duration, ``arrivals`` the times
    at which output arrived. Raises InputError for a pattern that does not work.
    """
    if steps:
        return _step_rate_metric(steps, output, "that match --metric-steps")
    if regex:
        return _regex_metric(regex, output)
    source, why = _detect_metric(output, wall_s)
    step_pattern = step_line_pattern(output)
    if not step_pattern or not can_time_lines(step_pattern, output, arrivals):
        return source, why
    by_steps, timed = _step_rate_metric(step_pattern, output, "that count up")
    if not source.regex:
        return by_steps, timed
    option = f"--metric-regex {shlex.quote(source.regex)}"
    return by_steps, f"{timed}\n  to use {why.partition(';')[0]} instead: {option}"


def can_time_lines(pattern: str, output: str, arrivals: Arrivals) -> bool:
    """Return whether matching lines can be timed: they arrived one by one, and steps took long enough.

    Of a truncated output, only the part before the gap has arrival times.
    """
    ends, size = [], 0
    for line in output.partition("\n[... ")[0].split("\n"):
        size += len(line.encode()) + 1
        if re.match(pattern, bench.number_parser.without_colours(line)):
            ends.append(size)
    arrival_of_each = (next((at_s for at_s, received in arrivals if received >= end), None) for end in ends)
    times = [at_s for at_s in arrival_of_each if at_s is not None]
    if not times or len(times) < len(ends) or times[-1] - times[0] < _SHORTEST_STEP_S * len(times):
        return False
    return max(times.count(line_s) for line_s in set(times)) <= max(3, _MAX_BURST_SHARE * len(times))


def _step_rate_metric(pattern: str, output: str, description: str) -> tuple[MetricSource, str]:
    _make_source("--metric-steps", steps=pattern, better="higher")
    text = bench.number_parser.without_colours(output)
    lines = [text[match.start() :].partition("\n")[0] for match in re.finditer(pattern, text, re.MULTILINE)]
    is_cut = is_truncated(output)
    if not lines and not is_cut:
        raise _no_match("--metric-steps", pattern)
    if len(lines) < 2 and not is_cut:
        raise InputError(
            f"--metric-steps: {pattern!r} matches only one line of the output, so start-up cannot be separated",
            remedy="print a line for each step, or for every N steps",
        )
    warmup = max(1, min(_MAX_WARMUP, len(lines) // _WARMUP_SHARE))
    source = MetricSource.model_validate({"steps": pattern, "warmup": warmup})
    count = f"{len(lines)} lines {description}" if lines else f"lines {description} (long output: not checked)"
    excerpt = f"\n  | {lines[-1][:_EXCERPT_WIDTH]}" if lines else ""
    return source, f"steps per second, from {count}; the first {warmup} are warm-up{excerpt}"


def _regex_metric(pattern: str, output: str) -> tuple[MetricSource, str]:
    source = _make_source("--metric-regex", regex=pattern, better="higher")
    text = bench.number_parser.redraws_as_lines(output)
    matches = [match for match in re.finditer(pattern, text, re.MULTILINE) if match[1] is not None]
    if not matches and is_truncated(output):
        return source, "from --metric-regex (long output: no match in the part that is kept); higher is better"
    if not matches:
        raise _no_match("--metric-regex", pattern)
    last = matches[-1]
    begin, end = text.rfind("\n", 0, last.start(1)) + 1, text.find("\n", last.end(1))
    line = text[begin : end if end >= 0 else None]
    try:
        field = bench.number_parser.number_around(
            line, last.start(1) - begin, last.end(1) - begin, literally="," in pattern
        )
    except ValueError as error:
        raise InputError(f"--metric-regex: {error}", remedy="put ( ) around one number") from None
    unit = field.unit if field.unit and field.unit.kind != "count" else None
    better = "lower" if (unit and unit.kind == "time") or _is_time_field(field) else "higher"
    source = _make_source("--metric-regex", regex=pattern, better=better, unit=unit.text if unit else "")
    excerpt = _excerpt(line, field.start, field.unit_end if unit else field.end)
    value = f"{field.value:g} {source.unit}".rstrip()
    return source, f"from --metric-regex: {value}; {better} is better\n{excerpt}"


def _is_time_field(field: bench.NumberField) -> bool:
    words = bench.number_parser.words(field.label)
    match = re.search(r"\b(?:time|timing|latency|duration|dt|ms|seconds)\b", words)
    return match is not None and not bench.number_parser.label_names_speed(words)


def _no_match(option: str, pattern: str) -> InputError:
    return InputError(f"{option}: {pattern!r} matches nothing in the output", remedy="--show-output prints the output")


def _make_source(option: str, **source: str) -> MetricSource:
    try:
        return MetricSource.model_validate({name: value for name, value in source.items() if value})
    except ValidationError as error:
        raise InputError(f"{option}: {validation_message(error.errors()[0])}") from error


def _detect_metric(output: str, wall_s: float | None) -> tuple[MetricSource, str]:
    numbers = throughput_candidates(output, wall_s)
    if not numbers and has_pytest_benchmark_table(output):
        return WALL_TIME, _PYTEST_BENCHMARK_NOTE
    if not numbers:
        return WALL_TIME, "wall time, because no number in the output looks like a speed (--metric-regex picks one)"
    number = numbers[0]
    marked_line = _excerpt(number.line, *number.span)
    if len(numbers) == 1 and not number.regex:
        return WALL_TIME, f"wall time, because no pattern matches only {number.label}\n{marked_line}"
    if len(numbers) == 1 and number.beside_training:
        why = "wall time, because the only speed is that of an evaluation, not of the training. To compare it, add"
        return WALL_TIME, f"{why}:\n{_candidate_lines(numbers)}"
    if len(numbers) == 1:
        source = _make_source("--metric-regex", regex=number.regex, unit=number.unit, better=number.better)
        note = f" ({number.note})" if number.note else ""
        return source, f"{number.label}, {_value_text(number)}{note}; {number.better} is better\n{marked_line}"
    return (
        WALL_TIME,
        f"wall time, because {len(numbers)} numbers look like a speed and differ. To compare one instead, add:\n"
        f"{_candidate_lines(numbers)}",
    )


def _candidate_lines(numbers: Sequence[Throughput]) -> str:
    lines = []
    for number in numbers[:_MAX_CANDIDATES]:
        note = f", {number.note}" if number.note else ""
        option = f"--metric-regex {shlex.quote(number.regex)}" if number.regex else "(no pattern matches only this one)"
        lines.append(f"  {option}  # {number.label}: {_value_text(number)}{note}")
    omitted = len(numbers) - _MAX_CANDIDATES
    return "\n".join([*lines, *([f"  ({omitted} more)"] if omitted > 0 else [])])


def _value_text(number: Throughput) -> str:
    return f"{number.value:g} {number.unit}".strip()


def _excerpt(line: str, start: int, end: int) -> str:
    """Return the part of a line around a number, and a second line that marks the number."""
    begin = max(0, start - _EXCERPT_WIDTH)
    visible = line[begin : end + _EXCERPT_WIDTH].replace("\t", " ")
    return f"  | {visible.rstrip()}\n  | {' ' * (start - begin)}{'^' * (end - start)}"
