"""Steady state of a process: whether its steps reach one, and from which step on (Barrett et al., OOPSLA 2017).

Log step times are cut into levels by exact least-squares segmentation (Jackson et al. 2005). Two things differ from
Barrett et al., whose iterations are longer and nearly independent. Neighbouring steps are alike, as disturbances last
longer than one step, so a further level must pay for the long-run variance. Levels within ``TOLERANCE`` count as one,
as machines drift by that much.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from envmatrix.stats.array_types import Floats

Kind = Literal["flat", "warm-up", "slow-down", "not steady"]
KINDS: tuple[Kind, ...] = ("flat", "warm-up", "slow-down", "not steady")
#: Levels whose step times differ by less than this fraction count as one.
TOLERANCE = 0.06
#: Smallest share of the time for the last level: a shift right before the end does not predict what follows.
MIN_LAST_SHARE = 1 / 3
MIN_STEPS = 30
#: Most points into which steps are grouped.
_POINTS = 600
#: A further level must reduce the sum of squares by this many long-run variances, times log(number of points).
_PENALTY = 3.0
_SHORTEST = 3
#: Approximate number of batches of neighbouring points for the long-run variance.
_BATCHES = 24
#: Points this many robust standard deviations from their neighbours (in a window) are moved to that distance.
_OUTLIER, _WINDOW = 3.0, 25
#: Factor from the median absolute deviation to the standard deviation of a normal distribution.
_MAD = 1.4826


@dataclass(frozen=True)
class Steadiness:
    """The course of a process's steps. Values are None if unknown, or if the process was ``not steady``.

    ``steps`` and ``seconds`` are counted from the first step to the steady state; ``step_s`` is the mean step time in
    it.
    """

    kind: Kind
    steps: int | None = None
    seconds: float | None = None
    step_s: float | None = None


def classify(steps_s: Sequence[float]) -> Steadiness | None:
    """Classify the times of all steps of a process, from its first one on; return None if there are too few."""
    times = np.asarray(steps_s, dtype=np.float64)
    if times.size < MIN_STEPS or not (times > 0).all():
        return None
    size = -(-times.size // _POINTS)
    starts = np.arange(0, times.size - size + 1, size)
    logs = np.log(np.add.reduceat(times[: starts.size * size], starts) / size)
    begin, kind = _last_level(logs)
    first_step = begin * size
    if kind == "not steady":
        return Steadiness(kind)
    return Steadiness(kind, first_step, float(times[:first_step].sum()), float(times[first_step:].mean()))


def _last_level(logs: Floats) -> tuple[int, Kind]:
    """Return the point at which the last level begins, and the kind of course before it."""
    calm = _without_outliers(logs)
    edges = [0, *level_changes(calm), calm.size]
    means = [float(calm[start:end].mean()) for start, end in itertools.pairwise(edges)]
    level = means[-1]
    last = next(
        index for index in range(len(means)) if all(abs(mean - level) <= _LOG_TOLERANCE for mean in means[index:])
    )
    begin = max(edges[last], _count_leading_outliers(logs, calm, edges[1], means[0]))
    lasted = float(np.exp(logs[begin:]).sum() / np.exp(logs).sum())
    if lasted < MIN_LAST_SHARE:
        return begin, "not steady"
    if not begin:
        return 0, "flat"
    return begin, "slow-down" if any(mean < level - _LOG_TOLERANCE for mean in means[:last]) else "warm-up"


_LOG_TOLERANCE = math.log1p(TOLERANCE)


def _without_outliers(logs: Floats) -> Floats:
    """Return the points with outliers moved towards their neighbours, as a short pause is not a level."""
    width = min(_WINDOW, logs.size)
    windows = np.lib.stride_tricks.sliding_window_view(logs, width)
    window_index = np.clip(np.arange(logs.size) - width // 2, 0, logs.size - width)
    medians = np.median(windows, axis=1)[window_index]
    spread = _MAD * float(np.median(np.abs(logs - medians)))
    return np.asarray(np.clip(logs, medians - _OUTLIER * spread, medians + _OUTLIER * spread))


def _count_leading_outliers(logs: Floats, calm: Floats, end: int, level: float) -> int:
    """Return how many points at the very beginning are outliers above the first level, such as a slow first step."""
    spread = _MAD * float(np.median(np.abs(calm[:end] - level)))
    high = logs[:end] > level + max(_OUTLIER * spread, 2 * _LOG_TOLERANCE)
    return int(np.argmin(high)) if not high.all() else end


def level_changes(points: Floats) -> tuple[int, ...]:
    """Return the points at which a new level begins: least squares with a penalty for each further level."""
    count = points.size
    price = _PENALTY * _long_run_variance(points) * math.log(count)
    sums = np.concatenate(([0.0], np.cumsum(points - points.mean())))
    cost = np.full(count + 1, np.inf)
    cost[0] = -price
    before = np.zeros(count + 1, dtype=np.int64)
    for end in range(_SHORTEST, count + 1):
        starts = np.arange(0, end - _SHORTEST + 1)
        # The points' own squares are the same for every segmentation.
        total_cost = cost[starts] + price - (sums[end] - sums[starts]) ** 2 / (end - starts)
        before[end] = int(np.argmin(total_cost))
        cost[end] = total_cost[before[end]]
    changes, end = [], count
    while (end := int(before[end])) > 0:
        changes.append(end)
    return tuple(reversed(changes))


def _long_run_variance(points: Floats) -> float:
    """Return the long-run variance, from the median difference of neighbouring batches, which few levels affect."""
    size = max(1, points.size // _BATCHES)
    batches = points[: points.size // size * size].reshape(-1, size).mean(axis=1)
    batch_differences = np.abs(np.diff(batches))
    return max(float(size * (_MAD * np.median(batch_differences)) ** 2 / 2), 1e-12)
