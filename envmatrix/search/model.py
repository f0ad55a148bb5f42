"""What a search has learned: main effects and pairs of levels in the log, as a Bayesian ridge of block differences.

Effects of environment settings are mostly additive in the log, with a few pairs: so each level has a coefficient, each
pair of levels of two factors one, and each cell that is watched closely (a shortlist) one of its own. Blocks take no
part: readings are differences to their block's mean. How far the coefficients reach, those of two factors' pairs
together, and how large the noise is maximise the marginal likelihood (MacKay 1992, Neural Computation 4:415).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from envmatrix.search.space import Codes

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
#: Where learning starts: noise variance over the variance of a level's effect, and that over the variance of a pair's.
_LEVEL_RATIOS = (0.2, 1.0, 5.0)
_PAIR_RATIOS = (3.0, 20.0)
#: The same of a watched cell's own deviation.
_CELL_RATIO = 4.0
_ROUNDS = 6
#: Of how many coefficients the start is worth when a group of them (the pairs of two factors) is learned from.
_PRIOR = 2.0
_WEIGHTS = (1e-3, 1e6)
_SMALLEST = 1e-4


class Terms:
    """Which coefficients a cell has: one of each level that is not the baseline's, one of each pair of those."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.factors = len(sizes)
        widths = [size - 1 for size in sizes]
        self.mains = np.concatenate([[0], np.cumsum(widths)]).astype(np.int64)
        self.pairs = list(itertools.combinations(range(len(sizes)), 2))
        self.widths = widths
        ends = np.cumsum([widths[a] * widths[b] for a, b in self.pairs]) if self.pairs else np.zeros(0)
        self.starts = (np.concatenate([[0], ends[:-1]]) if self.pairs else ends).astype(np.int64) + self.mains[-1]
        self.count = int(self.mains[-1] + (ends[-1] if self.pairs else 0))
        self.groups = np.repeat(
            np.arange(len(self.pairs) + 1), [self.mains[-1], *(widths[a] * widths[b] for a, b in self.pairs)]
        )

    def columns(self, codes: Codes) -> Ints:
        """Return the coefficients (cells, mains and pairs) that cells have; ``count`` stands for none."""
        wide = codes.astype(np.int64)
        mains = np.where(wide > 0, self.mains[:-1] + wide - 1, self.count)
        column_blocks = [mains]
        for start, (a, b) in zip(self.starts, self.pairs, strict=True):
            has_both = (wide[:, a] > 0) & (wide[:, b] > 0)
            index = start + (wide[:, a] - 1) * self.widths[b] + wide[:, b] - 1
            column_blocks.append(np.where(has_both, index, self.count)[:, None])
        return np.asfortranarray(np.hstack(column_blocks))  # they are read term by term

    def design(self, columns: Ints) -> Floats:
        """Return the design matrix (cells, count) of cells with these columns."""
        matrix = np.zeros((len(columns), self.count + 1))
        np.put_along_axis(matrix, columns, 1.0, axis=1)
        return matrix[:, :-1]


@dataclass(frozen=True, eq=False)
class Posterior:
    """What is known of the coefficients: their ``mean`` and the Cholesky factor of their precision over ``noise``^2.

    ``noise`` is the standard deviation of a reading's log. ``watched`` are rows with a coefficient of their own, and
    ``own`` is the standard deviation of these coefficients (0: no row is watched).
    """

    terms: Terms
    mean: Floats
    factor: Floats
    noise: float
    watched: tuple[int, ...]
    own: float = 0.0

    @cached_property
    def covariance(self) -> Floats:
        """Covariance of all coefficients."""
        inverse = np.linalg.inv(self.factor)
        return np.asarray(self.noise**2 * inverse.T @ inverse)

    def gains(self, columns: Ints) -> Floats:
        """Return the expected log gains over the baseline of cells with these columns, apart from their own."""
        return _sum_coefficients(self.mean, columns, self.terms.count)

    def draws(self, columns: Ints, count: int, chance: np.random.Generator) -> Floats:
        """Return (count, cells) log gains as they may be: so many draws of all coefficients."""
        z = chance.normal(0.0, self.noise, (len(self.mean), count))
        drawn = self.mean[:, None] + np.linalg.solve(self.factor.T, z)
        return np.array([_sum_coefficients(coefficients, columns, self.terms.count) for coefficients in drawn.T])

    def gain_distribution(self, rows: Sequence[int], columns: Ints) -> tuple[Floats, Floats]:
        """Return mean and covariance of the log gains of some rows (with their own part where they are watched)."""
        design = np.hstack([self.terms.design(columns), np.zeros((len(rows), len(self.watched)))])
        for index, row in enumerate(rows):
            if row in self.watched:
                design[index, self.terms.count + self.watched.index(row)] = 1.0
        return design @ self.mean, np.asarray(design @ self.covariance @ design.T)


