"""The proposals of a search for the best cell of a space; they depend only on the readings so far.

Phase ``evidence`` runs each level once, and the named recipes; ``screen`` a balanced design, then Thompson sampling
(Thompson 1933). ``race`` runs a shortlist on complete blocks and drops weak cells. ``confirm`` measures the winner on
fresh blocks against two copies of the baseline; only this phase gives its gain.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from envmatrix.search.bayesian_regression import Floats, Ints, Posterior, Terms, fit
from envmatrix.search.candidate_selection import (
    CellStatus,
    choice_pool_and_first_picks,
    known_gains,
    simplest_best_row,
    simplify_row,
    surviving_rows,
)
from envmatrix.search.space import Space
from envmatrix.stats.meta_analysis.effects_for_ordering import KnownEffect

Phase = Literal["evidence", "screen", "race", "confirm"]
#: The baseline and its copy, which are in every block.
REFERENCES = 2
#: Fewest blocks of a conclusion.
MIN_BLOCKS = 6
#: Fractions of all trials at which balanced design, screen and race end; chosen by simulation (docs/tune.md).
BALANCED, SCREENED, RACED = 0.30, 0.55, 0.70
_BLOCK_SIZE, _MIN_BLOCK_SIZE = 12, 4
#: Fewest steps of a screen if blocks run in parallel, so that the search can learn between them.
_MIN_SCREEN_STEPS = 6
_SHORTLIST_SIZE = 8
_MIN_RACE_SIZE = 2
_POOL_SIZE = 400


@dataclass(frozen=True, eq=False)
class Batch:
    """Candidates that ran together: ``scores`` (2 + rows, blocks) are logs, higher is better, nan if missing.

    The first two rows are the baseline and its copy. ``broken`` counts failures: 1 for a failed trial, 2 for one that
    would fail again (a check that failed, an image that is not available).
    """

    phase: Phase
    rows: tuple[int, ...]
    scores: Floats
    broken: Ints

    @property
    def trials(self) -> int:
        """The number of trials that ran."""
        return int((np.isfinite(self.scores) | (self.broken > 0)).sum())

    def observed_gains(self) -> Floats:
        """Return the log gains of candidates over the mean of their block's references, (rows, blocks), or nan."""
        references = self.scores[:REFERENCES]
        ran = np.isfinite(references).sum(axis=0)
        return np.asarray(self.scores[REFERENCES:] - np.nansum(references, axis=0) / np.where(ran, ran, np.nan))

    def gains_by_trial(self) -> Iterator[tuple[int, float]]:
        """Yield the row and the log gain of each trial of a candidate, NaN if it failed."""
        for gains, broken in zip(self.observed_gains().T, self.broken[REFERENCES:].T, strict=True):
            for row, gain, failed in zip(self.rows, gains.tolist(), broken.tolist(), strict=True):
                if failed or np.isfinite(gain):
                    yield row, float("nan") if failed else gain


@dataclass(frozen=True)
class Proposal:
    """The next step: ``blocks`` blocks of the baseline, its copy and ``rows`` of the space.

    With several ``parts`` there are as many blocks, and each row runs in one of them.
    """

    phase: Phase
    rows: tuple[int, ...]
    blocks: int
    parts: int = 1


@dataclass(frozen=True)
class Budget:
    """The number of trials for the whole search, and how many of them are left."""

    total: float
    left: float

    @property
    def spent_fraction(self) -> float:
        """The fraction that is spent."""
        return 1.0 - self.left / self.total if self.total else 1.0


