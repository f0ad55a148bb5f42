"""Simulated runs whose third environment has a noise model: slow phases, slow processes, failures and others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from envmatrix.plan import make_arms
from validation.noise import drifting
from validation.simulated import SIZE, Floats

#: One environment is truly 5 % faster than all others.
GAIN = float(np.log(1.05))
TRIAL_S, LIMIT_S = 7.6, 60.0
#: Additional slowdown of the marked arm in a slow phase.
_SLOWED = 0.1
ARMS = make_arms(("a", "b", "ab"), ("w",), ("e",), "baseline")
LEVELS = {"baseline": ("0", "0"), "a": ("1", "0"), "b": ("0", "1"), "ab": ("1", "1")}
MARKED = next(row for row, arm in enumerate(ARMS) if arm.environment == "ab")


@dataclass(frozen=True)
class Trials:
    """Log speeds (arms, blocks) of a run, NaN for timeouts, and the marked arm's true log effect.

    ``phases``: change of that effect by the machine's phases during each block; the mean over all runs is 0.
    """

    logs: Floats
    truth: float = GAIN
    phases: Floats | None = None

    def own(self, blocks: int) -> float:
        """Return the true log effect over the phases in the first ``blocks`` of this run."""
        return self.truth + (0.0 if self.phases is None else float(self.phases[:blocks].mean()))


Model = Callable[[int, np.random.Generator], Trials]


def _quiet(blocks: int, chance: np.random.Generator) -> Floats:
    logs = chance.normal(0.0, SIZE, (len(ARMS), blocks))
    logs[MARKED] += GAIN
    return logs


def _normal(blocks: int, chance: np.random.Generator) -> Trials:
    return Trials(_quiet(blocks, chance))


def _unequal(blocks: int, chance: np.random.Generator) -> Trials:
    logs = _quiet(blocks, chance)
    logs[MARKED] += chance.normal(0.0, 4 * SIZE, blocks)
    return Trials(logs)


def _drift(blocks: int, chance: np.random.Generator) -> Trials:
    walk = drifting(1, blocks * len(ARMS), SIZE, chance).reshape(blocks, len(ARMS))
    shuffled = chance.permuted(walk, axis=1).T
    shuffled[MARKED] += GAIN
    return Trials(shuffled)


def _phases(blocks: int, chance: np.random.Generator) -> Trials:
    """Draw slow and fast phases of 40 s on average; the marked arm is 10 % slower in slow ones."""
    ends = np.cumsum(chance.exponential(40.0, int(blocks * len(ARMS) * TRIAL_S / 10) + 100))
    edges = np.arange(blocks + 1) * len(ARMS) * TRIAL_S
    begins = edges[:-1] + chance.integers(0, len(ARMS), blocks) * TRIAL_S
    first = chance.integers(0, 2)
    slow = (np.searchsorted(ends, begins) + first) % 2
    logs = _quiet(blocks, chance)
    logs[MARKED] += _SLOWED * (0.5 - slow)
    lasted = np.diff(ends, prepend=0.0)
    slow_s = np.cumsum(lasted * ((np.arange(ends.size) + first) % 2))
    share = np.diff(np.interp(edges, np.append(0.0, ends), np.append(0.0, slow_s))) / edges[1]
    return Trials(logs, phases=_SLOWED * (0.5 - share))


def _slow_processes(share: float, by: float, *, rare: bool) -> Model:
    """Return a model with a ``share`` of slower processes in the marked arm; if rare, the true effect excludes them."""

    def draw(blocks: int, chance: np.random.Generator) -> Trials:
        logs = _quiet(blocks, chance)
        logs[MARKED] -= np.log(by) * ((chance.random(blocks) < share) - (0.0 if rare else share))
        return Trials(logs)

    return draw


def _heavy(blocks: int, chance: np.random.Generator) -> Trials:
    logs = chance.standard_t(3, (len(ARMS), blocks)) * SIZE
    logs[MARKED] += GAIN
    return Trials(logs)


def _failing(blocks: int, chance: np.random.Generator) -> Trials:
    """Draw timeouts in the slowest fifth of the marked arm's processes: equally fast, but it seems faster."""
    logs = _quiet(blocks, chance)
    own = chance.normal(0.0, 3 * SIZE, blocks)
    logs[MARKED] = np.where(own < 3 * SIZE * -0.8416, np.nan, own)
    return Trials(logs, 0.0)


def _skewed(blocks: int, chance: np.random.Generator) -> Trials:
    """Draw an exponential tail in the marked arm's log times, with the same mean."""
    logs = _quiet(blocks, chance)
    logs[MARKED] = GAIN - skewed((blocks,), chance)
    return Trials(logs)


def skewed(shape: tuple[int, ...], chance: np.random.Generator) -> Floats:
    """Return log times with mean 0 and standard deviation 10 %: most below the mean, some far above."""
    return np.asarray(0.1 * (chance.exponential(1.0, shape) - 1.0))


def _reference_failing(blocks: int, chance: np.random.Generator) -> Trials:
    """Draw timeouts in the slowest fifth of both reference copies: nothing differs, but all others seem slower."""
    logs = chance.normal(0.0, SIZE, (len(ARMS), blocks))
    logs[:2] = without_slowest(logs[:2], SIZE)
    return Trials(logs, 0.0)


def without_slowest(logs: Floats, noise: float) -> Floats:
    """Return normal log speeds around 0, with NaN for the slowest fifth."""
    return np.asarray(np.where(logs < noise * -0.8416, np.nan, logs))


#: Models with trials that are missing not at random.
SELECTED = ("failures", "reference failures")
MODELS: Mapping[str, Model] = {
    "normal": _normal,
    "unequal variances": _unequal,
    "drift": _drift,
    "phases": _phases,
    "rare slow": _slow_processes(0.05, 2.0, rare=True),
    "two modes": _slow_processes(0.4, 1.25, rare=False),
    "heavy tails": _heavy,
    "failures": _failing,
    "skewed": _skewed,
    "reference failures": _reference_failing,
}
