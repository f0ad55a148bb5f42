"""How long should a trial be: a pilot weighs the variance within trials against that between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_BATCHES = 10


@dataclass(frozen=True)
class TrialLength:
    """``steps`` gives the narrowest interval per minute. Variances are of log time; None: not to be had.

    ``within`` is the variance of one step as it counts in the mean of many (batch means, so that correlated
    steps are not taken for independent ones), ``between`` that of trials beyond it. Times are in seconds.
    """

    steps: int | None
    within: float | None
    between: float | None
    overhead_s: float
    step_s: float | None


def variance_of_a_mean(steps: Sequence[float]) -> float:
    """Return the variance of one trial's mean log step times its number of steps, from batch means."""
    logs = np.log(np.asarray(steps, dtype=np.float64))
    size = len(logs) // _BATCHES
    means = logs[: size * _BATCHES].reshape(_BATCHES, size).mean(axis=1)
    return float(means.var(ddof=1) * size)


def choose_length(
    trials: Sequence[Sequence[float]], overhead_s: float, least: int = 20, most: int = 100_000
) -> TrialLength:
    """Choose the number of timed steps from a pilot's step times in seconds, one sequence a trial.

    With c the cost of starting a trial and s that of a step, variance per second is least at sqrt(c / s *
    within / between) steps (Kalibera & Jones 2013, section 6). Needs 2 trials of 20 steps or more, else
    ``steps`` is None. No variance between trials gives ``most``: then one long trial is as good as many.
    """
    usable = [trial for trial in trials if len(trial) >= 2 * _BATCHES and min(trial) > 0]
    if len(usable) < 2:
        return TrialLength(None, None, None, overhead_s, None)
    step_s = float(np.mean([np.mean(trial) for trial in usable]))
    within = float(np.mean([variance_of_a_mean(trial) for trial in usable]))
    means = [float(np.mean(np.log(trial))) for trial in usable]
    typical = float(np.mean([len(trial) for trial in usable]))
    between = max(0.0, float(np.var(means, ddof=1)) - within / typical)
    if between <= 0:
        return TrialLength(most, within, between, overhead_s, step_s)
    best = math.sqrt(overhead_s / step_s * within / between)
    return TrialLength(round(min(most, max(least, best))), within, between, overhead_s, step_s)
