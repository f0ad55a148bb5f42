"""Shared parts of the simulations: a rate with its interval, and the trials of a simulated machine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envmatrix.stats.inference.maxt import is_moderated, moderated
from envmatrix.stats.selftest import false_alarm_rate
from validation.noise import NOISES, deal_into_blocks, scale_noise

Floats = NDArray[np.float64]
#: Noise of a trial's log time within its block.
SIZE = 0.03


@dataclass(frozen=True)
class Figure:
    """One simulated result with its 95 % interval (None: a plain number)."""

    question: str
    machine: str
    procedure: str
    value: float
    low: float | None
    high: float | None
    runs: int

    def line(self) -> str:
        """Return the result as a line of text."""
        value = f"{self.value:.1%}" if self.low is not None else f"{self.value:.3f}"
        interval = f" [{self.low:.1%}, {self.high:.1%}]" if self.low is not None else ""
        return f"{self.question:34} {self.machine:15} {self.procedure:42} {value}{interval}"


def rate(question: str, machine: str, procedure: str, hits: NDArray[np.bool_]) -> Figure:
    """Return the rate of an event as a result."""
    found = false_alarm_rate(int(hits.sum()), hits.size)
    return Figure(question, machine, procedure, found.rate or 0.0, found.low, found.high, hits.size)


def trials_of(machine: str, arms: int, blocks: int, runs: int, chance: np.random.Generator) -> Floats:
    """Return (runs, arms, blocks) log times whose noise within blocks is ``SIZE``."""
    return scale_noise(deal_into_blocks(NOISES[machine](runs, blocks * arms, SIZE, chance), blocks, arms, chance), SIZE)


def over_two_copies(logs: Floats) -> Floats:
    """Return the differences (runs, arms - 2, blocks) to the mean of the first two arms."""
    return np.asarray(logs[:, 2:] - logs[:, :2].mean(axis=1, keepdims=True))


def absolute_t(differences: Floats) -> Floats:
    """Return |t| of (runs, arms, blocks) differences, all arms one family: (runs, arms)."""
    return np.asarray(np.abs(differences.mean(axis=2)) / standard_errors(differences))


def standard_errors(differences: Floats) -> Floats:
    """Return the errors used for the means of (runs, arms, blocks) differences: (runs, arms)."""
    _, arms, blocks = differences.shape
    variances = differences.var(axis=2, ddof=1)
    if is_moderated(blocks, arms):
        variances = moderated(variances.T, blocks).T
    return np.asarray(np.sqrt(variances / blocks))
