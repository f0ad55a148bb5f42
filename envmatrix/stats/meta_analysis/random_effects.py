"""Random effects: the average of a log ratio over machines, its spread between them, and a prediction for another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from envmatrix.stats.array_types import Floats
from envmatrix.stats.effects import CONFIDENCE
from envmatrix.stats.inference.maxt import student_quantile
from envmatrix.stats.pairing import ratio_from_log

#: With fewer machines, a prediction is too wide to be of use.
FEWEST_MACHINES = 3
_TAIL = (1.0 - CONFIDENCE) / 2.0
_NODES, _QUANTILES, _HALVINGS = 400, 200, 50
#: No log ratio is known better than this.
_LEAST_VARIANCE = 1e-12


@dataclass(frozen=True)
class RandomEffects:
    """The effect over ``machines``: the average ``ratio`` with its interval, and the ratio on another machine.

    ``spread`` is the standard deviation of the log ratio between machines. ``prediction`` is the interval for a machine
    that was never measured (None: too few machines). ``covered`` counts the machines whose effect is in the prediction
    from all others (None: too few machines).
    """

    machines: int
    ratio: float
    low: float
    high: float
    spread: float
    prediction: tuple[float, float] | None
    covered: int | None


class _Profile:
    """The generalized Q statistic at each variance between machines of a grid (Viechtbauer 2007).

    At the true variance, Q is chi-squared with one degree of freedom less than machines.
    """

    def __init__(self, logs: Floats, variances: Floats) -> None:
        self.logs, self.variances = logs, np.maximum(variances, _LEAST_VARIANCE)
        least = float(self.variances.min()) * 1e-3
        most = float((logs**2).sum()) / float(_chi_squared_quantiles(1, 0.5 / _QUANTILES))
        self.grid = np.concatenate([[0.0], np.geomspace(least, max(most, 10.0 * least), _NODES)])
        self.weights = 1.0 / (self.variances + self.grid[:, None])
        self.powers = np.stack([np.ones_like(logs), logs, logs**2])
        self.sums: Floats = self.powers @ self.weights.T

    def without(self, machine: int) -> Floats:
        """Return the sums over all other machines."""
        return np.asarray(self.sums - self.powers[:, [machine]] * self.weights[:, machine])

    def at(self, sums: Floats, values: Floats) -> tuple[Floats, Floats, Floats]:
        """Return the variance between machines, the mean and the variance of the mean at these values of Q."""
        weight, log, square = sums
        falling = np.minimum.accumulate(square - log**2 / weight)[::-1]
        between, mean, error = (
            np.interp(values, falling, column[::-1]) for column in (self.grid, log / weight, 1.0 / weight)
        )
        return between, mean, error

    def prediction(self, sums: Floats, machines: int) -> tuple[Floats, Floats]:
        """Return means and variances of normal distributions, whose equal mixture is that of another machine."""
        steps = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
        between, mean, error = self.at(sums, _chi_squared_quantiles(machines - 1, steps))
        return mean, between + error

    def is_predicted(self, machine: int) -> bool:
        """Return whether a machine's effect is in the prediction from the others, which allows for its own noise."""
        means, variances = self.prediction(self.without(machine), len(self.logs) - 1)
        return _TAIL <= _below(self.logs[machine], means, variances + self.variances[machine]) <= 1.0 - _TAIL


def _chi_squared_quantiles(freedom: int, probability: Floats | float) -> Floats:
    from scipy.special import chdtri

    return np.asarray(chdtri(freedom, 1.0 - np.asarray(probability)))


def _below(value: float, means: Floats, variances: Floats) -> float:
    """Return the probability that a mixture of normal distributions is below a value."""
    from scipy.special import ndtr

    return float(ndtr((value - means) / np.sqrt(variances)).mean())


def _quantile(probability: float, means: Floats, variances: Floats) -> float:
    reach = 9.0 * np.sqrt(variances)
    low, high = float((means - reach).min()), float((means + reach).max())
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if _below(middle, means, variances) < probability else (low, middle)
    return (low + high) / 2.0


def random_effects(logs: Sequence[float], variances: Sequence[float]) -> RandomEffects:
    """Return the effect over at least two machines, from the log ratio of each and its variance.

    The spread is that of Paule & Mandel (1982). The interval of the average is that of Hartung & Knapp (2001), whose
    factor is 1 with this spread, and never below 1 (Röver et al. 2015). The prediction integrates over a confidence
    distribution of the spread (Nagashima et al. 2019), here that of the Q-profile: Student's interval without noise.
    """
    count, centre = len(logs), float(np.mean(logs))
    profile = _Profile(np.array(logs) - centre, np.array(variances))
    between, mean, error = (float(value[0]) for value in profile.at(profile.sums, np.array([count - 1.0])))
    reach = student_quantile(count, 1.0 - _TAIL) * math.sqrt(error)
    prediction = covered = None
    if count >= FEWEST_MACHINES:
        mixture = profile.prediction(profile.sums, count)
        low, high = (ratio_from_log(centre + _quantile(tail, *mixture)) for tail in (_TAIL, 1.0 - _TAIL))
        prediction = low, high
    if count > FEWEST_MACHINES:
        covered = sum(map(profile.is_predicted, range(count)))
    ratio, low, high = (ratio_from_log(centre + mean + end) for end in (0.0, -reach, reach))
    return RandomEffects(count, ratio, low, high, math.sqrt(between), prediction, covered)


def combine_runs(logs: Sequence[float], variances: Sequence[float]) -> tuple[float, float]:
    """Return the mean log ratio of runs of one machine, and its variance, larger if runs disagree (Birge 1932)."""
    weights = 1.0 / np.maximum(np.array(variances), _LEAST_VARIANCE)
    mean = float(np.average(logs, weights=weights))
    excess = float((weights * (np.array(logs) - mean) ** 2).sum()) / max(1, len(logs) - 1)
    return mean, max(1.0, excess) / float(weights.sum())
