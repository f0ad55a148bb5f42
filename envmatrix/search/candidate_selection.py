"""Selection of cells in a search: exclude failures, drop weak cells from the race, prefer the simplest of ties.

Cells that known effects favour are shown first in the balanced design; these effects are no readings of the model.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from envmatrix.search.bayesian_regression import Floats, Ints
from envmatrix.search.space import Codes, Space
from envmatrix.stats.meta_analysis.effects_for_ordering import KnownEffect

Bools = NDArray[np.bool_]
#: Cells are tied if their expected log gains differ by less; the one with the fewest settings is taken.
EQUAL_GAIN = 0.01
#: A level or pair that never worked is excluded after so many failures.
_MIN_FAILURES = 2
_DRAWS = 1000
#: A cell leaves the race if it is the best in a smaller share of draws.
_MIN_BEST_SHARE = 0.03


@dataclass(frozen=True, eq=False)
class CellStatus:
    """The failures of a search. Per cell, ``good`` counts its good trials, and ``bad`` is the weight of its failures.

    ``dropped`` are levels (factor, level) without an effect on the process.
    """

    codes: Codes
    sizes: Sequence[int]
    good: Ints
    bad: Ints
    dropped: tuple[tuple[int, int], ...] = ()

    @property
    def worked(self) -> Bools:
        """Which cells had a good trial."""
        return np.asarray(self.good > 0)

    @cached_property
    def failing(self) -> tuple[tuple[int, int], ...]:
        """Levels that failed in every trial, at least once as the only level not known to work."""
        tried = np.flatnonzero(self.good + self.bad)
        bad = self.bad[tried]
        levels = [(factor, level) for factor, size in enumerate(self.sizes) for level in range(1, size)]
        has_level = np.array([self.codes[tried, factor] == level for factor, level in levels])
        worked = has_level @ self.good[tried] > 0
        suspected = has_level & ~worked[:, None]
        is_sole_suspect = (suspected & (suspected.sum(axis=0) == 1) & (bad > 0)).any(axis=1)
        fails = ~worked & (has_level @ bad >= _MIN_FAILURES) & is_sole_suspect
        return tuple(level for level, is_failing in zip(levels, fails.tolist(), strict=True) if is_failing)

    @cached_property
    def allowed(self) -> Bools:
        """Which cells may be proposed."""
        is_allowed: Bools = np.asarray(self.bad == 0)
        is_allowed[0] = True
        for factor, level in (*self.failing, *self.dropped):
            is_allowed &= self.codes[:, factor] != level
        for a, level_a, b, level_b in self._failing_pairs():
            is_allowed &= (self.codes[:, a] != level_a) | (self.codes[:, b] != level_b)
        return is_allowed

    def _failing_pairs(self) -> list[tuple[int, int, int, int]]:
        """Return the fewest pairs of levels that explain the repeated failures; none of them ever worked.

        The pair that explains the most failures is taken first (greedy set cover).
        """
        worked = self.codes[np.flatnonzero(self.good)]
        suspects: dict[tuple[int, int, int, int], set[int]] = {}
        for row in np.flatnonzero(self.bad).tolist():
            levels = [(factor, int(level)) for factor, level in enumerate(self.codes[row]) if level]
            if not set(self.failing).isdisjoint(levels):
                continue
            for (a, level_a), (b, level_b) in itertools.combinations(levels, 2):
                suspects.setdefault((a, level_a, b, level_b), set()).add(row)
        suspects = {
            pair: rows
            for pair, rows in suspects.items()
            if len(rows) >= _MIN_FAILURES
            and not ((worked[:, pair[0]] == pair[1]) & (worked[:, pair[2]] == pair[3])).any()
        }
        pairs = []
        while suspects:
            pair = max(suspects, key=lambda suspect: len(suspects[suspect]))
            explained = suspects[pair]
            pairs.append(pair)
            remaining = {suspect: rows - explained for suspect, rows in suspects.items()}
            suspects = {suspect: rows for suspect, rows in remaining.items() if len(rows) >= _MIN_FAILURES}
        return pairs


def simplify_row(row: int, space: Space, gains: Floats) -> int:
    """Remove settings one at a time while the total loss of gain stays within ``EQUAL_GAIN``; return that cell.

    ``gains`` are those of all cells (-inf: not allowed). Row 0, the baseline, is returned only if it was given.
    """
    floor, current = gains[row] - EQUAL_GAIN, row
    while simpler := [fewer for fewer in space.rows_without_one_setting(current) if fewer and gains[fewer] >= floor]:
        current = max(simpler, key=lambda fewer: float(gains[fewer]))
    return current


def surviving_rows(
    rows: Sequence[int], mean: Floats, covariance: Floats, chance: np.random.Generator
) -> tuple[int, ...]:
    """Return the rows that are the best in enough draws of their gains."""
    draws = chance.multivariate_normal(mean, covariance, _DRAWS, method="cholesky", check_valid="ignore")
    share = np.bincount(draws.argmax(axis=1), minlength=len(rows)) / _DRAWS
    return tuple(row for row, often in zip(rows, share, strict=True) if often >= _MIN_BEST_SHARE)


def simplest_best_row(rows: Sequence[int], mean: Floats, codes: Codes) -> int:
    """Return the row with the fewest settings within ``EQUAL_GAIN`` of the best; the fastest if several."""
    best_mean = float(mean.max())
    ties = [index for index in range(len(rows)) if mean[index] >= best_mean - EQUAL_GAIN]
    return rows[min(ties, key=lambda index: (int((codes[rows[index]] > 0).sum()), -float(mean[index])))]


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


def choice_pool_and_first_picks(rows: Ints, gains: Floats, count: int) -> tuple[Ints, list[int]]:
    """Return the cells to choose ``count`` from, and those of them to take first: at most half, the best and simplest.

    Cells with slower settings are left out as long as there are enough others.
    """
    others = rows[gains[rows] > -np.inf]
    rows = others if len(others) >= count else rows
    best = rows[np.argsort(-gains[rows], kind="stable")][: count // 2]
    return rows, best[gains[best] > 0].tolist()
