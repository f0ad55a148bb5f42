"""Slow trials of one environment: how often they are detected, and the coverage of intervals with and without them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from envmatrix.stats.effect_estimation import estimate
from envmatrix.stats.quality.slow_trials import find_slow_trials
from validation.noise import NOISES
from validation.simulated import SIZE, Figure, Floats, rate
from validation.simulated_models import ARMS, MARKED
from validation.simulated_table import measured_of, plan_of

#: Slow trials (count, of blocks), their slowdowns, and the noise of a trial.
_COUNTS = ((1, 10), (3, 10), (4, 10), (1, 20), (5, 20), (8, 20), (2, 40), (10, 40), (16, 40))
_SLOWER = (0.1, 0.25, 0.5, 1.0)
_NOISES = (SIZE, 0.08)
#: Shares of slow processes in coverage simulations, and numbers of blocks.
_SHARES, _BLOCKS = (0.05, 0.1, 0.2, 0.3, 0.4), (10, 20)
_QUIET = "none slow"


def _seen(noise: float, count: int, blocks: int, slower: float, runs: int, chance: np.random.Generator) -> Figure:
    """Return how often any of the ``count`` slow trials of an environment is called slow."""
    found = []
    for _ in range(runs):
        logs = chance.normal(0.0, noise, (len(ARMS), blocks))
        logs[MARKED, :count] -= np.log1p(slower)
        found.append(bool(find_slow_trials(logs)[MARKED].any()))
    name = f"{count} of {blocks} are {slower:.0%} slower" if count else f"{_QUIET}, {blocks} blocks"
    return rate("slow trials are told", f"noise of {noise:.0%}", name, np.array(found))


def _detection(runs: int, chance: np.random.Generator) -> Iterator[Figure]:
    for noise in _NOISES:
        for blocks in dict.fromkeys(blocks for _, blocks in _COUNTS):
            yield _seen(noise, 0, blocks, 0.0, runs, chance)
        for count, blocks in _COUNTS:
            for slower in _SLOWER:
                yield _seen(noise, count, blocks, slower, runs, chance)


def _mixed(share: float, slower: float, blocks: int, chance: np.random.Generator) -> Floats:
    """Draw a run whose marked environment equals the others, except for a share of slow processes."""
    logs = chance.normal(0.0, SIZE, (len(ARMS), blocks))
    logs[MARKED] -= np.log1p(slower) * (chance.random(blocks) < share)
    return logs


def _covered(share: float, slower: float, blocks: int, runs: int, chance: np.random.Generator) -> Iterator[Figure]:
    """Compare the interval with the mean of all processes and a usual one, also if no slow trial was found."""
    usual, mean = 0.0, -share * float(np.log1p(slower))
    plan, rows = plan_of(blocks), []
    for _ in range(runs):
        analysis = estimate(plan, measured_of(_mixed(share, slower, blocks, chance)), metrics=())
        effect = analysis.find(ARMS[MARKED].name)
        if effect and effect.low is not None and effect.high is not None:
            inside = [bool(np.log(effect.low) <= true <= np.log(effect.high)) for true in (usual, mean)]
            rows.append((bool(analysis.slow[MARKED].any()), *inside, effect.verdict == "faster"))
    seen, of_usual, of_mean, faster = np.array(rows, dtype=np.bool_).T
    name = f"{share:.0%} of processes {slower:.0%} slower, {blocks} blocks"
    yield rate("slow trials are told", "shares", name, seen)
    yield rate("the interval misses both truths", "shares", name, ~of_usual & ~of_mean)
    yield rate("the interval misses a usual process", "shares", name, ~of_usual)
    yield rate("the interval misses the mean of all", "shares", name, ~of_mean)
    yield rate("it is called faster", "shares", name, faster)
    if not seen.all():
        unseen = ~seen
        yield rate("not told: it misses both truths", "shares", name, (~of_usual & ~of_mean)[unseen])
        yield rate("not told: it misses the mean of all", "shares", name, ~of_mean[unseen])


def slow_processes(machine: str, runs: int, chance: np.random.Generator) -> list[Figure]:
    """Return the effect of slow processes in one of three environments, with a tenth of ``runs`` each; run once."""
    if machine != next(iter(NOISES)):
        return []
    runs = max(20, runs // 10)
    cells = [(share, slower, blocks) for blocks in _BLOCKS for share in _SHARES for slower in _SLOWER]
    return [
        *_detection(runs, chance),
        *(figure for share, slower, blocks in cells for figure in _covered(share, slower, blocks, runs, chance)),
    ]
