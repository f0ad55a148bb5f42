"""Error rates of runs that are read, resumed and read again until something is decided."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from envmatrix.plan import Plan, make_arms
from envmatrix.stats.effects import ALL_ANALYSES_LEVEL, LEVEL
from envmatrix.stats.inference.maxt import critical_value
from envmatrix.stats.stopping.alpha_spending import confidence_level
from validation.simulated import SIZE, Figure, Floats, absolute_t, over_two_copies, rate, trials_of

_LEAST = 6
_NULL = "any false alarm, {} A/A"


def looked_plan(environments: int, looked: tuple[int, ...]) -> Plan:
    """Return a plan with that many environments, whose run was read at ``looked`` block counts."""
    names = tuple(f"e{index}" for index in range(environments))
    arms = make_arms(names, ("w",), ("e",), "baseline")
    return Plan("looks", arms, 1, _LEAST, 1000, SIZE, SIZE, 1e9, looked=looked)


def _critical(environments: int, at: Sequence[int], level: float | None = None) -> float:
    """Return the critical |t| at the last of several interim analyses."""
    level = level or confidence_level(looked_plan(environments, tuple(at[:-1])), at[-1])
    return critical_value(at[-1], environments, 2, level=level)


def decided(differences: Floats, at: Sequence[int], level: float | None = None) -> NDArray[np.bool_]:
    """Return which of (runs, arms, blocks) are called different at any analysis; ``level`` is the same at each."""
    environments = differences.shape[1]
    found = np.zeros(len(differences), dtype=np.bool_)
    for number, blocks in enumerate(at, 1):
        t = absolute_t(differences[:, :, :blocks])
        found |= (t > _critical(environments, at[:number], level)).any(axis=1)
    return found


def regular(machine: str, environments: int, runs: int, chance: np.random.Generator) -> Iterator[Figure]:
    """Resume after every block, or every five, until one of several identical environments is called different."""
    differences = over_two_copies(trials_of(machine, environments + 2, 100, runs, chance))
    for every, most in ((1, 40), (5, 40), (1, 100), (5, 100)):
        at = range(_LEAST, most + 1, every)
        name = f"resumed every {'block' if every == 1 else f'{every} blocks'} to {most}"
        question = _NULL.format(environments)
        yield rate(question, machine, name, decided(differences, at))
        if every == 1:
            yield rate(question, machine, f"{name}, nothing spent", decided(differences, at, ALL_ANALYSES_LEVEL))


def greedy(machine: str, environments: int, runs: int, chance: np.random.Generator) -> Figure:
    """Resume for 2 blocks if nearly decided, otherwise for 10: the data choose the interim analyses."""
    differences = over_two_copies(trials_of(machine, environments + 2, 40, runs, chance))
    found = np.zeros(runs, dtype=np.bool_)
    waiting: list[tuple[tuple[int, ...], NDArray[np.int64]]] = [((10,), np.arange(runs))]
    while waiting:
        at, who = waiting.pop()
        part = absolute_t(differences[who, :, : at[-1]]).max(axis=1) / _critical(environments, at)
        found[who[part > 1]] = True
        near = (part > 0.8) & (part <= 1)
        for step, chosen in ((10, part <= 0.8), (2, near)):
            if chosen.any() and at[-1] + step <= 40:
                waiting.append(((*at, at[-1] + step), who[chosen]))
    return rate(_NULL.format(environments), machine, "resumed for 2 blocks where near, else 10", found)


def by_hand(machine: str, environments: int, runs: int, chance: np.random.Generator) -> Figure:
    """End the run once the live display shows a lead of 3 %: one uncounted interim analysis."""
    differences = over_two_copies(trials_of(machine, environments + 2, 40, runs, chance))
    open_runs, found = np.ones(runs, dtype=np.bool_), np.zeros(runs, dtype=np.bool_)
    for blocks in range(_LEAST, 41):
        part = differences[:, :, :blocks]
        ends = open_runs & ((part.mean(axis=2).max(axis=1) > SIZE) | (blocks == 40))
        found |= ends & (absolute_t(part) > _critical(environments, (blocks,))).any(axis=1)
        open_runs &= ~ends
    return rate(_NULL.format(environments), machine, "ended by hand at 3 % ahead", found)


def price(machine: str, environments: int, runs: int, chance: np.random.Generator) -> Iterator[Figure]:
    """Yield how often a true 3 % is found with one or several interim analyses: their cost and benefit."""
    differences = over_two_copies(trials_of(machine, environments + 2, 40, runs, chance))
    differences[:, 0] += np.log1p(SIZE)
    question = f"a true {SIZE:.0%} among {environments} found"
    for at, level, name in (
        ((20,), ALL_ANALYSES_LEVEL, "one look at 20 blocks, nothing kept back"),
        ((20,), LEVEL, "one look at 20 blocks"),
        ((10, 20), None, "looks at 10 and 20 blocks"),
        ((10, 20, 40), None, "looks at 10, 20 and 40 blocks"),
    ):
        yield rate(question, machine, name, decided(differences, at, level))


def looks(machine: str, runs: int, chance: np.random.Generator) -> list[Figure]:
    """Simulate runs that are resumed, with a quarter of ``runs`` each."""
    runs = max(20, runs // 4)
    figures: list[Figure] = []
    for environments in (1, 3, 9):
        figures += regular(machine, environments, runs, chance)
        figures.append(greedy(machine, environments, runs, chance))
        figures.append(by_hand(machine, environments, runs, chance))
    return [*figures, *price(machine, 1, runs, chance), *price(machine, 9, runs, chance)]
