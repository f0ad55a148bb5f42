"""Simulated worlds to search: levels that help, harm or do nothing, pairs, failing cells, noise with drift.

``python -m validation.simulation --tune`` (or ``nox -s statistics -- --tune``) compares the search with usual methods:
the best reading of random cells, one factor at a time, and TPE if Optuna is installed (nox installs it). ``--tune
--nodes 1 4`` searches on that many nodes, each with its own drift.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envmatrix.search.answer import contributions
from envmatrix.search.candidate_selection import EQUAL_GAIN, simplify_row
from envmatrix.search.next_trials import REFERENCES, Batch, Budget, Proposal, Search
from envmatrix.search.space import Codes, Space
from envmatrix.stats.best_environment import told_gain
from envmatrix.stats.effects import LEVEL
from envmatrix.stats.inference.maxt import critical_value
from envmatrix.stats.pairing import summarise_pairs
from envmatrix.stats.selftest import autoregressive
from validation.simulated import Figure, over_two_copies, rate

Floats = NDArray[np.float64]
#: Ten factors: 51,840 cells before constraints.
SIZES = (4, 4, 3, 3, 3, 2, 2, 2, 5, 3)
TRIALS = 300
#: A search with few cells (72 before constraints) and few trials.
FEW = (4, 3, 3, 2)
FEW_TRIALS = 100
NOISES = (0.03, 0.08)
#: The search's constants were chosen on lower-numbered worlds; results use worlds from this one on.
FIRST = 1000
_PAIRS = 4
_DRIFT_LASTS = 0.98  # about fifty trials


@dataclass(eq=False)
class World:
    """A space, the true log gain of each cell, its failing cells, and machines with drifting noise.

    ``drift`` is (nodes, trials). ``trials`` is the budget, ``ran`` the number run so far, ``rounds`` the number of
    sequential rounds.
    """

    space: Space
    gains: Floats
    failing: NDArray[np.bool_]
    size: float
    chance: np.random.Generator
    drift: Floats
    trials: int = TRIALS
    ran: int = 0
    rounds: int = 0

    def trial(self, row: int, node: int = 0, at: int | None = None) -> float:
        """Run a cell in round ``at`` (None: after all others); return its log score, nan if it fails."""
        at = self.rounds if at is None else at
        slow = float(self.drift[node, at % self.drift.shape[1]])
        self.ran += 1
        self.rounds = max(self.rounds, at + 1)
        noise = float(self.chance.normal(0.0, self.size))
        return float("nan") if self.failing[row] else float(self.gains[row]) + slow + noise

    def batch(self, proposal: Proposal) -> Batch:
        """Run blocks in random order on all nodes in parallel; the next batch waits for the last node."""
        nodes, begun = len(self.drift), self.rounds
        ran = [0] * nodes
        cells = np.array([0, 0, *proposal.rows])
        dealt = np.arange(len(proposal.rows)) % proposal.parts
        scores = np.full((len(cells), proposal.blocks), np.nan)
        broken = np.zeros(scores.shape, np.int64)
        for block in range(proposal.blocks):
            there, node = np.append([0, 1], REFERENCES + np.flatnonzero(dealt == block % proposal.parts)), block % nodes
            for at in self.chance.permutation(there):
                scores[at, block] = self.trial(int(cells[at]), node, begun + ran[node])
                broken[at, block] = np.isnan(scores[at, block])
                ran[node] += 1
        return Batch(proposal.phase, proposal.rows, scores, broken)

    @property
    def best(self) -> float:
        """Return the largest possible gain, as a fraction."""
        return float(np.expm1(np.where(self.failing, -np.inf, self.gains).max()))


@dataclass(frozen=True)
class Found:
    """Result of a method: the chosen cell, its claimed gain and interval, as log ratios (None: no claim).

    ``guesses``: whether the model's interval for each setting's contribution contains the truth.
    """

    row: int
    claimed: float
    low: float | None = None
    high: float | None = None
    guesses: tuple[bool, ...] = ()


@lru_cache(maxsize=2)
def _all_cells(sizes: tuple[int, ...]) -> Codes:
    return np.array(list(itertools.product(*map(range, sizes))), dtype=np.int16)


def world(
    number: int, size: float, sizes: tuple[int, ...] = SIZES, nodes: int = 1, trials: int = TRIALS
) -> World:  # fmt: skip
    """Return a world with these levels per factor, determined by number and noise; more nodes do not change it."""
    chance = np.random.default_rng((20_261_122, number))
    mains = [np.zeros(levels) for levels in sizes]
    for effects in mains:
        kinds = chance.random(len(effects) - 1)
        helps, harms = np.abs(chance.normal(0.0, 0.06, (2, len(effects) - 1)))
        effects[1:] = np.where(kinds < 0.4, 0.0, np.where(kinds < 0.7, helps, -2.0 * harms))
    cells = _all_cells(sizes)
    gains = np.sum([effects[cells[:, factor]] for factor, effects in enumerate(mains)], axis=0)
    couples = list(itertools.combinations(range(len(sizes)), 2))
    for at in chance.choice(len(couples), _PAIRS, replace=False):
        a, b = couples[at]
        table = chance.normal(0.0, 0.04, (sizes[a], sizes[b]))
        table[0], table[:, 0] = 0.0, 0.0
        gains += table[cells[:, a], cells[:, b]]
    failing, impossible = (_some_pairs(cells, couples, chance) for _ in range(2))
    possible = ~impossible
    names = tuple(f"f{factor}" for factor in range(len(sizes)))
    levels = tuple(tuple(f"l{level}" for level in range(levels)) for levels in sizes)
    space = Space(names, levels, cells[possible], {})
    noise = np.random.default_rng((20_261_123, number))
    drift = autoregressive(1, 4 * TRIALS, size / 2, _DRIFT_LASTS, noise)
    if nodes > 1:
        further = np.random.default_rng((20_261_124, number))
        drift = np.vstack([drift, autoregressive(nodes - 1, 4 * TRIALS, size / 2, _DRIFT_LASTS, further)])
    return World(space, gains[possible], failing[possible], size, noise, drift, trials)


def _some_pairs(cells: Codes, couples: Sequence[tuple[int, int]], chance: np.random.Generator) -> NDArray[np.bool_]:
    """Return the cells that contain one of two pairs of levels."""
    found, sizes = np.zeros(len(cells), dtype=np.bool_), cells.max(axis=0) + 1
    for at in chance.integers(0, len(couples), 2):
        a, b = couples[at]
        found |= (cells[:, a] == chance.integers(1, sizes[a])) & (cells[:, b] == chance.integers(1, sizes[b]))
    return found


def tuned(there: World) -> Found:
    """Search like ``envmatrix tune``, on the world's number of nodes."""
    search, batches = Search(there.space, width=len(there.drift)), list[Batch]()
    while step := search.next_step(batches, Budget(there.trials, there.trials - there.ran)):
        batches.append(there.batch(step))
    if batches[-1].phase != "confirm":
        return Found(0, 0.0)
    differences = over_two_copies(batches[-1].scores[None])[0]
    seen = summarise_pairs(differences[:, np.isfinite(differences[0])])
    mean, error = float(seen.mean[0]), float(seen.error[0])
    reach = critical_value(int(seen.blocks[0]), 1, REFERENCES, level=LEVEL) * error
    row = batches[-1].rows[0] if mean - reach > 0 else 0
    told = told_gain(mean, mean - reach, error) if row else 0.0
    return Found(row, told, mean - reach, mean + reach, _guesses(there, search, batches))


