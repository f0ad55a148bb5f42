"""Gates and 'same' at their limits: how often one-sided bounds err, and how many blocks they save."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from envmatrix.stats.effects import LEVEL, level_of_one_sided_bounds
from envmatrix.stats.inference.maxt import critical_value
from envmatrix.stats.stopping.alpha_spending import confidence_level
from envmatrix.stats.stopping.precision import CONFIRMATIONS
from validation.noise import NOISES
from validation.simulated import SIZE, Figure, Floats, over_two_copies, rate, standard_errors
from validation.simulated_looks import looked_plan

_ENVIRONMENTS, _BLOCKS, _LEAST, _MOST = (1, 4, 9), (6, 8, 16, 32), 6, 40
#: Half-widths at which a run ends, in standard deviations of a trial.
_TARGETS = (0.9, 0.7, 0.55)
#: The share of runs that give a true answer after the blocks that are counted.
_POWER = 0.8
Draw = Callable[[tuple[int, ...], np.random.Generator], Floats]
#: Answer -> which runs give it.
Errs = Mapping[str, NDArray[np.bool_]]


def _skewed(shape: tuple[int, ...], chance: np.random.Generator) -> Floats:
    return np.asarray(1.0 - chance.exponential(1.0, shape))


def _one_skewed(shape: tuple[int, ...], chance: np.random.Generator) -> Floats:
    """Draw normal trials; those of the last environment have five times the noise, with an exponential tail."""
    logs = chance.standard_normal(shape)
    logs[:, -1] = 5.0 * _skewed(logs[:, -1].shape, chance)
    return logs


#: Log speeds of trials with mean 0. Their standard deviation is 1, unless only one environment is skewed.
NOISE: Mapping[str, Draw] = {
    "normal": lambda shape, chance: chance.standard_normal(shape),
    "skewed": _skewed,
    "heavy tails": lambda shape, chance: chance.standard_t(3, shape) / np.sqrt(3.0),
    "one skewed": _one_skewed,
}


class Runs:
    """Means and errors of simulated runs after each number of blocks: (runs, environments)."""

    def __init__(self, draw: Draw, environments: int, blocks: int, runs: int, chance: np.random.Generator) -> None:
        differences = over_two_copies(draw((runs, environments + 2, blocks), chance))
        first = {count: differences[:, :, :count] for count in range(_LEAST, blocks + 1)}
        self.mean = {count: part.mean(axis=2) for count, part in first.items()}
        self.error = {count: standard_errors(part) for count, part in first.items()}
        self.environments = environments

    def reach(self, blocks: int, level: float = LEVEL) -> Floats:
        """Return the half-width of each interval at a level."""
        return critical_value(blocks, self.environments, 2, level=level) * self.error[blocks]

    def errs(self, blocks: int, level: float = LEVEL) -> Errs:
        """Return which runs give a false answer, if all truths are just beyond a limit of each question.

        For 'same', every other environment is above the margin, and the others are below. ``level`` is that of the
        interval. The last two are not what is done: gates by the interval, and by bounds that each have all of its
        error.
        """
        mean, reach = self.mean[blocks], self.reach(blocks, level_of_one_sided_bounds(level))
        sides = np.where(np.arange(self.environments) % 2 == 0, 1.0, -1.0)
        wrong = {
            "false pass": mean > reach,
            "false failure": mean < -reach,
            "false same": mean * sides > reach,
            "false pass by the interval": mean > self.reach(blocks, level),
            "false pass with all of the error": mean > self.reach(blocks, 2.0 * level - 1.0),
        }
        return {name: np.asarray(one.any(axis=1)) for name, one in wrong.items()}


def stopped(runs: Runs, target: float) -> Errs:
    """Return which runs err that end once all intervals are narrower than ``target``."""
    narrow = np.zeros(len(runs.mean[_LEAST]))
    going = np.ones(len(narrow), dtype=np.bool_)
    found = dict.fromkeys(runs.errs(_LEAST), np.zeros(len(narrow), dtype=np.bool_))
    for blocks in range(_LEAST, _MOST + 1):
        narrow = np.where((runs.reach(blocks) <= target).all(axis=1), narrow + 1, 0)
        ends = going & ((narrow >= CONFIRMATIONS) | (blocks == _MOST))
        found = {name: found[name] | (ends & wrong) for name, wrong in runs.errs(blocks).items()}
        going &= ~ends
    return found


def resumed(runs: Runs, every: int) -> Errs:
    """Return which runs ever err that are read every few blocks."""
    at = tuple(range(_LEAST, _MOST + 1, every))
    levels = [confidence_level(looked_plan(runs.environments, at[:number]), one) for number, one in enumerate(at)]
    seen = [runs.errs(blocks, level) for blocks, level in zip(at, levels, strict=True)]
    return {name: np.asarray(np.any([one[name] for one in seen], axis=0)) for name in seen[0]}


def _false(runs: int, chance: np.random.Generator) -> Iterator[Figure]:
    for noise, draw in NOISE.items():
        for environments in _ENVIRONMENTS:
            made = Runs(draw, environments, _MOST, runs, chance)
            cells = {f"{blocks} blocks": made.errs(blocks) for blocks in _BLOCKS}
            cells |= {f"stopped at {target:g} sd": stopped(made, target) for target in _TARGETS}
            cells |= {"read every 5 blocks": resumed(made, 5)}
            for name, found in cells.items():
                for question, wrong in found.items():
                    yield rate(question, noise, f"{environments} environments, {name}", wrong)


#: What must be true of means and half-widths of environments that are as fast as their reference.
_ANSWERS: Mapping[str, Callable[[Floats, Floats], NDArray[np.bool_]]] = {
    "passes a limit of 5 %": lambda mean, reach: mean - reach >= -np.log1p(0.05),
    "is the same to 3 %": lambda mean, reach: np.abs(mean) + reach <= np.log1p(0.03),
}


def blocks_needed(answer: str, environments: int, level: float, runs: int, chance: np.random.Generator) -> int:
    """Return after how many blocks an environment gets its true answer in 80 % of runs, by intervals at a level."""
    blocks, share = _LEAST - 1, 0.0
    while share < _POWER:
        blocks += 1
        differences = over_two_copies(chance.normal(0.0, SIZE, (runs, environments + 2, blocks)))
        reach = critical_value(blocks, environments, 2, level=level) * standard_errors(differences)
        share = float(_ANSWERS[answer](differences.mean(axis=2), reach).mean())
    return blocks


def _saved(runs: int, chance: np.random.Generator) -> Iterator[Figure]:
    for answer in _ANSWERS:
        for environments in _ENVIRONMENTS:
            for way, level in (("interval", LEVEL), ("one-sided bounds", level_of_one_sided_bounds(LEVEL))):
                blocks = blocks_needed(answer, environments, level, runs, chance)
                name = f"{environments} environments, by {way}"
                yield Figure(f"blocks: {answer}", "normal", name, blocks, None, None, runs)


def limits(machine: str, runs: int, chance: np.random.Generator) -> list[Figure]:
    """Return how often answers at their limits are false, and the blocks to pass; computed once."""
    if machine != next(iter(NOISES)):
        return []
    return [*_false(runs, chance), *_saved(runs, chance)]
