"""Whether the steps of one process came to a steady state, and from which one on (Barrett et al., OOPSLA 2017).

The log step times are cut into levels by the exact least-squares segmentation (Jackson et al. 2005). Two things differ
from Barrett et al., whose iterations are longer and nearly independent. Neighbouring steps are alike, as a machine's
disturbances last longer than one: a further level must pay for the long-run variance, not for that of single steps.
And levels within ``TOLERANCE`` of each other are one: a machine drifts by that much without any program's doing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Kind = Literal["flat", "warm-up", "slow-down", "not steady"]
KINDS: tuple[Kind, ...] = ("flat", "warm-up", "slow-down", "not steady")
#: Levels whose step times differ by less than this fraction are one.
TOLERANCE = 0.06
#: The last level must have lasted this share of the time, as a shift right before the end says nothing of what follows.
MIN_LAST_SHARE = 1 / 3
#: Below this many steps nothing is said.
MIN_STEPS = 30
#: Steps are taken together into at most so many points.
_POINTS = 600
#: A further level must lower the sum of squares by so many long-run variances, times the log of the number of points.
_PENALTY = 3.0
_SHORTEST = 3
#: The long-run variance is seen in the means of about so many batches of neighbouring points.
_BATCHES = 24
#: Points further than this many robust standard deviations from the points around them are moved there.
_OUTLIER, _WINDOW = 3.0, 25
#: From the median absolute deviation to the standard deviation of a normal distribution.
_MAD = 1.4826


@dataclass(frozen=True)
class Steadiness:
    """How the steps of a process went. What is not known is None, as all is where the process was ``not steady``.

    ``steps`` and ``seconds`` are those before the steady state, counted from the first step on; ``step_s`` is the mean
    time of a step in it.
    """

    kind: Kind
    steps: int | None = None
    seconds: float | None = None
    step_s: float | None = None


def classify(steps_s: Sequence[float]) -> Steadiness | None:
    """Say how the times of all steps of a process went, from its first one on; None where there are too few."""
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
    """Return the point at which the last level begins, and what came before it."""
    calm = _without_outliers(logs)
    edges = [0, *level_changes(calm), calm.size]
    means = [float(calm[start:end].mean()) for start, end in itertools.pairwise(edges)]
    level = means[-1]
    last = next(
        index for index in range(len(means)) if all(abs(mean - level) <= _LOG_TOLERANCE for mean in means[index:])
    )
    begin = max(edges[last], _lead_in(logs, calm, edges[1], means[0]))
    lasted = float(np.exp(logs[begin:]).sum() / np.exp(logs).sum())
    if lasted < MIN_LAST_SHARE:
        return begin, "not steady"
    if not begin:
        return 0, "flat"
    return begin, "slow-down" if any(mean < level - _LOG_TOLERANCE for mean in means[:last]) else "warm-up"


_LOG_TOLERANCE = math.log1p(TOLERANCE)


def _without_outliers(logs: Floats) -> Floats:
    """Return the points with those far from the points around them moved nearer: a pause is no level."""
    width = min(_WINDOW, logs.size)
    windows = np.lib.stride_tricks.sliding_window_view(logs, width)
    window_index = np.clip(np.arange(logs.size) - width // 2, 0, logs.size - width)
    medians = np.median(windows, axis=1)[window_index]
    spread = _MAD * float(np.median(np.abs(logs - medians)))
    return np.asarray(np.clip(logs, medians - _OUTLIER * spread, medians + _OUTLIER * spread))


def _lead_in(logs: Floats, calm: Floats, end: int, level: float) -> int:
    """Return how many points at the very beginning are above their level as no other is: a first step's own work."""
    spread = _MAD * float(np.median(np.abs(calm[:end] - level)))
    high = logs[:end] > level + max(_OUTLIER * spread, 2 * _LOG_TOLERANCE)
    return int(np.argmin(high)) if not high.all() else end


def level_changes(points: Floats) -> tuple[int, ...]:
    """Return the points at which a new level begins: the least squares, with a price on each further level."""
    count = points.size
    price = _PENALTY * _long_run_variance(points) * math.log(count)
    sums = np.concatenate(([0.0], np.cumsum(points - points.mean())))
    cost = np.full(count + 1, np.inf)
    cost[0] = -price
    before = np.zeros(count + 1, dtype=np.int64)
    for end in range(_SHORTEST, count + 1):
        starts = np.arange(0, end - _SHORTEST + 1)
        # The squares of the points themselves are the same however they are cut.
        total_cost = cost[starts] + price - (sums[end] - sums[starts]) ** 2 / (end - starts)
        before[end] = int(np.argmin(total_cost))
        cost[end] = total_cost[before[end]]
    changes, end = [], count
    while (end := int(before[end])) > 0:
        changes.append(end)
    return tuple(reversed(changes))


def _long_run_variance(points: Floats) -> float:
    """Return the variance of a mean times its points, from how neighbouring batches differ: few levels change that."""
    size = max(1, points.size // _BATCHES)
    batches = points[: points.size // size * size].reshape(-1, size).mean(axis=1)
    batch_differences = np.abs(np.diff(batches))
    return max(float(size * (_MAD * np.median(batch_differences)) ** 2 / 2), 1e-12)
