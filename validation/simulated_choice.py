"""Headlines of many simulated runs: the recommended environment, its reported gain, and the cost of simplicity."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from envmatrix.stats.best_environment import Candidates, recommended_row_and_best_set
from envmatrix.stats.effects import LEVEL
from envmatrix.stats.inference.maxt import critical_value
from envmatrix.stats.pairing import Views
from validation.simulated import SIZE, Figure, Floats, over_two_copies, rate, standard_errors, trials_of

#: True speed-ups to choose from, and the noise of a shared machine.
CHOICES = {
    "nine of 1.05": (1.05,) * 9,
    "one of 1.15, eight of 1": (1.15,) + (1.0,) * 8,
    "nine of 1": (1.0,) * 9,
}
_SHARED = 0.08
#: True speed-ups, the number of levels that differ from the baseline, and the noise of a trial within its block.
SIMPLE = {
    "1.16 (3 levels), 1.10 (1), seven of 1.0": ((1.16, 1.10, *(1.0,) * 7), (3, 1, *(1,) * 7)),
    "1.00 to 1.16, faster with more levels": (tuple(1 + 0.02 * at for at in range(9)), tuple(range(1, 10))),
}
_NOISE = 0.04


def _headlines(
    differences: Floats, settings: Sequence[tuple[int, ...]] | None = None
) -> list[tuple[int, bool, float, float, float]]:
    """Return for each of (runs, arms, blocks) with a recommendation: its arm, and whether arm 0 is in the best set.

    Then the reported gain, the plain gain of the fastest arm, and the lower bound, as log ratios.
    """
    _, arms, blocks = differences.shape
    mean = differences.mean(axis=2)
    reach = critical_value(blocks, arms, 2, level=LEVEL) * standard_errors(differences)
    low = mean - reach
    faster = (low > 0) & (mean + reach > np.log1p(SIZE))
    found = []
    for one in np.flatnonzero(faster.any(axis=1)):
        candidates = Candidates(Views((differences[one],)), low[one], faster[one], settings or [(1,)] * arms, SIZE)
        chosen, within, gain = recommended_row_and_best_set(candidates, arms - 1)
        plain = float(np.where(faster[one], mean[one], -np.inf).max())
        found.append((chosen, bool(within[0]), gain, plain, float(low[one, chosen])))
    return found


def choice(machine: str, case: str, blocks: int, runs: int, chance: np.random.Generator) -> list[Figure]:
    """Return averages of the headlines of many runs, and the truth about the recommended arms."""
    speeds = np.log(CHOICES[case])
    logs = trials_of(machine, len(speeds) + 2, blocks, runs, chance) * (_SHARED / SIZE)
    found = _headlines(logs[:, 2:] - logs[:, :2].mean(axis=1, keepdims=True) + speeds[None, :, None])
    name = f"{case}, {blocks} blocks"
    named = np.arange(runs) < len(found)
    figures = [rate("an environment is named", machine, name, named)]
    if not found:
        return figures
    who, within, gain, plain, low = (np.array(column) for column in zip(*found, strict=True))
    means = {"true": speeds[who], "told": gain, "plain": plain}
    wrong = np.zeros(runs, dtype=np.bool_)
    wrong[: len(found)] = low > speeds[who]
    return [
        *figures,
        *(Figure(f"mean gain, {word}", machine, name, float(np.exp(v).mean()), None, None, len(found))
          for word, v in means.items()),
        rate("the true best is in the best set", machine, name, within.astype(np.bool_)),
        rate("its lower bound is above the truth", machine, name, wrong),
    ]  # fmt: skip


def choices(machine: str, runs: int, chance: np.random.Generator) -> list[Figure]:
    """Return the headlines' results for every case, with a tenth of ``runs`` each."""
    return [
        figure
        for case in CHOICES
        for blocks in (10, 20, 40)
        for figure in choice(machine, case, blocks, max(20, runs // 10), chance)
    ]


def simple(machine: str, case: str, blocks: int, runs: int, chance: np.random.Generator) -> list[Figure]:
    """Return how much slower than the best the recommended arm truly is, over runs with a recommendation."""
    gains, levels = np.log(SIMPLE[case][0]), SIMPLE[case][1]
    logs = trials_of(machine, len(gains) + 2, blocks, runs, chance) * (_NOISE / SIZE)
    found = _headlines(over_two_copies(logs) + gains[None, :, None], [(count,) for count in levels])
    who = np.array([at for at, *_ in found], np.int64)
    lost = np.expm1(gains.max() - gains[who])
    told = np.array([gain for _, _, gain, *_ in found])
    name = f"{case}, {blocks} blocks"
    means = {
        "mean loss against the best": float(lost.mean()),
        "mean told gain over the true one": float(np.exp(told - gains[who]).mean()),
    }
    return [
        *(Figure(question, machine, name, value, None, None, len(found)) for question, value in means.items()),
        *(rate(f"more than {by:.0%} slower than the best".replace("%", " %"), machine, name, lost > by + 1e-9)
          for by in (0.03, 0.05)),
    ]  # fmt: skip


def simplicity(machine: str, runs: int, chance: np.random.Generator) -> list[Figure]:
    """Return the cost of recommending simple environments, with a tenth of ``runs`` each."""
    cells = [(case, blocks) for case in SIMPLE for blocks in (6, 8, 12, 20)]
    return [figure for cell in cells for figure in simple(machine, *cell, max(20, runs // 10), chance)]
