"""What is measured of a program on the command line: what was asked for, else what its output shows."""

from __future__ import annotations

import re

from pydantic import ValidationError

from envmatrix.errors import InputError
from envmatrix.matrix.reported import WALL_TIME, MetricSource
from envmatrix.matrix.throughput import candidates, counts_steps, is_of_pytest_benchmark
from envmatrix.validation import in_words

#: Of the steps of a program, one in so many is warm-up, and no more than so many are.
_WARMUP_SHARE, _WARMUP = 5, 10
_ABOUT_PYTEST_BENCHMARK = (
    "wall time, which says little of pytest-benchmark: it repeats until a time is spent; better is "
    "--metric-json speed.json:benchmarks.0.stats.ops -- pytest --benchmark-json=speed.json ..."
)


def metric_of(regex: str, steps: str, output: str) -> tuple[MetricSource, str]:
    """Return what is measured of a program that printed ``output``, and how it was chosen.

    ``regex`` and ``steps`` are patterns that were asked for, or ''. Raises InputError for one that is of no use.
    """
    if steps:
        return _of_steps(steps, output)
    if regex:
        return _source("--metric-regex", output, regex=regex), "as --metric-regex says, higher is better"
    source, why = _found(output)
    seen = counts_steps(output)
    hint = f"; with --metric-steps '{seen}' its steps are timed, in turns: fewer runs decide" if seen else ""
    return source, f"{why}{hint}"


def _of_steps(pattern: str, output: str) -> tuple[MetricSource, str]:
    _source("--metric-steps", output, steps=pattern)
    count = sum(1 for _ in re.finditer(pattern, output, re.MULTILINE))
    if count < 2:
        raise InputError(
            f"--metric-steps: {pattern!r} matches one line that it printed: one step's time is that of the start too",
            remedy="a line must be printed for every step, or for every so many of them",
        )
    warmup = max(1, min(_WARMUP, count // _WARMUP_SHARE))
    source = MetricSource.model_validate({"steps": pattern, "warmup": warmup})
    return source, f"steps a second, of {count} lines that --metric-steps matches; the first {warmup} do not count"


def _source(option: str, output: str, **pattern: str) -> MetricSource:
    try:
        source = MetricSource.model_validate({**pattern, "better": "higher"})
    except ValidationError as error:
        raise InputError(f"{option}: {in_words(error.errors()[0])}") from error
    (written,) = pattern.values()
    if not re.search(written, output, re.MULTILINE):
        raise InputError(f"{option}: {written!r} matches nothing that it printed", remedy="--show-output shows it")
    return source


def _found(output: str) -> tuple[MetricSource, str]:
    found = candidates(output)
    if len(found) == 1:
        source = MetricSource.model_validate({"regex": found[0].regex, "unit": found[0].unit, "better": "higher"})
        return source, f"{found[0].label}, the one number of its output like a throughput ({found[0].value:g})"
    if not found and is_of_pytest_benchmark(output):
        return WALL_TIME, _ABOUT_PYTEST_BENCHMARK
    if not found:
        return WALL_TIME, "wall time, as no number of its output looks like a throughput"
    labels = ", ".join(one.label for one in found[:4])
    why = f"wall time, as {len(found)} numbers look like a throughput ({labels}); --metric-regex chooses one"
    return WALL_TIME, why
