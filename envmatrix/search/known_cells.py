"""Cells that known effects favour. They are shown first in the balanced design, and are no readings of the model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from envmatrix.search.space import Space
from envmatrix.stats.meta_analysis.known_effects import KnownEffect

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def known_gains(space: Space, known: Sequence[KnownEffect]) -> Floats:
    """Return the log gain that known effects let expect of each cell: 0 if unknown, -inf with slower settings in it.

    Gains of single settings add up. A cell with all settings of a known combination gains at least as much as that.
    """
    gains = np.zeros(len(space.codes))
    for effect in sorted(known, key=lambda effect: (effect.verdict == "slower", len(effect.levels))):
        has_levels = np.ones(len(space.codes), np.bool_)
        for factor, level in effect.levels.items():
            place = space.factors.index(factor)
            has_levels &= space.codes[:, place] == space.levels[place].index(level)
        gain = -np.inf if effect.verdict == "slower" else float(np.log(effect.ratio))
        expected = np.maximum(gains, gain) if gain > 0 and len(effect.levels) > 1 else gains + gain
        gains = np.where(has_levels, expected, gains)
    return gains


def known_first(rows: Ints, gains: Floats, count: int) -> tuple[Ints, list[int]]:
    """Return the cells to choose ``count`` from, and those of them to take first: at most half, the best and simplest.

    Cells with slower settings are left out as long as there are enough others.
    """
    others = rows[gains[rows] > -np.inf]
    rows = others if len(others) >= count else rows
    best = rows[np.argsort(-gains[rows], kind="stable")][: count // 2]
    return rows, best[gains[best] > 0].tolist()
