"""Change points of a series: where its level moved for good, beyond its own noise."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
#: A segment shorter than this is a disturbance, not a new level.
SHORTEST = 3
#: Times log(n): above the usual 2 of BIC, so that a history of several hundred quiet runs stays unmarked.
PENALTY = 4.0


def noise_of(values: Floats) -> float:
    """Return the standard deviation around a level that may move: from differences of neighbours, robustly."""
    if len(values) < 2:
        return 0.0
    steps = np.abs(np.diff(values))
    typical = float(np.median(steps)) / 0.6745 / math.sqrt(2)
    return typical or float(steps.mean()) / math.sqrt(2)


def best_split(values: Floats, shortest: int = SHORTEST) -> tuple[int, float]:
    """Return where two levels fit best, and by how much they lower the sum of squares (the CUSUM statistic)."""
    count = len(values)
    if count < 2 * shortest:
        return 0, 0.0
    left = np.arange(shortest, count - shortest + 1)
    sums = np.cumsum(values - values.mean())[left - 1]
    gains = sums**2 * count / (left * (count - left))
    at = int(np.argmax(gains))
    return int(left[at]), float(gains[at])


def change_points(values: Floats, penalty: float = PENALTY, shortest: int = SHORTEST) -> tuple[int, ...]:
    """Return the positions at which a new level begins, by binary segmentation (Scott & Knott 1974).

    A split must lower the sum of squares, in units of the noise's variance, by ``penalty`` log n.
    ``values`` are in log units and finite. Near linear in time: a quiet series is passed over once.
    """
    noise = noise_of(values)
    if noise == 0.0:
        return ()
    price = penalty * math.log(len(values)) * noise**2
    found: list[int] = []
    waiting = [(0, len(values))]
    while waiting:
        start, end = waiting.pop()
        at, gain = best_split(values[start:end], shortest)
        if gain > price:
            found.append(start + at)
            waiting += [(start, start + at), (start + at, end)]
    return tuple(sorted(found))
