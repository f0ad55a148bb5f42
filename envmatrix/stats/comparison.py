"""Compare two environments of one run, or two runs, and say whether the new one is slower than allowed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from envmatrix.errors import ExitCode, InputError, suggestion
from envmatrix.plan import Arm
from envmatrix.stats.effects import CONFIDENCE, primary_metrics
from envmatrix.stats.metrics import Metric
from envmatrix.stats.pairing import logs_of, ratio_of
from envmatrix.stats.samples import Samples, read_samples
from envmatrix.store import Run, RunFolder

Floats = NDArray[np.float64]
Status = Literal["slower", "not slower", "cannot say"]


@dataclass(frozen=True)
class Compared:
    """``new`` over ``old`` in one metric: a ratio above 1 is faster. None where there are too few trials.

    ``status`` answers whether new is slower by more than ``allowed`` (a fraction): 'slower' when the whole
    interval says so, 'not slower' when the whole interval denies it, else 'cannot say'.
    """

    name: str
    old: str
    new: str
    metric: str
    ratio: float | None
    low: float | None
    high: float | None
    trials: tuple[int, int]
    allowed: float
    status: Status

    def line(self) -> str:
        """Return the sentence for people."""
        if self.ratio is None or self.low is None or self.high is None:
            return f"{self.name}: too few trials to compare {self.new} with {self.old}: cannot say"
        figures = f"{_figure(self.ratio)} (95 % interval {_figure(self.low)} to {_figure(self.high)})"
        slower = f"slower by more than {self.allowed:.1%}" if self.allowed else "slower"
        verdict = {
            "slower": slower,
            "not slower": f"not {slower}",
            "cannot say": f"the data cannot say whether it is {slower}",
        }[self.status]
        return f"{self.name}: {self.new} is {figures} times as fast as {self.old}: {verdict}"


@dataclass(frozen=True)
class Comparison:
    """All comparisons asked for; their intervals hold together. ``cautions`` say what makes them weaker."""

    items: tuple[Compared, ...]
    cautions: tuple[str, ...] = ()

    @property
    def exit_code(self) -> ExitCode:
        """SLOWER when any interval says so; what the data cannot say never fails a build."""
        return ExitCode.SLOWER if any(item.status == "slower" for item in self.items) else ExitCode.FINE

    def to_json(self) -> dict[str, Any]:
        """Return the document for programs."""
        items = [asdict(item) for item in self.items]
        return {"schema": 1, "exit_code": int(self.exit_code), "comparisons": items, "cautions": list(self.cautions)}

    def lines(self) -> list[str]:
        """Return the sentences for people."""
        return [*(item.line() for item in self.items), *(f"caution: {text}" for text in self.cautions)]


def _figure(value: float) -> str:
    return f"{value:.3f}" if value < 1000 else f"{value:.3g}"


def status_of(low: float | None, high: float | None, allowed: float) -> Status:
    """Judge an interval of new over old against an allowed slow-down."""
    limit = 1.0 / (1.0 + allowed)
    if high is not None and high < limit:
        return "slower"
    return "not slower" if low is not None and low >= limit else "cannot say"


def _bounds(mean: float, error: float, freedom: float, family: int) -> tuple[float, float]:
    reach = _quantile(freedom, family)
    return ratio_of(mean - reach * error), ratio_of(mean + reach * error)


def _quantile(freedom: float, family: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 1.0 - (1.0 - CONFIDENCE) / (2 * family)))


def paired_interval(old: Floats, new: Floats, least: int, family: int) -> tuple[float, float, float] | None:
    """Return ratio, low and high of new over old, paired by block; None below ``least`` pairs."""
    difference = (new - old)[np.isfinite(new - old)]
    if difference.size < max(2, least):
        return None
    error = float(difference.std(ddof=1) / math.sqrt(difference.size))
    mean = float(difference.mean())
    return ratio_of(mean), *_bounds(mean, error, difference.size - 1, family)


def unpaired_interval(old: Floats, new: Floats, least: int, family: int) -> tuple[float, float, float] | None:
    """Return ratio, low and high of new over old from different runs (Welch); None below ``least`` trials."""
    one, other = old[np.isfinite(old)], new[np.isfinite(new)]
    if min(one.size, other.size) < max(2, least):
        return None
    parts = [float(values.var(ddof=1)) / values.size for values in (one, other)]
    mean, error = float(other.mean() - one.mean()), math.sqrt(sum(parts))
    if error == 0:
        return ratio_of(mean), ratio_of(mean), ratio_of(mean)
    spread = sum(part**2 / (values.size - 1) for part, values in zip(parts, (one, other), strict=True))
    return ratio_of(mean), *_bounds(mean, error, error**4 / spread, family)


def _compared(
    name: str, names: tuple[str, str], logs: tuple[Floats, Floats], metric: Metric,
    found: tuple[float, float, float] | None, allowed: float,
) -> Compared:  # fmt: skip
    ratio, low, high = found or (None, None, None)
    trials = (int(np.isfinite(logs[0]).sum()), int(np.isfinite(logs[1]).sum()))
    return Compared(name, *names, metric.name, ratio, low, high, trials, allowed, status_of(low, high, allowed))


def _logs(samples: Samples, arm: str, metric: Metric) -> Floats:
    return np.asarray(metric.sign * logs_of(samples.of(arm, metric.name)))


def _of_environment(run: Run, name: str) -> dict[tuple[str, str], Arm]:
    found = {(arm.workload, arm.engine): arm for arm in run.plan.arms if arm.environment == name}
    if not found:
        known = {arm.environment for arm in run.plan.arms}
        raise InputError(f"run {run.name} has no environment {name!r}", remedy=suggestion(name, known))
    return found


def compare_environments(run: Run, samples: Samples, old: str, new: str, allowed: float = 0.0) -> Comparison:
    """Compare two environments of one run, paired by block, for every workload and engine they share.

    ``allowed`` is the slow-down that is accepted (0.03: 3 %). Raises InputError for an unknown environment.
    """
    ones, others = _of_environment(run, old), _of_environment(run, new)
    shared = [key for key in ones if key in others]
    metrics = primary_metrics(run.plan, samples, run.workloads)
    items = []
    for workload, engine in shared:
        metric = metrics[workload]
        pair = (ones[workload, engine], others[workload, engine])
        logs = (_logs(samples, pair[0].name, metric), _logs(samples, pair[1].name, metric))
        found = paired_interval(*logs, run.plan.min_blocks, len(shared))
        items.append(_compared(f"{workload}@{engine}", (old, new), logs, metric, found, allowed))
    return Comparison(tuple(items))


def differences(old: Run, new: Run, samples: tuple[Samples, Samples]) -> tuple[str, ...]:
    """Return what makes two runs not comparable: another machine, benchmark or workload."""
    found = [
        f"{key} of the hosts differ: {old.host.get(key)} and {new.host.get(key)}"
        for key in ("name", "cpu_model", "cpus", "memory_bytes")
        if _differ(old.host, new.host, key)
    ]
    if old.bench_digest != new.bench_digest:
        found.append("the benchmark itself differs")
    works = [{d for fact in one.facts.values() for d in fact.work} for one in samples]
    if works[0] and works[1] and works[0].isdisjoint(works[1]):
        found.append("the workloads differ")
    data = [{d for fact in one.facts.values() for d in fact.data} for one in samples]
    if data[0] and data[1] and data[0].isdisjoint(data[1]):
        found.append("the data sets differ")
    return tuple(found)


def _differ(one: Mapping[str, Any], other: Mapping[str, Any], key: str) -> bool:
    values = [list(v) if isinstance(v, (list, tuple)) else v for v in (one.get(key), other.get(key))]
    return values[0] != values[1]


def compare_runs(
    old: RunFolder,
    new: RunFolder,
    *,
    environments: Sequence[str] = (),
    allowed: float = 0.0,
    anyway: bool = False,
) -> Comparison:
    """Compare the arms that two runs share (or only those of ``environments``), run against run.

    The runs were made at different times, so nothing pairs their trials: drift of the machine between them
    is inside the intervals only as far as it shows within the runs, which a caution says. Raises InputError
    when the runs are not comparable, unless ``anyway``: then the reasons are cautions.
    """
    runs = (old.load(), new.load())
    samples = (read_samples(old, runs[0].plan), read_samples(new, runs[1].plan))
    reasons = differences(*runs, samples)
    if reasons and not anyway:
        raise InputError(
            f"runs {runs[0].name} and {runs[1].name} are not comparable: {'; '.join(reasons)}",
            remedy="make both on one machine with one version of the benchmark, or ask to compare them anyway",
        )
    for name in environments:
        for run in runs:
            _of_environment(run, name)
    names = [arm for arm in runs[0].plan.arms if arm.name in samples[1].arms and not arm.is_control]
    names = [arm for arm in names if not environments or arm.environment in environments]
    if not names:
        raise InputError("the runs share no environment of one workload and engine", remedy="compare other runs")
    metrics = primary_metrics(runs[0].plan, samples[0], runs[0].workloads)
    least = max(run.plan.min_blocks for run in runs)
    items = []
    for arm in names:
        metric = metrics[arm.workload]
        logs = (_logs(samples[0], arm.name, metric), _logs(samples[1], arm.name, metric))
        found = unpaired_interval(*logs, least, len(names))
        items.append(_compared(arm.name, (runs[0].name, runs[1].name), logs, metric, found, allowed))
    apart = "the runs were made at different times: what the machine did between them is not cancelled"
    return Comparison(tuple(items), (apart, *reasons))
