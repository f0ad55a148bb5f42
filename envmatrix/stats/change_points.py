"""Change points of a series: where its level moved for good, beyond what its own values in any other order show."""

from __future__ import annotations

import math
import zlib

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
#: A segment shorter than this is a disturbance, not a new level.
SHORTEST = 3
#: In fewer runs no change could be told from chance.
FEWEST = 10
#: How often a series in which nothing changed is marked. The test is exact, so that at 5 % every other simulation of it
#: would find more than 5 %.
ERROR = 0.045
#: A step up is as far from chance as a step down.
_MIRRORED = 2
_MOST_AT_ONCE, _SEED = 199, 20_260_105
#: So many other orders, over the error, are looked at.
_ORDERS = 20


def best_split(values: Floats, shortest: int = SHORTEST) -> tuple[int, float]:
    """Return where two levels fit best, and by how much they lower the sum of squares (the CUSUM statistic)."""
    count = len(values)
    if count < 2 * shortest:
        return 0, 0.0
    gains = _gains(values[None, :], shortest)[0]
    at = int(np.argmax(gains))
    return at + shortest, float(gains[at])


def _gains(rows: Floats, shortest: int) -> Floats:
    """Return, for each of (m, count) rows and each place of a split, by how much it lowers the sum of squares."""
    count = rows.shape[1]
    left = np.arange(shortest, count - shortest + 1)
    sums = np.cumsum(rows - rows.mean(axis=1, keepdims=True), axis=1)[:, left - 1]
    return np.asarray(sums**2 * count / (left * (count - left)))


def is_change(values: Floats, error: float = ERROR, shortest: int = SHORTEST) -> bool:
    """Whether the best split fits better than those of nearly all other orders of the same values.

    An exact test whatever the values' distribution is, be it that of a machine with two levels, as long as runs do not
    depend on those before (Pitman 1937). A quiet series is passed over after a few orders. Other values are compared
    with other orders, whatever their own order is: some orders err more often than others, which so evens out.
    """
    gain = best_split(values, shortest)[1] * (1.0 - 1e-9)
    chance = np.random.default_rng((_SEED, zlib.crc32(np.sort(values).tobytes())))
    orders, reached, most = 0, 0, math.ceil(_ORDERS / error) - 1
    while orders < most and 1 + reached <= error * (1 + most):
        more = min(most - orders, _MOST_AT_ONCE, max(1, 2_000_000 // len(values)))
        shuffled = chance.permuted(np.broadcast_to(values, (more, len(values))), axis=1)
        reached += int((_gains(shuffled, shortest).max(axis=1) >= gain).sum())
        orders += more
    return 1 + reached <= error * (1 + most)


def fewest_runs(error: float = ERROR) -> int:
    """Return how many values it takes until a change could be told from chance: a smaller ``error`` takes more."""
    count = FEWEST
    while math.comb(count, count // 2) * error < 2 * _MIRRORED:
        count += 1
    return count


def change_points(values: Floats, error: float = ERROR, shortest: int = SHORTEST) -> tuple[int, ...]:
    """Return the positions at which a new level begins, by binary segmentation (Scott & Knott 1974).

    A series in which nothing changed has one in ``error`` of cases at most. Below ``fewest_runs`` there is none.
    """
    found: list[int] = []
    waiting = [(0, len(values))] if len(values) >= fewest_runs(error) else []
    while waiting:
        start, end = waiting.pop()
        part = values[start:end]
        if (
            end - start >= 2 * shortest
            and math.isfinite(float(np.ptp(part)))
            and np.ptp(part) > 0
            and is_change(part, error, shortest)
        ):
            at = best_split(part, shortest)[0]
            found.append(start + at)
            waiting += [(start, start + at), (start + at, end)]
    return tuple(sorted(found))
