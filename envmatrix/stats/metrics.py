"""Metrics of a trial, one row each; a new metric is one new row here."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

#: From this value on, digits are not written out.
_LONG = 1e12


#: Digits of axis labels, whose ticks are round numbers: three digits would print 1.025 s as 1.02 s.
TICK_DIGITS = 6


class NumberFormatter(Protocol):
    """A function that formats a number for people, with a default or a given number of ``digits``."""

    def __call__(self, value: float, *, digits: int = ...) -> str:
        """Return the formatted number."""


def show_rate(value: float, *, digits: int = 4) -> str:
    """Format a rate such as 5431.2 samples/s."""
    fractions = abs(value) < (10.0**digits if digits >= TICK_DIGITS else 1000.0)
    return f"{value:,.{digits}g}" if fractions or abs(value) >= _LONG else f"{value:,.0f}"


def show_seconds(value: float, *, digits: int = 3) -> str:
    """Format a duration in seconds."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(value) >= scale:
            return f"{value / scale:.{digits}g} {unit}" if not 1000 <= value < _LONG else f"{value:,.0f} s"
    return f"{value:.{digits}g} s"


def show_bytes(value: float, *, digits: int = 4) -> str:
    """Format a size in bytes."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if abs(value) >= 1024**power:
            return f"{value / 1024**power:.{digits}g} {unit}"
    return f"{value:.0f} B"


def show_count(value: float, *, digits: int = 0) -> str:
    """Format a number of events."""
    if digits and abs(value) < 10.0**digits:
        return f"{value:,.{digits}g}"
    return f"{value:,.0f}" if abs(value) < _LONG else f"{value:.4g}"


def format_number(value: float, *, digits: int = 6) -> str:
    """Format a number with a user-defined unit."""
    return f"{value:,.{digits}g}"


#: Label of a number that a program reports without a name.
_UNNAMED = "reported value"
_TIME_UNITS = frozenset({"s", "ms", "us", "ns", "min", "h"})
_RATE_PATTERN = re.compile(
    r"/\s*(s|sec|second|ms|min|minute|h|hour)\b|\bper[ _]s|\b(fps|qps|rps|tps|hz|[kmgt]?flops)\b", re.IGNORECASE
)
#: Words in the name of a speed that has no unit.
_SPEED_PATTERN = re.compile(
    r"^rate$|throughput|speed|latency|elapsed|duration|runtime|(?<![a-z])(time|took|seconds|ops)(?![a-z])"
    r"|(?<![a-z])per[ _]?s(ec(ond)?s?)?(?![a-z])",
    re.IGNORECASE,
)
#: Replacements of speed words for a metric that is not a speed.
_NON_SPEED_WORDS = {"fast": "good", "faster": "better", "slower": "worse"}


@dataclass(frozen=True)
class Metric:
    """A metric of a trial: its name in the record, the better direction, and its format."""

    name: str
    label: str
    unit: str
    better: Literal["higher", "lower"]
    show: NumberFormatter

    @property
    def sign(self) -> float:
        """+1 if higher is better, otherwise -1; log ratios times this are positive if better."""
        return 1.0 if self.better == "higher" else -1.0

    @property
    def unit_beside(self) -> str:
        """The unit to write beside the number: none for times and sizes, whose text includes it ("1.6 ms")."""
        return "" if self.unit in ("s", "B") else self.unit

    @property
    def is_rate(self) -> bool:
        """Return whether the unit is an amount per time."""
        return bool(_RATE_PATTERN.search(self.unit))

    @property
    def is_speed(self) -> bool:
        """Return whether better means faster: a time or a rate, by its unit, or by its name if it has no unit.

        A number without unit and name is assumed to be a speed.
        """
        if self.unit:
            return self.unit in _TIME_UNITS or self.is_rate
        return self.label == _UNNAMED or any(words.search(self.label) for words in (_RATE_PATTERN, _SPEED_PATTERN))

    def said(self, word: str) -> str:
        """Return 'fast', 'faster' or 'slower', or the equivalent for a metric that is not a speed ('good')."""
        return word if self.is_speed else _NON_SPEED_WORDS.get(word, word)

    def as_fast_as(self, other: object) -> str:
        """Return 'as fast as baseline', or 'as good as baseline in accuracy'."""
        return f"as {self.said('fast')} as {other}{'' if self.is_speed else f' in {self.label}'}"


METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("samples_per_s", "throughput", "samples/s", "higher", show_rate),
        Metric("value", _UNNAMED, "", "higher", format_number),
        Metric("training_s", "training time", "s", "lower", show_seconds),
        Metric("step_median_s", "median step", "s", "lower", show_seconds),
        Metric("startup_s", "start-up", "s", "lower", show_seconds),
        Metric("trial_s", "whole trial", "s", "lower", show_seconds),
        Metric("import_s", "import of torch", "s", "lower", show_seconds),
        Metric("warmup_s", "warm-up", "s", "lower", show_seconds),
        Metric("epoch_s", "epoch", "s", "lower", show_seconds),
        Metric("data_wait_s", "waiting for data", "s", "lower", show_seconds),
        Metric("compile_s", "compiling", "s", "lower", show_seconds),
        Metric("preparation_s", "preparing the model", "s", "lower", show_seconds),
        Metric("latency_p50_s", "latency, median", "s", "lower", show_seconds),
        Metric("latency_p99_s", "latency, 99th percentile", "s", "lower", show_seconds),
        Metric("model_bytes", "size of the model", "B", "lower", show_bytes),
        Metric("user_s", "CPU time, user", "s", "lower", show_seconds),
        Metric("system_s", "CPU time, system", "s", "lower", show_seconds),
        Metric("run_delay_s", "ready, but without a CPU", "s", "lower", show_seconds),
        Metric("energy_j", "energy", "J", "lower", format_number),
        Metric("gpu_energy_j", "energy of GPUs", "J", "lower", format_number),
        Metric("peak_rss_bytes", "peak memory", "B", "lower", show_bytes),
        Metric("peak_gpu_bytes", "peak GPU memory", "B", "lower", show_bytes),
        Metric("minor_faults", "minor page faults", "", "lower", show_count),
        Metric("major_faults", "major page faults", "", "lower", show_count),
        Metric("voluntary_switches", "voluntary context switches", "", "lower", show_count),
        Metric("involuntary_switches", "involuntary context switches", "", "lower", show_count),
    )
}
THROUGHPUT = METRICS["samples_per_s"]
VALUE = METRICS["value"]
MEMORY = METRICS["peak_rss_bytes"]


#: Prefixes of columns with numbers from a user's program.
OWN_COLUMN_PREFIXES = ("own.", "check.")


def own_column(name: str) -> str:
    """Return the column name of a further metric of a user's program."""
    return f"own.{name}"


def check_column(name: str) -> str:
    """Return the column name of a check of a user's program."""
    return f"check.{name}"


def finite_or_nan(value: object) -> float:
    """Return a finite float, or NaN for any other value of a record."""
    if type(value) is float:  # nearly all of them
        return value if math.isfinite(value) else math.nan
    if value is None or isinstance(value, bool) or not isinstance(value, (int, float)):
        return math.nan
    try:
        result = float(value)
    except OverflowError:
        return math.nan
    return result if math.isfinite(result) else math.nan
