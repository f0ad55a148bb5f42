"""Classification of a process's steps (steady from the start, later, slower, or never): how often it is right."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from envmatrix.stats.selftest import autoregressive
from envmatrix.stats.steady_state.detection import KINDS, classify
from validation.noise import NOISES
from validation.simulated import Figure, Floats, rate

#: Seconds per step of the default workload on two CPUs, and the steps of a steady-state run of 6.6 s, or a full one.
_STEP_S, _LENGTHS = 0.025, (264, 400)
#: Course of a process's steps -> log of each step's time relative to the steady state.
_COURSES: Mapping[str, Callable[[int], Floats]] = {
    "flat": np.zeros,
    "40 steps 25 % slower": lambda count: np.where(np.arange(count) < 40, np.log(1.25), 0.0),
    "50 % slower, decays in 10 steps": lambda count: np.log(1.5) * np.exp(-np.arange(count) / 10),
    "80 steps 20 % faster": lambda count: np.where(np.arange(count) < 80, -np.log(1.2), 0.0),
    "80 steps 10 % faster": lambda count: np.where(np.arange(count) < 80, -np.log(1.1), 0.0),
    "last fifth 25 % slower": lambda count: np.where(np.arange(count) < 0.8 * count, 0.0, np.log(1.25)),
}
#: Machine -> standard deviations of noise that lasts for one step, for 0.16 s and for 17 s.
_MACHINES: Mapping[str, tuple[float, float, float]] = {
    "independent": (0.05, 0.0, 0.0),
    "calm": (0.01, 0.02, 0.01),
    "shared VM": (0.01, 0.064, 0.039),
}
_SLOWEST = 20


def _noise(runs: int, count: int, sizes: tuple[float, float, float], chance: np.random.Generator) -> Floats:
    alone, fast, slow = sizes
    found = chance.normal(0.0, alone, (runs, count))
    for size, lasts_s in ((fast, 0.16), (slow, 17.0)):
        found += autoregressive(runs, count, size, float(np.exp(-_STEP_S / lasts_s)), chance)
    return found


def steady_states(machine: str, runs: int, chance: np.random.Generator) -> list[Figure]:
    """Return how often each course is classified correctly; it has its own machines, so it is computed once."""
    if machine != next(iter(NOISES)):
        return []
    figures = []
    for name, sizes in _MACHINES.items():
        for count in _LENGTHS:
            for course, made in _COURSES.items():
                logs = _noise(max(5, runs // _SLOWEST), count, sizes, chance) + made(count)
                found = [classify(row) for row in _STEP_S * np.exp(logs)]
                kinds = np.array([one.kind if one else "" for one in found])
                figures += [rate(f"called {kind}", name, f"{course}, {count} steps", kinds == kind) for kind in KINDS]
    return figures
