"""Change points of a series: permanent shifts of its level, found by a permutation test."""

from __future__ import annotations

import math
import zlib

import numpy as np

from envmatrix.stats.array_types import Floats

#: A shorter segment counts as a disturbance, not as a new level.
MIN_SEGMENT_LENGTH = 3
#: With fewer runs, no change could be significant.
MIN_RUNS = 10
#: How often a series without a change is marked. The test is exact: at 5 %, half of all simulations would find more
#: than 5 %.
FALSE_ALARM_RATE = 0.045
#: Steps up and steps down are equally unlikely by chance.
_DIRECTIONS = 2
_MAX_BATCH, _SEED = 199, 20_260_105
#: The number of permutations is this number divided by the error.
_ORDERS_PER_ERROR = 20


def best_split(values: Floats) -> tuple[int, float]:
    """Return the best place to split a series into two levels, and the reduction of the sum of squares (CUSUM)."""
    count = len(values)
    if count < 2 * MIN_SEGMENT_LENGTH:
        return 0, 0.0
    gains = _split_gains(values[None, :])[0]
    best = int(np.argmax(gains))
    return best + MIN_SEGMENT_LENGTH, float(gains[best])


def _split_gains(rows: Floats) -> Floats:
    """Return the reduction of the sum of squares for each of (m, count) rows and each place of a split."""
    count = rows.shape[1]
    left_counts = np.arange(MIN_SEGMENT_LENGTH, count - MIN_SEGMENT_LENGTH + 1)
    sums = np.cumsum(rows - rows.mean(axis=1, keepdims=True), axis=1)[:, left_counts - 1]
    return np.asarray(sums**2 * count / (left_counts * (count - left_counts)))


def _is_change(values: Floats, error: float) -> bool:
    """Return whether the best split is better than that of nearly all permutations of the same values.

    The test is exact for any distribution, including two levels, if runs are independent (Pitman 1937). It ends early
    for a series without a clear change. The seed depends on the values but not on their order: some random permutations
    err more than others, and this averages out.
    """
    gain = best_split(values)[1] * (1.0 - 1e-9)
    rng = np.random.default_rng((_SEED, zlib.crc32(np.sort(values).tobytes())))
    orders, as_extreme, max_orders = 0, 0, math.ceil(_ORDERS_PER_ERROR / error) - 1
    while orders < max_orders and 1 + as_extreme <= error * (1 + max_orders):
        batch_size = min(max_orders - orders, _MAX_BATCH, max(1, 2_000_000 // len(values)))
        shuffled = rng.permuted(np.broadcast_to(values, (batch_size, len(values))), axis=1)
        as_extreme += int((_split_gains(shuffled).max(axis=1) >= gain).sum())
        orders += batch_size
    return 1 + as_extreme <= error * (1 + max_orders)


def fewest_runs(error: float = FALSE_ALARM_RATE) -> int:
    """Return the fewest values with which a change can be significant; a smaller ``error`` needs more."""
    count = MIN_RUNS
    while math.comb(count, count // 2) * error < 2 * _DIRECTIONS:
        count += 1
    return count


def change_points(values: Floats, error: float = FALSE_ALARM_RATE) -> tuple[int, ...]:
    """Return the positions at which a new level begins, by binary segmentation (Scott & Knott 1974).

    A series without a change has one with probability ``error`` at most. Below ``fewest_runs`` values there is none.
    """
    positions: list[int] = []
    segments = [(0, len(values))] if len(values) >= fewest_runs(error) else []
    while segments:
        start, end = segments.pop()
        segment = values[start:end]
        is_long = end - start >= 2 * MIN_SEGMENT_LENGTH
        if is_long and 0 < np.ptp(segment) < math.inf and _is_change(segment, error):
            split = best_split(segment)[0]
            positions.append(start + split)
            segments += [(start, start + split), (start + split, end)]
    return tuple(sorted(positions))