def _guesses(there: World, search: Search, batches: list[Batch]) -> tuple[bool, ...]:
    """Return, for each confirmed setting, whether the model's interval for its contribution contains the truth."""
    row, space = batches[-1].rows[0], there.space
    names = [space.factors[at] for at in np.flatnonzero(space.codes[row])]
    fewer = dict(zip(names, space.rows_without_one_setting(row), strict=True))
    return tuple(
        one.low <= np.exp(there.gains[row] - there.gains[fewer[one.factor]]) <= one.high
        for one in contributions(search, batches, row)
        if fewer[one.factor] or len(names) == 1
    )


def random_maximum(there: World) -> Found:
    """Try random cells once each, every tenth one the baseline; take the highest reading."""
    rows = there.chance.integers(0, len(there.space.codes), there.trials)
    rows[::10] = 0
    scores = np.array([there.trial(int(row)) for row in rows])
    at = int(np.nanargmax(scores))
    return Found(int(rows[at]), float(scores[at] - np.nanmean(scores[::10])))


def one_factor_at_a_time(there: World) -> Found:
    """Try each single level repeatedly until the trials are used; combine the best level of each factor."""
    codes = there.space.codes
    alone = [0, *np.flatnonzero((codes > 0).sum(axis=1) == 1).tolist()]
    sums, counts = np.zeros(len(alone)), np.zeros(len(alone))
    for number in range(there.trials):
        score = there.trial(alone[number % len(alone)])
        if np.isfinite(score):
            sums[number % len(alone)] += score
            counts[number % len(alone)] += 1
    means = np.where(counts > 0, sums / np.maximum(counts, 1), -np.inf)
    joined, claimed = np.zeros(codes.shape[1], np.int16), 0.0
    for factor in range(codes.shape[1]):
        gains = [(means[at] - means[0], row) for at, row in enumerate(alone) if codes[row, factor] > 0]
        gain, row = max(gains, default=(0.0, 0))
        if gain > 0:
            joined[factor], claimed = codes[row, factor], claimed + float(gain)
    found = np.flatnonzero((codes == joined).all(axis=1))
    row = int(found[0]) if found.size and not there.failing[found[0]] else 0  # an impossible cell gives the baseline
    return Found(row, claimed)


