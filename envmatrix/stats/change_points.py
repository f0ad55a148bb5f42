"""Change points of a series: where its level moved for good, beyond what its own values in any other order show."""

from __future__ import annotations

import math
import zlib

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
#: A segment shorter than this is a disturbance, not a new level.
MIN_SEGMENT_LENGTH = 3
#: In fewer runs no change could be told from chance.
MIN_RUNS = 10
#: How often a series in which nothing changed is marked. The test is exact, so that at 5 % every other simulation of it
#: would find more than 5 %.
FALSE_ALARM_RATE = 0.045
#: A step up is as far from chance as a step down.
_DIRECTIONS = 2
_MAX_BATCH, _SEED = 199, 20_260_105
#: So many other orders, over the error, are looked at.
_ORDERS_PER_ERROR = 20


def best_split(values: Floats, shortest: int = MIN_SEGMENT_LENGTH) -> tuple[int, float]:
    """Return where two levels fit best, and by how much they lower the sum of squares (the CUSUM statistic)."""
    count = len(values)
    if count < 2 * shortest:
        return 0, 0.0
    gains = _split_gains(values[None, :], shortest)[0]
    best = int(np.argmax(gains))
    return best + shortest, float(gains[best])


def _split_gains(rows: Floats, shortest: int) -> Floats:
    """Return, for each of (m, count) rows and each place of a split, by how much it lowers the sum of squares."""
    count = rows.shape[1]
    left_counts = np.arange(shortest, count - shortest + 1)
    sums = np.cumsum(rows - rows.mean(axis=1, keepdims=True), axis=1)[:, left_counts - 1]
    return np.asarray(sums**2 * count / (left_counts * (count - left_counts)))


def is_change(values: Floats, error: float = FALSE_ALARM_RATE, shortest: int = MIN_SEGMENT_LENGTH) -> bool:
    """Whether the best split fits better than those of nearly all other orders of the same values.

    An exact test whatever the values' distribution is, be it that of a machine with two levels, as long as runs do not
    depend on those before (Pitman 1937). A quiet series is passed over after a few orders. Other values are compared
    with other orders, whatever their own order is: some orders err more often than others, which so evens out.
    """
    gain = best_split(values, shortest)[1] * (1.0 - 1e-9)
    rng = np.random.default_rng((_SEED, zlib.crc32(np.sort(values).tobytes())))
    orders, as_extreme, max_orders = 0, 0, math.ceil(_ORDERS_PER_ERROR / error) - 1
    while orders < max_orders and 1 + as_extreme <= error * (1 + max_orders):
        batch_size = min(max_orders - orders, _MAX_BATCH, max(1, 2_000_000 // len(values)))
        shuffled = rng.permuted(np.broadcast_to(values, (batch_size, len(values))), axis=1)
        as_extreme += int((_split_gains(shuffled, shortest).max(axis=1) >= gain).sum())
        orders += batch_size
    return 1 + as_extreme <= error * (1 + max_orders)


def fewest_runs(error: float = FALSE_ALARM_RATE) -> int:
    """Return how many values it takes until a change could be told from chance: a smaller ``error`` takes more."""
    count = MIN_RUNS
    while math.comb(count, count // 2) * error < 2 * _DIRECTIONS:
        count += 1
    return count


def change_points(
    values: Floats, error: float = FALSE_ALARM_RATE, shortest: int = MIN_SEGMENT_LENGTH
) -> tuple[int, ...]:
    """Return the positions at which a new level begins, by binary segmentation (Scott & Knott 1974).

    A series in which nothing changed has one in ``error`` of cases at most. Below ``fewest_runs`` there is none.
    """
    positions: list[int] = []
    segments = [(0, len(values))] if len(values) >= fewest_runs(error) else []
    while segments:
        start, end = segments.pop()
        segment = values[start:end]
        if (
            end - start >= 2 * shortest
            and math.isfinite(float(np.ptp(segment)))
            and np.ptp(segment) > 0
            and is_change(segment, error, shortest)
        ):
            split = best_split(segment, shortest)[0]
            positions.append(start + split)
            segments += [(start, start + split), (start + split, end)]
    return tuple(sorted(positions))