def _sum_coefficients(values: Floats, columns: Ints, count: int) -> Floats:
    padded = np.append(values[:count], 0.0)
    total = np.zeros(len(columns))
    for column in columns.T:  # a table look-up a term: cells x terms numbers are never held at once
        total += padded[column]
    return total


def fit(
    terms: Terms, columns: Ints, rows: Ints, blocks: Ints, values: Floats, watched: Sequence[int] = ()
) -> Posterior:
    """Learn from readings: log score ``values`` (higher is better) of cells ``rows`` in ``blocks``; columns of all.

    A block with one reading says nothing. With no reading at all the posterior is the prior.
    """
    design = np.hstack([
        terms.design(columns[rows]), (rows[:, None] == np.asarray(watched, dtype=np.int64)[None, :]).astype(np.float64)
    ])  # fmt: skip
    design, centred = _centre_by_block(design, blocks), _centre_by_block(values[:, None], blocks)[:, 0]
    freedom = max(1, len(values) - len(np.unique(blocks)))
    gram, moment, total = design.T @ design, design.T @ centred, float(centred @ centred)
    moments = _Moments(gram, moment, total, freedom)
    groups = np.append(terms.groups, np.full(len(watched), terms.groups.max(initial=0) + 1))
    starts = [_initial_weights(groups, *ratios) for ratios in itertools.product(_LEVEL_RATIOS, _PAIR_RATIOS)]
    weights = start = max(starts, key=moments.evidence)
    for _ in range(_ROUNDS):
        weights = moments.reweighted(weights, start, groups)
    mean, factor, residual = moments.solved(weights)
    noise = float(np.sqrt(residual / freedom))
    own_sd = noise / float(np.sqrt(weights[-1])) if len(watched) else 0.0
    return Posterior(terms, mean, factor, noise, tuple(watched), own_sd)


def _initial_weights(groups: Ints, of_levels: float, of_pairs: float) -> Floats:
    """Return the weight of each coefficient: the noise's variance over its own."""
    weights = np.full(len(groups), of_levels * of_pairs)
    weights[groups == 0] = of_levels
    return weights


@dataclass(frozen=True, eq=False)
class _Moments:
    """All that a ridge needs of its readings, however many there were; ``freedom`` is their number less the blocks'."""

    gram: Floats
    moment: Floats
    total: float
    freedom: int

    def solved(self, weights: Floats) -> tuple[Floats, Floats, float]:
        """Return mean, Cholesky factor of the precision, and the sum of squares that is left."""
        factor = np.asarray(np.linalg.cholesky(self.gram + np.diag(weights)), dtype=np.float64)
        half = np.linalg.solve(factor, self.moment)
        residual = max(self.total - float(half @ half), _SMALLEST**2 * self.freedom)
        return np.asarray(np.linalg.solve(factor.T, half)), factor, residual

    def evidence(self, weights: Floats) -> float:
        """Return the log marginal likelihood, the noise at its most likely, but for a constant."""
        _, factor, residual = self.solved(weights)
        prior, log_determinant = 0.5 * np.log(weights).sum(), np.log(np.diag(factor)).sum()
        return float(prior - log_determinant - 0.5 * self.freedom * np.log(residual))

    def reweighted(self, weights: Floats, start: Floats, groups: Ints) -> Floats:
        """Return weights after a round of expectation maximisation: a group whose effects are small shrinks as one."""
        mean, factor, residual = self.solved(weights)
        noise = residual / self.freedom
        inverse = np.linalg.inv(factor)
        squares = mean**2 / noise + (inverse**2).sum(axis=0)
        counts = np.bincount(groups)
        learned = (np.bincount(groups, squares)[groups] + _PRIOR / start) / (counts[groups] + _PRIOR)
        return np.clip(1.0 / learned, *_WEIGHTS)


def _centre_by_block(values: Floats, blocks: Ints) -> Floats:
    """Return (readings, m) values as differences to the mean of their block."""
    _, block_index = np.unique(blocks, return_inverse=True)
    count = np.bincount(block_index, minlength=1)
    sums = np.zeros((len(count), values.shape[1]))
    np.add.at(sums, block_index, values)
    return np.asarray(values - (sums / np.maximum(count, 1)[:, None])[block_index])
