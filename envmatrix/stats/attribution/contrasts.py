"""Contrasts of cells within blocks: one number per block, separate variances, simultaneous intervals.

Variances are not pooled: a noisy environment widens only the contrasts that contain it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from envmatrix.stats.array_types import Floats
from envmatrix.stats.effects import LEVEL, rescale_p_value
from envmatrix.stats.inference.maxt import MIN_DRAWS_BEYOND, student_p, student_quantile
from envmatrix.stats.inference.standard_errors import standard_errors_of_row_sums
from envmatrix.stats.pairing import Views, ratio_from_log, summarise_pairs

_DRAWS = 20_000
_SEED = 20_260_103
#: With more contrasts, Bonferroni is used: drawing them would take seconds.
MOST_DRAWN = 300
_MOST_BLOCKS_DRAWN = 60


@dataclass(frozen=True)
class Estimate:
    """A ratio (above 1: faster) with its interval and adjusted p; they are None if too few blocks were complete."""

    ratio: float
    low: float | None = None
    high: float | None = None
    p: float | None = None


@dataclass(frozen=True)
class ContrastFamily:
    """Contrasts judged together at ``level``. ``loads``: each as a sum of independent noises; empty: Bonferroni."""

    members: int
    loads: tuple[tuple[float, ...], ...] = ()
    level: float = LEVEL

    def critical(self, blocks: int) -> float:
        """Return the half-width, in standard errors, of simultaneous intervals at ``level``."""
        rank = int((1.0 - self.level) * (_DRAWS + 1)) - 1
        bound = student_quantile(blocks, 1.0 - (1.0 - self.level) / (2 * self.members))
        if not self._is_drawn(blocks) or rank < MIN_DRAWS_BEYOND:
            return bound
        return min(bound, float(_null_maxima(self.loads, blocks)[rank]))

    def p(self, t: float, blocks: int) -> float:
        """Return the adjusted p; it is below 5 % exactly if the interval excludes 1."""
        p = student_p(t, blocks) * self.members
        if self._is_drawn(blocks):
            beyond = int(np.searchsorted(-_null_maxima(self.loads, blocks), -abs(t), side="right"))
            p = min((1 + beyond) / (_DRAWS + 1), p)
        return rescale_p_value(p, self.level)

    def _is_drawn(self, blocks: int) -> bool:
        return len(self.loads) > 1 and blocks <= _MOST_BLOCKS_DRAWN


def contrast_family(weights: Floats, copies: int, members: int | None = None, level: float = LEVEL) -> ContrastFamily:
    """Return the family of ``weights`` (contrasts, cells), for gains over ``copies`` of the first cell.

    Only for the correlation of contrasts, all cells are assumed to be equally noisy, as in ``maxt``.
    """
    members = len(weights) if members is None else members
    if len(weights) < members or members > MOST_DRAWN:
        return ContrastFamily(members, level=level)
    others = weights[:, 1:]
    shared = others.sum(axis=1) / np.sqrt(copies)
    covariance = others @ others.T + np.outer(shared, shared)
    values, vectors = np.linalg.eigh(covariance)
    is_positive = values > 1e-9 * values.max(initial=1e-300)
    loads = vectors[:, is_positive] * np.sqrt(values[is_positive])
    return ContrastFamily(members, tuple(map(tuple, loads.round(12).tolist())), level)


@lru_cache(maxsize=64)
def _null_maxima(loads: tuple[tuple[float, ...], ...], blocks: int) -> Floats:
    """Return draws of max |t| over the contrasts if nothing differs, largest first."""
    to_contrasts = np.array(loads).T
    rng = np.random.default_rng((_SEED, blocks))
    mean = rng.standard_normal((_DRAWS, len(to_contrasts))) @ to_contrasts
    squares = np.zeros_like(mean)
    for _ in range(blocks - 1):
        squares += (rng.standard_normal((_DRAWS, len(to_contrasts))) @ to_contrasts) ** 2
    t = np.abs(mean) / np.sqrt(squares / (blocks - 1))
    return np.asarray(np.sort(t.max(axis=1))[::-1])


def estimate_contrasts(gains: Views, weights: Floats, family: ContrastFamily, needed: int) -> tuple[Estimate, ...]:
    """Return the estimates of ``weights`` (contrasts, rows) applied to the mean ``gains`` of rows.

    If no trial is missing, a contrast is one number per block, with the error of their mean (``standard_errors``).
    Otherwise each row uses the mean of its own blocks, and each block contributes its part of those means. With fewer
    than ``needed`` pairs in a used row there is no interval. Intervals are valid in every view.
    """
    as_measured, *without_slow = (
        _estimates_in_view(view, gains.gaps, weights, family, 2 if view_index else needed)
        for view_index, view in enumerate(gains.every)
    )
    return tuple(
        _cover_all_views(estimate, other_estimates)
        for estimate, *other_estimates in zip(as_measured, *without_slow, strict=True)
    )


def _cover_all_views(estimate: Estimate, others: Sequence[Estimate]) -> Estimate:
    """Return the estimate with an interval that covers the intervals of all views."""
    lows, highs, ps = zip(*((each.low, each.high, each.p) for each in (estimate, *others)), strict=True)
    if None in lows:
        return Estimate(estimate.ratio)
    return Estimate(estimate.ratio, min(lows), max(highs), max(ps))


def _estimates_in_view(
    gains: Floats, gaps: Floats | None, weights: Floats, family: ContrastFamily, needed: int
) -> list[Estimate]:
    gain_summary = summarise_pairs(gains)
    has_gain, is_used = np.isfinite(gains), weights != 0
    mean = np.nan_to_num(gain_summary.mean)
    parts = np.where(has_gain, gains - mean[:, None], 0.0) / np.maximum(gain_summary.blocks, 1)[:, None]
    pairs = np.where(is_used, gain_summary.blocks, gains.shape[1]).min(axis=1)
    error, units = standard_errors_of_row_sums(weights @ parts, is_used @ has_gain, gaps)
    numbers = ((weights @ mean).tolist(), error.tolist(), pairs.tolist(), units.tolist())
    return [_estimate(*row, family, needed) for row in zip(*numbers, strict=True)]


def _estimate(value: float, error: float, pairs: int, units: int, family: ContrastFamily, needed: int) -> Estimate:
    ratio, units = ratio_from_log(value), min(units, pairs)
    if pairs < max(2, needed):
        return Estimate(ratio)
    reach = family.critical(units) * error
    t = value / error if error > 0 else (np.inf if value else 0.0)
    return Estimate(ratio, ratio_from_log(value - reach), ratio_from_log(value + reach), family.p(t, units))