class Search:
    """A search over a space, which proposes the next step. ``seed`` fixes all random choices.

    ``width`` machines run one block each at a time; candidates are split among them, each with its own baseline.
    ``sampler`` names an Optuna sampler that proposes cells to screen instead of the model ('': none). ``known`` effects
    say which cells the balanced design shows first, and which last.
    """

    def __init__(
        self, space: Space, seed: int = 1, width: int = 1, sampler: str = "", known: Sequence[KnownEffect] = ()
    ) -> None:
        self.space = space
        self.seed = seed
        self.width = width
        self.sampler = sampler
        self.known_gains = known_gains(space, known)
        self.terms = Terms(space.sizes)

    @cached_property
    def columns(self) -> Ints:
        """The coefficient numbers of every cell."""
        return self.terms.columns(self.space.codes)

    @cached_property
    def _factor_pairs(self) -> tuple[Ints, Ints, Ints]:
        """Each pair of factors and the number of its first pair of levels; the last number is the total."""
        first_factor, second_factor = np.triu_indices(len(self.space.sizes), 1)
        sizes = np.array(self.space.sizes, np.int64)
        return first_factor, second_factor, np.append(0, np.cumsum(sizes[first_factor] * sizes[second_factor]))

    def level_pairs(self, rows: Sequence[int] | Ints) -> Ints:
        """Return the level pairs of cells as numbers (rows, pairs of factors), with the baseline's levels included."""
        first_factor, second_factor, starts = self._factor_pairs
        codes = self.space.codes[np.asarray(rows, np.int64)].astype(np.int64)
        return np.asarray(
            starts[:-1] + codes[:, first_factor] * np.array(self.space.sizes)[second_factor] + codes[:, second_factor]
        )

    @cached_property
    def first(self) -> tuple[int, ...]:
        """Cells that cover each level once, each with as few other settings as possible, and the named recipes."""
        codes = self.space.codes
        settings = (codes > 0).sum(axis=1)
        selected: dict[int, None] = {}
        for factor, size in enumerate(self.space.sizes):
            for level in range(1, size):
                rows = np.flatnonzero(codes[:, factor] == level)
                if rows.size:
                    selected[int(rows[np.argmin(settings[rows])])] = None
        selected |= dict.fromkeys(sorted(self.space.named.values()))
        return tuple(selected)

    def fewest_trials(self) -> int:
        """Return the fewest trials that can confirm anything: the first cells, an equal screen, a confirmation."""
        first_trials = len(self.first) + REFERENCES * self._parts(len(self.first))
        return max(2 * first_trials, _BLOCK_SIZE) + math.ceil(
            (MIN_BLOCKS * (1 + REFERENCES)) / (1 - RACED) * (1 - SCREENED)
        )

    def known(self, batches: Sequence[Batch], dropped: Iterable[tuple[int, int]] = ()) -> CellStatus:
        """Return which cells may still be proposed; ``dropped`` are levels (factor, level) without an effect."""
        good, bad = np.zeros(len(self.space.codes), np.int64), np.zeros(len(self.space.codes), np.int64)
        for batch in batches:
            rows = np.array(batch.rows, np.int64)
            np.add.at(good, rows, np.isfinite(batch.scores[REFERENCES:]).sum(axis=1))
            np.add.at(bad, rows, batch.broken[REFERENCES:].sum(axis=1))
        return CellStatus(self.space.codes, self.space.sizes, good, bad, tuple(dropped))

    def posterior(self, batches: Sequence[Batch]) -> Posterior:
        """Fit the model to all readings except those of confirmations."""
        blocks = [
            ((0, 0, *batch.rows), scores)
            for batch in batches
            if batch.phase != "confirm"
            for scores in batch.scores.T.tolist()
        ]
        readings = [
            (row, number, score)
            for number, (rows, scores) in enumerate(blocks)
            for row, score in zip(rows, scores, strict=True)
            if math.isfinite(score)
        ]
        rows, numbers, values = np.array(readings, np.float64).reshape(-1, 3).T
        watched = sorted({row for batch in batches if batch.phase == "race" for row in batch.rows})
        return fit(self.terms, self.columns, rows.astype(np.int64), numbers.astype(np.int64), values, watched)

    def next_step(
        self, batches: Sequence[Batch], budget: Budget, dropped: Iterable[tuple[int, int]] = ()
    ) -> Proposal | None:
        """Return the next step, None if the search is over; it depends only on the arguments."""
        if not batches:
            return self._deal_rows("evidence", self.first)
        if batches[-1].phase == "confirm":
            if np.isfinite(batches[-1].scores[:REFERENCES]).any():
                return None
            return self.next_step(batches[:-1], budget, dropped)  # its baseline never ran: repeat the confirmation
        status = self.known(batches, dropped)
        chance = np.random.default_rng((self.seed, len(batches)))
        trials_left = SCREENED * budget.total - (budget.total - budget.left)
        size = self._block_size(budget.total)
        affordable = int(min(size * self.width, trials_left - REFERENCES * self.width))
        if affordable >= self.width * (size // 2) and batches[-1].phase != "race":
            rows = (
                self._balanced(batches, status, affordable, chance)
                if budget.spent_fraction < BALANCED
                else self._promising(batches, status, affordable, chance)
            )
            if rows:
                return self._deal_rows("screen", rows)
        posterior = self.posterior(batches)
        rows = self._race_rows(batches, status, posterior, chance)
        trials_left = RACED * budget.total - (budget.total - budget.left)
        fits = int(min(trials_left, budget.left - MIN_BLOCKS * (1 + REFERENCES))) - REFERENCES
        if batches[-1].phase != "race" and fits >= _MIN_RACE_SIZE:
            rows = rows[:fits]  # without a race, only screened cells can be confirmed
        if (len(rows) > 1 or not status.worked[list(rows)].all()) and trials_left >= len(rows) + REFERENCES:
            return Proposal("race", rows, max(1, min(self.width, int(trials_left / (len(rows) + REFERENCES)))))
        winner = self.winner(batches, dropped, posterior)
        blocks = max(MIN_BLOCKS, int(budget.left / (1 + REFERENCES)))
        return Proposal("confirm", (winner,), blocks) if winner else None

    def _block_size(self, trials: float) -> int:
        """Return the candidates per block: fewer if large blocks would leave few steps to learn from."""
        if self.width == 1:
            return _BLOCK_SIZE
        block_trials = SCREENED * trials / (_MIN_SCREEN_STEPS * self.width)
        return int(min(_BLOCK_SIZE, max(_MIN_BLOCK_SIZE, block_trials - REFERENCES)))

    def _parts(self, rows: int) -> int:
        """Return the number of blocks that ``rows`` candidates are split into."""
        return max(1, min(self.width, rows))

    def _deal_rows(self, phase: Phase, rows: tuple[int, ...]) -> Proposal:
        parts = self._parts(len(rows))
        return Proposal(phase, rows, parts, parts)

    def winner(self, batches: Sequence[Batch], dropped: Iterable[tuple[int, int]], posterior: Posterior) -> int:
        """Return the row to confirm, the same one if a confirmation has begun; 0 if nothing is expected to gain.

        Only cells with a good trial are confirmed, because the model cannot know whether others run at all.
        ``posterior`` is the fit of these batches.
        """
        confirmed = [batch.rows[0] for batch in batches if batch.phase == "confirm"]
        if confirmed:
            return confirmed[-1]
        status = self.known(batches, dropped)
        rows = [row for row in posterior.watched if status.allowed[row]] or list(self._shortlist(status, posterior))
        usable = status.allowed & status.worked
        rows = [row for row in rows if usable[row]] or (np.flatnonzero(usable[1:]) + 1).tolist()
        if not rows:
            return 0
        mean, _ = posterior.gain_distribution(rows, self.columns[rows])
        winner_row = simplest_best_row(rows, mean, self.space.codes)
        return winner_row if float(mean[rows.index(winner_row)]) > 0 else 0

    def _balanced(
        self, batches: Sequence[Batch], status: CellStatus, count: int, chance: np.random.Generator
    ) -> tuple[int, ...]:
        """Return the cells with the least-seen pairs of levels, the baseline's levels included; new cells first."""
        seen_rows = [row for batch in batches for row in batch.rows]
        usable = np.flatnonzero(status.allowed)[1:]
        unseen_rows = np.setdiff1d(usable, seen_rows)
        usable, selected = choice_pool_and_first_picks(
            unseen_rows if len(unseen_rows) >= count else usable, self.known_gains, count
        )
        seen_pairs = self.level_pairs([*seen_rows, *selected])
        pair_counts = np.bincount(seen_pairs.ravel(), minlength=self._factor_pairs[2][-1])
        for _ in range(min(count, len(usable)) - len(selected)):
            pool = np.setdiff1d(chance.choice(usable, min(_POOL_SIZE, len(usable)), replace=False), selected)
            if not pool.size:
                break
            row = int(pool[np.argmax((1.0 / (1.0 + pair_counts))[self.level_pairs(pool)].sum(axis=1))])
            pair_counts[self.level_pairs([row])] += 1
            selected.append(row)
        return tuple(selected)

    def _promising(
        self, batches: Sequence[Batch], status: CellStatus, count: int, chance: np.random.Generator
    ) -> tuple[int, ...]:
        """Return cells that may be the best: the best of one draw of the model each, or the sampler's proposals."""
        if self.sampler:
            from envmatrix.search.optuna_sampler import propose_rows

            row_gains = [row_gain for batch in batches for row_gain in batch.gains_by_trial()]
            seed = (self.seed, len(batches))
            return propose_rows(self.space, row_gains, status.allowed, count, self.sampler, seed)
        posterior = self.posterior(batches)
        excluded = ~status.allowed
        excluded[0] = True
        selected: dict[int, None] = {}
        for drawn in posterior.draws(self.columns, min(count, int((~excluded).sum())), chance):
            drawn[excluded] = -np.inf
            row = int(np.argmax(drawn))
            selected[row] = None
            excluded[row] = True
        return tuple(selected)

    def _shortlist(self, status: CellStatus, posterior: Posterior) -> tuple[int, ...]:
        """Return the most promising cells, simplified as far as the model expects no loss."""
        gains = posterior.gains(self.columns)
        gains[~status.allowed] = -np.inf
        gains[0] = -np.inf
        selected: dict[int, None] = {}
        for row in np.argsort(-gains)[: 4 * _SHORTLIST_SIZE]:
            if np.isfinite(gains[row]):
                selected[simplify_row(int(row), self.space, gains)] = None
            if len(selected) == _SHORTLIST_SIZE:
                break
        return tuple(row for row in selected if row)

    def _race_rows(
        self, batches: Sequence[Batch], status: CellStatus, posterior: Posterior, chance: np.random.Generator
    ) -> tuple[int, ...]:
        if batches[-1].phase != "race":
            return self._shortlist(status, posterior)
        rows = [row for row in batches[-1].rows if status.allowed[row]]
        return surviving_rows(rows, *posterior.gain_distribution(rows, self.columns[rows]), chance) if rows else ()
