"""The model of a search: main effects and pairs of levels on a log scale, by Bayesian ridge regression.

Effects of settings mostly add up on a log scale, except for a few pairs. So each level, each pair of levels and each
watched cell (the shortlist) has a coefficient. Readings are differences from their block's mean. The variances of the
coefficients (one per pair of factors) and of the noise maximise the marginal likelihood (MacKay 1992, Neural
Computation 4:415).
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
#: Starting values: noise variance over level-effect variance, and level-effect over pair-effect variance.
_LEVEL_RATIOS = (0.2, 1.0, 5.0)
_PAIR_RATIOS = (3.0, 20.0)
_ROUNDS = 6
#: Weight of the starting value, in coefficients, when the variance of a group is updated.
_PRIOR = 2.0
_WEIGHTS = (1e-3, 1e6)
_SMALLEST = 1e-4


class Terms:
    """The coefficients of a cell: one for each level other than the baseline's, one for each pair of those."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.widths = [size - 1 for size in sizes]
        self.mains = np.cumsum([0, *self.widths])
        self.pairs = list(itertools.combinations(range(len(sizes)), 2))
        counts = [self.widths[a] * self.widths[b] for a, b in self.pairs]
        bounds = self.mains[-1] + np.cumsum([0, *counts])
        self.starts, self.count = bounds[:-1], int(bounds[-1])
        self.groups = np.repeat(np.arange(len(self.pairs) + 1), [self.mains[-1], *counts])

    def columns(self, codes: Codes) -> Ints:
        """Return the coefficient numbers of cells, (cells, mains and pairs); ``count`` means none."""
        wide = codes.astype(np.int64)
        mains = np.where(wide > 0, self.mains[:-1] + wide - 1, self.count)
        column_blocks = [mains]
        for start, (a, b) in zip(self.starts, self.pairs, strict=True):
            has_both = (wide[:, a] > 0) & (wide[:, b] > 0)
            index = start + (wide[:, a] - 1) * self.widths[b] + wide[:, b] - 1
            column_blocks.append(np.where(has_both, index, self.count)[:, None])
        return np.asfortranarray(np.hstack(column_blocks))  # read column by column

    def design(self, columns: Ints) -> Floats:
        """Return the design matrix (cells, count) of cells with these columns."""
        matrix = np.zeros((len(columns), self.count + 1))
        np.put_along_axis(matrix, columns, 1.0, axis=1)
        return matrix[:, :-1]


@dataclass(frozen=True, eq=False)
class Posterior:
    """The coefficients' posterior: ``mean``, and ``factor``, the Cholesky factor of their precision times ``noise``^2.

    ``noise`` is the standard deviation of the log of a reading. ``watched`` are rows with their own coefficient, and
    ``own`` is the standard deviation of those (0: no row is watched).
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
        """Return the expected log gains over the baseline of cells with these columns, without own coefficients."""
        return _sum_coefficients(self.mean, columns, self.terms.count)

    def draws(self, columns: Ints, count: int, chance: np.random.Generator) -> Floats:
        """Return log gains (count, cells), each row from one draw of all coefficients."""
        z = chance.normal(0.0, self.noise, (len(self.mean), count))
        drawn = self.mean[:, None] + np.linalg.solve(self.factor.T, z)
        return np.array([_sum_coefficients(coefficients, columns, self.terms.count) for coefficients in drawn.T])

    def gain_distribution(self, rows: Sequence[int], columns: Ints) -> tuple[Floats, Floats]:
        """Return the mean and covariance of the log gains of rows, with the own coefficients of watched rows."""
        design = np.hstack([self.terms.design(columns), np.zeros((len(rows), len(self.watched)))])
        for index, row in enumerate(rows):
            if row in self.watched:
                design[index, self.terms.count + self.watched.index(row)] = 1.0
        return design @ self.mean, np.asarray(design @ self.covariance @ design.T)


def _sum_coefficients(values: Floats, columns: Ints, count: int) -> Floats:
    padded = np.append(values[:count], 0.0)
    total = np.zeros(len(columns))
    for column in columns.T:  # one lookup per term; a (cells, terms) array would take too much memory
        total += padded[column]
    return total


def fit(
    terms: Terms, columns: Ints, rows: Ints, blocks: Ints, values: Floats, watched: Sequence[int] = ()
) -> Posterior:
    """Fit the model to readings: log scores ``values`` (higher is better) of cells ``rows`` in ``blocks``.

    ``columns`` are those of all cells. A block with one reading adds nothing; without readings, return the prior.
    """
    design = np.hstack(
        [
            terms.design(columns[rows]),
            (rows[:, None] == np.asarray(watched, dtype=np.int64)[None, :]).astype(np.float64),
        ]
    )
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
    """Return the starting weight of each coefficient: the noise variance over its own variance."""
    weights = np.full(len(groups), of_levels * of_pairs)
    weights[groups == 0] = of_levels
    return weights


@dataclass(frozen=True, eq=False)
class _Moments:
    """The sufficient statistics of a ridge regression; ``freedom`` is the number of readings less that of blocks."""

    gram: Floats
    moment: Floats
    total: float
    freedom: int

    def solved(self, weights: Floats) -> tuple[Floats, Floats, float]:
        """Return the mean, the Cholesky factor of the precision, and the residual sum of squares."""
        factor = np.asarray(np.linalg.cholesky(self.gram + np.diag(weights)), dtype=np.float64)
        half = np.linalg.solve(factor, self.moment)
        residual = max(self.total - float(half @ half), _SMALLEST**2 * self.freedom)
        return np.asarray(np.linalg.solve(factor.T, half)), factor, residual

    def evidence(self, weights: Floats) -> float:
        """Return the log marginal likelihood at the most likely noise, up to a constant."""
        _, factor, residual = self.solved(weights)
        prior, log_determinant = 0.5 * np.log(weights).sum(), np.log(np.diag(factor)).sum()
        return float(prior - log_determinant - 0.5 * self.freedom * np.log(residual))

    def reweighted(self, weights: Floats, start: Floats, groups: Ints) -> Floats:
        """Return the weights after one round of expectation maximisation; groups of small effects shrink together."""
        mean, factor, residual = self.solved(weights)
        noise = residual / self.freedom
        inverse = np.linalg.inv(factor)
        squares = mean**2 / noise + (inverse**2).sum(axis=0)
        counts = np.bincount(groups)
        learned = (np.bincount(groups, squares)[groups] + _PRIOR / start) / (counts[groups] + _PRIOR)
        return np.clip(1.0 / learned, *_WEIGHTS)


def _centre_by_block(values: Floats, blocks: Ints) -> Floats:
    """Return values (readings, m) as differences from the mean of their block."""
    _, block_index, counts = np.unique(blocks, return_inverse=True, return_counts=True)
    sums = np.zeros((len(counts), values.shape[1]))
    np.add.at(sums, block_index, values)
    return np.asarray(values - (sums / counts[:, None])[block_index])