def tpe(there: World) -> Found:
    """Let Optuna's TPE propose every cell, and claim its best value. Impossible cells cost it no trial."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    at = {cell.tobytes(): row for row, cell in enumerate(there.space.codes)}
    base = float(np.mean([there.trial(0) for _ in range(10)]))

    def objective(trial: Any) -> float:  # an optuna.Trial
        names, levels = there.space.factors, there.space.sizes
        cell = [trial.suggest_categorical(name, list(range(size))) for name, size in zip(names, levels, strict=True)]
        row = at.get(np.array(cell, dtype=np.int16).tobytes())
        score = float("nan") if row is None else there.trial(row)
        if row is None or np.isnan(score):
            raise optuna.TrialPruned
        trial.set_user_attr("row", row)
        return score

    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=1))
    ends = [lambda of, _: of.stop() if there.ran >= there.trials else None]
    study.optimize(objective, n_trials=4 * there.trials, callbacks=ends)  # it may repeat impossible cells
    return Found(int(study.best_trial.user_attrs["row"]), float(study.best_value) - base)


METHODS: Mapping[str, Callable[[World], Found]] = {
    "envmatrix tune": tuned,
    "random, the maximum": random_maximum,
    "one factor at a time": one_factor_at_a_time,
}


def searched(
    name: str, size: float, first: int, worlds: int, sizes: tuple[int, ...] = SIZES, nodes: int = 0,
    trials: int = TRIALS,
) -> list[Figure]:  # fmt: skip
    """Search worlds with one method; return the share of the best gain it finds, and the error of its claim.

    ``nodes``: also report the number of sequential rounds (0: one node, not reported).
    """
    shares, off, worse, holds, rounds, idle, guesses = [], [], [], [], [], [], list[bool]()
    for number in range(first, first + worlds):
        there = world(number, size, sizes, max(1, nodes), trials)
        found = {**METHODS, "Optuna TPE, best value": tpe}[name](there)
        true = float(there.gains[found.row])
        if there.best > EQUAL_GAIN:  # otherwise there is nothing to find
            shares.append(np.expm1(true) / there.best)
        idle.append(idle_settings(there, found.row))
        if found.row or found.claimed > 0:  # no claim, no error
            off.append(100 * (np.expm1(found.claimed) - np.expm1(true)))
        guesses += found.guesses
        worse.append(true < 0)
        if found.low is not None and found.high is not None and found.row:
            holds.append(found.low <= true <= found.high)
        rounds.append(there.rounds)
    machine = f"noise {size:.0%}"
    name = f"{name}, {nodes} node{'' if nodes == 1 else 's'}" if nodes else name
    name = name if trials == TRIALS else f"{name}, {trials} trials"
    told = [
        Figure("share of the best possible gain", machine, name, float(np.mean(shares)), None, None, worlds),
        Figure("claimed minus true, points", machine, name, float(np.mean(off)), None, None, len(off)),
        rate("worse than the baseline", machine, name, np.array(worse, dtype=np.bool_)),
        Figure("settings that bring nothing", machine, name, float(np.mean(idle)), None, None, worlds),
    ]
    told += [rate("the interval holds the truth", machine, name, np.array(holds))] if holds else []
    told += [rate("the model's guess holds the truth", machine, name, np.array(guesses))] if guesses else []
    clock = Figure("trials one after the other", machine, name, float(np.mean(rounds)), None, None, worlds)
    return [*told, clock] if nodes else told


def idle_settings(there: World, row: int) -> int:
    """Return how many settings of a cell could be removed while losing at most EQUAL_GAIN of its true gain."""
    gains = np.where(there.failing, -np.inf, there.gains)
    codes = there.space.codes
    needed = simplify_row(row, there.space, gains)
    return int((codes[row] > 0).sum() - (codes[needed] > 0).sum())


def on_nodes(
    several: Sequence[int], first: int = FIRST, worlds: int = 200, sizes: tuple[int, ...] = SIZES
) -> Iterator[Figure]:
    """Yield docs/tune.md's results on several nodes: the same total of trials, on that many nodes."""
    for size, nodes in itertools.product(NOISES, several):
        yield from searched("envmatrix tune", size, first, worlds, sizes, nodes)


def searches(first: int = FIRST, worlds: int = 200) -> Iterator[Figure]:
    """Yield docs/tune.md's results, each method and noise level as soon as it is ready."""
    for size, name in itertools.product(NOISES, METHODS):
        yield from searched(name, size, first, worlds)
    with suppress(ImportError):
        for size in NOISES:
            yield from searched("Optuna TPE, best value", size, first, worlds)
    for size in NOISES:
        yield from searched("envmatrix tune", size, first, worlds, FEW, trials=FEW_TRIALS)
