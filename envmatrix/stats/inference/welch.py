"""Intervals for ratios of unpaired means of logs: of two means, or of one run and several older ones.

Runs differ by more than their trials do: another boot, another placement, another hour. Only several runs show by how
much; more blocks in one run do not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from envmatrix.stats.array_types import Floats
from envmatrix.stats.effects import LEVEL, Effect, rescale_p_value
from envmatrix.stats.pairing import ratio_from_log

#: With fewer runs of the same setup, the variation between runs is unknown.
FEWEST_RUNS = 3


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


def mean_of_logs(logs: Floats, least: int) -> Mean | None:
    """Return the mean of the finite logs, or None below ``least`` of them."""
    present_logs = logs[np.isfinite(logs)]
    if present_logs.size < max(2, least):
        return None
    return Mean(
        float(present_logs.mean()), float(present_logs.std(ddof=1) / math.sqrt(present_logs.size)), present_logs.size
    )


def log_ratio_with_and_without_slow(effect: Effect) -> tuple[Mean, Mean] | None:
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
    variance = old.error**2 + new.error**2
    freedom = variance**2 / sum(side.error**4 / (side.count - 1) for side in (old, new)) if variance else 1.0
    return _quotient(new.mean - old.mean, math.sqrt(variance), freedom, comparisons, level)


def compare_with_runs(olds: Sequence[Mean], new: Mean, comparisons: int = 1, level: float = LEVEL) -> Quotient:
    """Return ``new`` over the mean of ``olds``, at least ``FEWEST_RUNS`` runs of the same setup.

    This is the prediction interval for the next run (Hahn & Meeker 1991). It uses Student's t with one degree of
    freedom less than old runs, and the variance of their means, which includes noise within a run. If the new run is
    noisier, its excess is added. Intervals of ``comparisons`` are simultaneous (Bonferroni).
    """
    mean, error = map(float, last_run_difference(*np.array([(run.mean, run.error) for run in (*olds, new)]).T))
    return _quotient(mean, error, len(olds) - 1, comparisons, level)


def last_run_difference(means: Floats, errors: Floats) -> tuple[Floats, Floats]:
    """Return the difference of the last run from the mean of the others, and its standard error.

    Both arguments have one number per run on their last axis.
    """
    olds, noise = means[..., :-1], errors**2
    noisier = np.maximum(0.0, noise[..., -1] - noise[..., :-1].mean(axis=-1))
    variance = olds.var(axis=-1, ddof=1) * (1.0 + 1.0 / olds.shape[-1]) + noisier
    return means[..., -1] - olds.mean(axis=-1), np.sqrt(variance)


def _quotient(mean: float, error: float, freedom: float, comparisons: int, level: float) -> Quotient:
    """Return the ratio of a mean difference of logs, with Student's t for its interval and its p."""
    from scipy.special import stdtr, stdtrit  # takes a fifth of the time in which most commands start

    ratio, reach = ratio_from_log(mean), float(stdtrit(freedom, 1.0 - (1.0 - level) / (2 * comparisons))) * error
    if not error:
        return Quotient(ratio, ratio, ratio, 0.0 if mean else 1.0)
    p = rescale_p_value(2.0 * comparisons * float(stdtr(freedom, -abs(mean) / error)), level)
    return Quotient(ratio, ratio_from_log(mean - reach), ratio_from_log(mean + reach), p)
