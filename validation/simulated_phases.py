"""Slow phases of the machine: their effect on intervals, and the cost of correcting for absent ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from envmatrix.stats.effects import LEVEL
from envmatrix.stats.inference.maxt import critical_value, student_quantile
from envmatrix.stats.inference.standard_errors import PHASE_S, block_gaps, slow_cosine_error
from envmatrix.stats.pairing import summarise_pairs
from validation.noise import NOISES
from validation.simulated import SIZE, Figure, Floats, rate

_EACH_HALF = (1.0 + LEVEL) / 2
_MINUTES, _BLOCK_S, _PHASES_S = (3, 5, 6, 12, 24), (10.0, 20.0, 38.0), (20.0, 40.0, 60.0)
#: Phases longer than the correction covers, and runs that are long enough for shorter ones.
_LONGER_S, _LONG_MINUTES = (120.0, 180.0, 300.0, 600.0), (12, 24)
#: Additional slowdown of the environment, relative to its reference, in a slow phase.
_SLOWED = 0.1


def in_phases(runs: int, begins: Floats, mean_s: float, chance: np.random.Generator) -> tuple[Floats, Floats]:
    """Return (runs, blocks) log ratios of trials at random times in their blocks, and each run's mean over its time.

    Fast and slow phases have exponential lengths, drawn second by second.
    """
    block_s = int(begins[1])
    seconds = block_s * begins.size
    turned = chance.random((runs, seconds), dtype=np.float32) < 0.5 * -np.expm1(-2.0 / mean_s)
    turned[:, 0] = chance.random(runs) < 0.5
    slow = np.logical_xor.accumulate(turned, axis=1)
    at = np.arange(0, seconds, block_s) + chance.integers(0, block_s, (runs, begins.size))
    return _SLOWED * (0.5 - np.take_along_axis(slow, at, axis=1)), _SLOWED * (0.5 - slow.mean(axis=1))


def _reaches(logs: Floats, begins: Floats) -> dict[str, Floats]:
    """Return half-widths of three intervals: ours, the usual one, and one from slow cosines only."""
    count = begins.size
    found = summarise_pairs(logs, block_gaps(begins))
    waves = min(count - 1, int(float(begins[-1] + begins[1]) / PHASE_S))
    parts = (logs - logs.mean(axis=1, keepdims=True)) / count
    return {
        "": found.error * np.array([critical_value(int(units), 1, 2, level=LEVEL) for units in found.units]),
        ", usual error": found.spread / np.sqrt(count) * student_quantile(count, _EACH_HALF),
        ", slow cosines alone": slow_cosine_error(parts, waves) * student_quantile(waves + 1, _EACH_HALF),
    }


def _figures(
    minutes: int, block_s: float, runs: int, chance: np.random.Generator, phases_s: Sequence[float] = (0.0, *_PHASES_S)
) -> list[Figure]:
    begins = np.arange(0.0, minutes * 60.0, block_s)
    noise = chance.normal(0.0, SIZE * np.sqrt(1.5), (runs, begins.size))
    name, figures = f"{minutes} minutes, blocks of {block_s:.0f} s", []
    for mean_s in phases_s:
        slowed, own = in_phases(runs, begins, mean_s, chance) if mean_s else (0.0, np.zeros(runs))
        logs = noise + slowed
        machine = f"phases of {mean_s:.0f} s" if mean_s else "no phases"
        reaches = _reaches(logs, begins)
        usual = reaches[", usual error"]
        for how, reach in reaches.items():
            mean = logs.mean(axis=1)
            figures.append(rate("misses" + how, machine, name, np.abs(mean) > reach))
            figures.append(rate("misses its own mean" + how, machine, name, np.abs(mean - own) > reach))
            if not mean_s and reach is not usual:
                wider = float(reach.mean() / usual.mean())
                figures.append(Figure("times as wide" + how, machine, name, wider, None, None, runs))
                figures.append(rate("wider by half" + how, machine, name, reach > 1.5 * usual))
    return figures


def phases(machine: str, runs: int, chance: np.random.Generator) -> list[Figure]:
    """Return how often the interval of an environment with slow phases misses its long-run mean and its run's mean.

    It uses its own machines, so it is computed once, for the first one.
    """
    if machine != next(iter(NOISES)):
        return []
    cells: Sequence[tuple[int, float]] = [(minutes, block_s) for minutes in _MINUTES for block_s in _BLOCK_S]
    figures = [figure for cell in cells for figure in _figures(*cell, runs, chance)]
    further = (_figures(minutes, _BLOCK_S[-1], runs, chance, _LONGER_S) for minutes in _LONG_MINUTES)
    return [*figures, *(figure for found in further for figure in found)]
