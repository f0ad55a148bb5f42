"""Simulated machines: the noise, in log time, of consecutive trials."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from envmatrix.stats.selftest import autoregressive

Floats = NDArray[np.float64]
Noise = Callable[[int, int, float, np.random.Generator], Floats]


def quiet(runs: int, trials: int, size: float, rng: np.random.Generator) -> Floats:
    """Return independent normal noise."""
    return rng.normal(0.0, size, (runs, trials))


def autocorrelated(runs: int, trials: int, size: float, rng: np.random.Generator) -> Floats:
    """Return noise of which half the variance lasts for about ten trials (heat, neighbours on the host)."""
    slow = autoregressive(runs, trials, size / np.sqrt(2), 0.9, rng)
    return slow + quiet(runs, trials, size / np.sqrt(2), rng)


def drifting(runs: int, trials: int, size: float, rng: np.random.Generator) -> Floats:
    """Return independent noise on a random walk, which typically moves by ``size`` in ten trials."""
    walk = np.cumsum(rng.normal(0.0, size / np.sqrt(10), (runs, trials)), axis=1)
    return walk + quiet(runs, trials, size, rng)


def bursty(runs: int, trials: int, size: float, rng: np.random.Generator) -> Floats:
    """Return independent noise with bursts of load that make about five trials in a row five sizes slower."""
    busy = np.zeros((runs, trials), dtype=np.bool_)
    state = rng.random(runs) < 0.2
    for trial in range(trials):
        draw = rng.random(runs)
        state = np.where(state, draw > 0.2, draw < 0.05)
        busy[:, trial] = state
    return quiet(runs, trials, size, rng) + 5.0 * size * busy


NOISES: Mapping[str, Noise] = {
    "quiet": quiet,
    "autocorrelated": autocorrelated,
    "drifting": drifting,
    "bursty": bursty,
}


def scale_noise(logs: Floats, size: float) -> Floats:
    """Scale (runs, arms, blocks) noise so that a trial's standard deviation within its block is ``size``.

    This is the noise in comparisons within blocks; noise shared by a block does not count.
    """
    return logs * (size / float(np.sqrt(logs.var(axis=1, ddof=1).mean())))


def deal_into_blocks(noise: Floats, blocks: int, arms: int, rng: np.random.Generator) -> Floats:
    """Assign (runs, blocks * arms) noise to arms, in random order per block: (runs, arms, blocks)."""
    dealt = noise.reshape(len(noise), blocks, arms)
    order = np.argsort(rng.random(dealt.shape), axis=2)
    shuffled: Floats = np.take_along_axis(dealt, order, axis=2).swapaxes(1, 2)
    return shuffled
