"""What is measured of a program on the command line: what was asked for, else what its output shows."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from pydantic import ValidationError

from envmatrix.errors import InputError
from envmatrix.matrix.metrics import WALL_TIME, MetricSource
from envmatrix.matrix.throughput import Throughput, candidates, counts_steps, cut, is_of_pytest_benchmark
from envmatrix.system.bench_options import NumberField, quantities
from envmatrix.system.validation_messages import in_words
from envmatrix.trials.trial_run import Arrivals

#: Of the steps of a program, one in so many is warm-up, and no more than so many are.
_WARMUP_SHARE, _WARMUP = 5, 10
#: Shorter steps are not timed well by their lines, and no more than this share of these may come at once.
_SHORTEST_STEP_S, _TOGETHER = 0.01, 0.1
#: So many characters of a line are shown around its number, and so many numbers at most.
_SHOWN, _LISTED = 60, 6
_ABOUT_PYTEST_BENCHMARK = (
    "wall time, which says little of pytest-benchmark: it repeats until a time is spent; better is "
    "--metric-json speed.json:benchmarks.0.stats.ops -- pytest --benchmark-json=speed.json ..."
)


def metric_of(
    regex: str, steps: str, output: str, wall_s: float | None = None, arrivals: Arrivals = ()
) -> tuple[MetricSource, str]:
    """Return what is measured of a program that printed ``output``, and how it was chosen: a line, and lines below it.

    ``regex`` and ``steps`` are patterns that were asked for, or ''. ``wall_s`` is how long the program took,
    ``arrivals`` when its output came. Raises InputError for a pattern that is of no use.
    """
    if steps:
        return _of_steps(steps, output, "that --metric-steps matches")
    if regex:
        return _of_regex(regex, output)
    source, why = _found(output, wall_s)
    seen = counts_steps(output)
    if not seen or not came_as_printed(seen, output, arrivals):
        return source, why
    by_steps, timed = _of_steps(seen, output, "that count up")
    instead = f"\n  for {why.partition(';')[0]}: --metric-regex {shlex.quote(source.regex)}" if source.regex else ""
    return by_steps, f"{timed}{instead}"


def came_as_printed(pattern: str, output: str, arrivals: Arrivals) -> bool:
    """Say whether the lines that match can be timed: they came one after another, and each took long enough.

    Only the beginning of a long output is written while the program runs.
    """
    ends, size = [], 0
    for line in output.partition("\n[... ")[0].split("\n"):
        size += len(line.encode()) + 1
        if re.match(pattern, quantities().without_colours(line)):
            ends.append(size)
    times = [when for end in ends if (when := next((at for at, come in arrivals if come >= end), None)) is not None]
    if not times or len(times) < len(ends) or times[-1] - times[0] < _SHORTEST_STEP_S * len(times):
        return False
    return max(times.count(when) for when in set(times)) <= max(3, _TOGETHER * len(times))


def _of_steps(pattern: str, output: str, which: str) -> tuple[MetricSource, str]:
    _source("--metric-steps", steps=pattern, better="higher")
    text = quantities().without_colours(output)
    lines = [text[match.start() :].partition("\n")[0] for match in re.finditer(pattern, text, re.MULTILINE)]
    unseen = cut(output)
    if not lines and not unseen:
        raise _no_match("--metric-steps", pattern)
    if len(lines) < 2 and not unseen:
        raise InputError(
            f"--metric-steps: {pattern!r} matches one line that it printed: one step's time is that of the start too",
            remedy="a line must be printed for every step, or for every so many of them",
        )
    warmup = max(1, min(_WARMUP, len(lines) // _WARMUP_SHARE))
    source = MetricSource.model_validate({"steps": pattern, "warmup": warmup})
    count = f"{len(lines)} lines {which}" if lines else f"lines {which} (its output is long: not checked)"
    shown = f"\n  | {lines[-1][:_SHOWN]}" if lines else ""
    return source, f"steps a second, of {count}; the first {warmup} do not count{shown}"


def _of_regex(pattern: str, output: str) -> tuple[MetricSource, str]:
    source = _source("--metric-regex", regex=pattern, better="higher")
    text = quantities().plain(output)
    matches = [match for match in re.finditer(pattern, text, re.MULTILINE) if match[1] is not None]
    if not matches and cut(output):
        return source, "as --metric-regex says (its output is long, and what is kept has no match); higher is better"
    if not matches:
        raise _no_match("--metric-regex", pattern)
    last = matches[-1]
    begin, end = text.rfind("\n", 0, last.start(1)) + 1, text.find("\n", last.end(1))
    line = text[begin : end if end >= 0 else None]
    try:
        field = quantities().field_at(line, last.start(1) - begin, last.end(1) - begin, literally="," in pattern)
    except ValueError as error:
        raise InputError(f"--metric-regex: {error}", remedy="put ( ) around one number") from None
    unit = field.unit if field.unit and field.unit.kind != "count" else None
    better = "lower" if (unit and unit.kind == "time") or _names_a_time(field) else "higher"
    source = _source("--metric-regex", regex=pattern, better=better, unit=unit.text if unit else "")
    shown = _shown(line, field.start, field.unit_end if unit else field.end)
    return source, f"as --metric-regex says, {field.value:g} {source.unit}".rstrip() + f"; {better} is better\n{shown}"


def _names_a_time(field: NumberField) -> bool:
    words = quantities().words(field.label)
    named = re.search(r"\b(?:time|timing|latency|duration|dt|ms|seconds)\b", words)
    return named is not None and not quantities().of_label(words)


def _no_match(option: str, pattern: str) -> InputError:
    return InputError(f"{option}: {pattern!r} matches nothing that it printed", remedy="--show-output shows it")


def _source(option: str, **source: str) -> MetricSource:
    try:
        return MetricSource.model_validate({name: value for name, value in source.items() if value})
    except ValidationError as error:
        raise InputError(f"{option}: {in_words(error.errors()[0])}") from error


def _found(output: str, wall_s: float | None) -> tuple[MetricSource, str]:
    found = candidates(output, wall_s)
    if len(found) == 1 and found[0].regex:
        one = found[0]
        source = _source("--metric-regex", regex=one.regex, unit=one.unit, better=one.better)
        note = f" ({one.note})" if one.note else ""
        return source, f"{one.label}, {_value(one)}{note}; {one.better} is better\n{_marked(one)}"
    if not found and is_of_pytest_benchmark(output):
        return WALL_TIME, _ABOUT_PYTEST_BENCHMARK
    if not found:
        return WALL_TIME, "wall time, as no number of its output looks like a speed; --metric-regex names one"
    if len(found) == 1:
        return WALL_TIME, f"wall time, as no pattern finds {found[0].label} and nothing else\n{_marked(found[0])}"
    return (
        WALL_TIME,
        f"wall time, as {len(found)} numbers look like its speed and differ. Choose one:\n{_listed(found)}",
    )


def _listed(found: Sequence[Throughput]) -> str:
    lines = []
    for one in found[:_LISTED]:
        note = f", {one.note}" if one.note else ""
        chosen = f"--metric-regex {shlex.quote(one.regex)}" if one.regex else "(no pattern finds it alone)"
        lines.append(f"  {chosen}  # {one.label}: {_value(one)}{note}")
    return "\n".join([*lines, *([f"  ({len(found) - _LISTED} more)"] if len(found) > _LISTED else [])])


def _value(one: Throughput) -> str:
    return f"{one.value:g} {one.unit}".strip()


def _marked(one: Throughput) -> str:
    return _shown(one.line, *one.span)


def _shown(line: str, start: int, end: int) -> str:
    """Return the part of a line around a number, and a line that marks it."""
    begin = max(0, start - _SHOWN)
    shown = line[begin : end + _SHOWN].replace("\t", " ")
    return f"  | {shown.rstrip()}\n  | {' ' * (start - begin)}{'^' * (end - start)}"
