"""Precision per minute of measuring: arithmetic of `nox -s selfbench -- --precision`, on arrays only.

A way to measure has a variance of the paired log ratio per block, and a time per block. Its precision per minute is 1 /
(variance * minutes per block). Two ways are compared by their ratio; for many arms, by its geometric mean.

Intervals are Miller's (1968) jackknife of the logarithm, leaving out one block at a time, with Welch's t. Unlike the F
ratio this needs no normal noise, and is valid for the mean over arms that share a reference. For one arm and normal
noise both agree: 20 against 20 blocks give a factor of 2.5 either way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]
#: With fewer blocks a variance has no interval.
LEAST = 3
#: Effects that differ by more are not equal.
ALIKE = 0.03


@dataclass(frozen=True)
class Estimate:
    """A number and its 95 % interval."""

    value: float
    low: float
    high: float

    def as_ratio(self) -> Estimate:
        """Return the ratio of a log ratio."""
        return Estimate(math.exp(self.value), math.exp(self.low), math.exp(self.high))


@dataclass(frozen=True)
class Measured:
    """Results of a schedule: log ratios (arms x blocks, NaN if missing) and the seconds of each block."""

    arms: tuple[str, ...]
    ratios: Floats
    seconds: Floats

    def of(self, arms: Sequence[str]) -> Measured:
        """Return the results of some arms."""
        return Measured(tuple(arms), self.ratios[[self.arms.index(arm) for arm in arms]], self.seconds)


def _welch(ours: Floats, theirs: Floats) -> Estimate:
    """Return the difference of two means with Welch's interval."""
    errors = [values.var(ddof=1) / values.size for values in (ours, theirs)]
    whole = sum(errors)
    parts = [error**2 / (values.size - 1) for error, values in zip(errors, (ours, theirs), strict=True)]
    half = float(stats.t.ppf(0.975, whole**2 / sum(parts)) * math.sqrt(whole)) if whole > 0 else 0.0
    value = float(ours.mean() - theirs.mean())
    return Estimate(value, value - half, value + half)


def _log_precision(ratios: Floats, seconds: Floats) -> float:
    """Return the mean over arms of log(1 / variance), minus log(minutes per block)."""
    variances = np.array([row[np.isfinite(row)].var(ddof=1) for row in ratios])
    return float(-np.log(variances).mean() - math.log(seconds.mean() / 60))


def _pseudo(measured: Measured) -> Floats | None:
    """Return the jackknife's pseudo-values of the log precision per minute, or None with too few blocks."""
    count = measured.seconds.size
    there = np.isfinite(measured.ratios).sum(axis=1)
    if not there.size or there.min() < LEAST + 1 or (np.nanvar(measured.ratios, axis=1) == 0).any():
        return None
    whole = _log_precision(measured.ratios, measured.seconds)
    without = [np.delete(np.arange(count), block) for block in range(count)]
    less = [_log_precision(measured.ratios[:, rest], measured.seconds[rest]) for rest in without]
    return np.asarray(count * whole - (count - 1) * np.array(less))


def gain(ours: Measured, theirs: Measured) -> Estimate | None:
    """Return the ratio of the precisions per minute of ``ours`` and ``theirs``, or None with too few blocks."""
    one, other = _pseudo(ours), _pseudo(theirs)
    return None if one is None or other is None else _welch(one, other).as_ratio()


def _rows(parts: Sequence[Measured], arm: str) -> list[Floats]:
    """Return an arm's log ratios in each part, empty if it is missing."""
    found = [one.ratios[one.arms.index(arm)] if arm in one.arms else np.empty(0) for one in parts]
    return [row[np.isfinite(row)] for row in found]


def _variance(rows: Sequence[Floats]) -> tuple[float, int]:
    """Return the variance between blocks within parts, and its degrees of freedom (one mean per part)."""
    freedom = sum(row.size - 1 for row in rows if row.size)
    if freedom < 1:
        return math.nan, 0
    return sum(float(((row - row.mean()) ** 2).sum()) for row in rows if row.size) / freedom, freedom


def deviation(parts: Sequence[Measured], arm: str) -> float | None:
    """Return the standard deviation of an arm's paired log ratio within parts, or None below two blocks."""
    variance, freedom = _variance(_rows(parts, arm))
    return math.sqrt(variance) if freedom else None


def effect(parts: Sequence[Measured], arm: str, together: int = 1) -> Estimate | None:
    """Return an arm's ratio over all blocks with Student's interval, or None below two blocks in a part.

    ``together``: number of intervals that are simultaneous (1: this one only).
    """
    rows = _rows(parts, arm)
    variance, freedom = _variance(rows)
    if not freedom:
        return None
    whole = np.concatenate(rows)
    reach = float(stats.t.ppf(1 - 0.025 / together, freedom))
    mean, half = float(whole.mean()), reach * math.sqrt(variance / whole.size)
    return Estimate(mean, mean - half, mean + half).as_ratio()


def difference(ours: Sequence[Measured], theirs: Sequence[Measured], arm: str) -> Estimate | None:
    """Return the ratio of an arm's effects in two schedules that were measured together in several parts.

    The ratio is assumed equal in all parts; the effects may differ. Differences within parts are weighted as if blocks
    of both schedules were equally informative. Each schedule's variance is within parts, minus one degree of freedom
    for each. Satterthwaite's t (Welch's for one part). None if a variance is unknown. The intervals of all arms are
    simultaneous.
    """
    pairs = [pair for pair in zip(_rows(ours, arm), _rows(theirs, arm), strict=True) if pair[0].size and pair[1].size]
    found = [_variance([pair[side] for pair in pairs]) for side in (0, 1)]
    variances, freedom = np.array([one[0] for one in found]), np.array([one[1] for one in found])
    if freedom.min() < 1:
        return None
    counts = np.array([[pair[side].size for pair in pairs] for side in (0, 1)])
    weights = 1 / (1 / counts).sum(axis=0)
    weights /= weights.sum()
    value = float((weights * [ours_.mean() - theirs_.mean() for ours_, theirs_ in pairs]).sum())
    errors = variances * (weights**2 / counts).sum(axis=1)
    whole, half = float(errors.sum()), 0.0
    if whole > 0:
        together = len({name for one in ours for name in one.arms})
        half = float(stats.t.ppf(1 - 0.025 / together, whole**2 / (errors**2 / freedom).sum())) * math.sqrt(whole)
    return Estimate(value, value - half, value + half).as_ratio()


def agreement(found: Estimate | None, together: Estimate | None = None) -> str:
    """Return whether two schedules agree on an arm: within 3 %, and within their intervals.

    ``together``: the simultaneous interval that must exclude 1 for a disagreement, if ``found`` is for one arm only.
    """
    if found is None:
        return "not known"
    if max(abs(math.log(found.low)), abs(math.log(found.high))) <= math.log1p(ALIKE):
        return "agree"
    apart = abs(math.log(found.value)) > math.log1p(ALIKE)
    wider = together or found
    if apart and not wider.low <= 1.0 <= wider.high:
        return "DISAGREE"
    return "more than 3 % apart, not decided" if apart else "not decided"


def blocks_for(parts: Sequence[Measured], arm: str, half: float) -> int | None:
    """Return about how many blocks give an arm the half-width ``half`` (a fraction), or None below two blocks."""
    sd = deviation(parts, arm)
    return None if sd is None else max(2, math.ceil((1.96 * sd / math.log1p(half)) ** 2))


def as_json(found: Estimate | None) -> Mapping[str, float] | None:
    """Return an estimate as JSON data."""
    return found and {"value": found.value, "low": found.low, "high": found.high}
