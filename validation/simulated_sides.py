"""False verdicts if one environment's noise is skewed, or if the reference loses its slow trials."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from envmatrix.stats.effect_estimation import estimate
from validation.noise import NOISES
from validation.simulated import Figure, Floats, rate
from validation.simulated_models import skewed, without_slowest
from validation.simulated_pairs import arms_of
from validation.simulated_table import measured_of, plan_of

_NOISE = 0.02
Draw = Callable[[int, int, np.random.Generator], Floats]


def one_skewed(arms: int, blocks: int, chance: np.random.Generator) -> Floats:
    """Return log speeds of equal arms; the last has an exponential tail (sd 10 %, the others 2 %)."""
    logs = chance.normal(0.0, _NOISE, (arms, blocks))
    logs[-1] = -skewed((blocks,), chance)
    return logs


def reference_fails(arms: int, blocks: int, chance: np.random.Generator) -> Floats:
    """Return log speeds of equal arms; baseline and control, the first two, lose their slowest fifth."""
    logs = chance.normal(0.0, _NOISE, (arms, blocks))
    logs[:2] = without_slowest(logs[:2], _NOISE)
    return logs


def verdicts(draw: Draw, environments: int, blocks: int, runs: int, chance: np.random.Generator) -> list[set[str]]:
    """Return the verdicts in the table of each run, without the control's; nothing truly differs."""
    plan = plan_of(blocks, arms_of(environments))
    found = []
    for _ in range(runs):
        analysis = estimate(plan, measured_of(draw(len(plan.arms), blocks, chance), plan.arms), metrics=())
        found.append({str(one.verdict) for one in analysis.primary_effects() if not one.is_control})
    return found


def _figures(runs: int, chance: np.random.Generator) -> Iterator[Figure]:
    cases: list[tuple[str, Draw, tuple[int, ...], tuple[str, ...]]] = [
        ("one skewed", one_skewed, (6, 8, 12, 20, 40), ("faster", "slower")),
        ("reference loses its slow trials", reference_fails, (8, 12, 20, 40), ("slower", "faster")),
    ]
    for name, draw, several, words in cases:
        for environments in (1, 8):
            for blocks in several:
                said = verdicts(draw, environments, blocks, runs, chance)
                what = f"{environments} environment{'s' * (environments > 1)}, {blocks} blocks"
                for word in words:
                    hits = np.array([word in one for one in said], dtype=np.bool_)
                    yield rate(f"any false {word}", name, what, hits)


def sides(machine: str, runs: int, chance: np.random.Generator) -> list[Figure]:
    """Return rates of false 'faster' or 'slower', with a tenth of ``runs`` each; computed once."""
    return list(_figures(max(20, runs // 10), chance)) if machine == next(iter(NOISES)) else []
