"""History simulations: how often a change is marked where there is none, and how often a true one is found."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from envmatrix.stats.inference.change_points import FALSE_ALARM_RATE, change_points
from validation.simulated import SIZE, Figure, Floats, rate

Course = Callable[[int, int, np.random.Generator], Floats]
_LENGTHS = (6, 10, 14, 30, 100)


def _steady(runs: int, length: int, chance: np.random.Generator) -> Floats:
    return chance.normal(0.0, SIZE, (runs, length))


def _two_levels(runs: int, length: int, chance: np.random.Generator) -> Floats:
    """Draw a machine that is 10 % slower in about every other run."""
    return chance.normal(0.0, SIZE / 10, (runs, length)) - 0.1 * (chance.random((runs, length)) < 0.5)


def _outliers(runs: int, length: int, chance: np.random.Generator) -> Floats:
    return SIZE * chance.standard_t(2, (runs, length))


_COURSES: Mapping[str, Course] = {"normal": _steady, "two levels": _two_levels, "with outliers": _outliers}


def histories(machine: str, runs: int, chance: np.random.Generator) -> list[Figure]:
    """Return rates of marked changes for several history lengths; ``quiet`` represents all machines."""
    if machine != "quiet":
        return []
    runs = max(20, runs // 10)
    figures = []
    for name, course in _COURSES.items():
        for length in _LENGTHS:
            marked = [bool(change_points(one)) for one in course(runs, length, chance)]
            figures.append(rate("any change where there is none", machine, f"{length} runs, {name}", np.array(marked)))
    for length in _LENGTHS[1:]:
        moved = _steady(runs, length, chance) + 0.1 * (np.arange(length) >= length // 2)
        for series in (1, 9):
            found = [bool(change_points(one, FALSE_ALARM_RATE / series)) for one in moved]
            name = f"{length} runs, one of {series} series moves"
            figures.append(rate("a change of 10 % is found", machine, name, np.array(found)))
    return figures
