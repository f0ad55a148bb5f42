"""Welch's interval for the ratio of two independent means of logs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from envmatrix.stats.effects import LEVEL, Effect, rescale_p_value
from envmatrix.stats.pairing import ratio_from_log


@dataclass(frozen=True)
class Mean:
    """A mean of ``count`` logs with its standard error."""

    mean: float
    error: float
    count: int


@dataclass(frozen=True)
class Quotient:
    """A ratio with its interval, and the p for a ratio of 1."""

    ratio: float
    low: float
    high: float
    p: float


def mean_of_logs(logs: NDArray[np.float64], least: int) -> Mean | None:
    """Return the mean of the finite logs, or None below ``least`` of them."""
    present_logs = logs[np.isfinite(logs)]
    if present_logs.size < max(2, least):
        return None
    return Mean(
        float(present_logs.mean()), float(present_logs.std(ddof=1) / math.sqrt(present_logs.size)), present_logs.size
    )


def means_of_effect(effect: Effect) -> tuple[Mean, Mean] | None:
    """Return the mean log ratios of an effect, with and without slow trials, or None if it has no interval.

    The one without slow trials uses the error of all trials, which is larger than its own.
    """
    if effect.low is None or not effect.ratio or effect.error is None or effect.units < 2:
        return None
    usual = effect.usual or effect.ratio
    full_mean = Mean(math.log(effect.ratio), effect.error, effect.units)
    return full_mean, replace(full_mean, mean=math.log(usual))


def quotient(old: Mean, new: Mean, comparisons: int = 1, level: float = LEVEL) -> Quotient:
    """Return new over old, with simultaneous intervals for ``comparisons`` (Bonferroni) at ``level``.

    Welch's t is used because variances may differ between times or machines. It is implemented here because scipy needs
    samples for an interval, and an effect has only a mean and an error.
    """
    mean, variance = new.mean - old.mean, old.error**2 + new.error**2
    if variance == 0:
        return Quotient(ratio_from_log(mean), ratio_from_log(mean), ratio_from_log(mean), 0.0 if mean else 1.0)
    freedom = variance**2 / sum(side.error**4 / (side.count - 1) for side in (old, new))
    error = math.sqrt(variance)
    reach = float(stdtrit(freedom, 1.0 - (1.0 - level) / (2 * comparisons))) * error
    p = rescale_p_value(2.0 * comparisons * float(stdtr(freedom, -abs(mean) / error)), level)
    return Quotient(ratio_from_log(mean), ratio_from_log(mean - reach), ratio_from_log(mean + reach), p)
