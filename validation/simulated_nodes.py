"""Node effects: how often an effect is falsely called different between nodes, and how often a difference is found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from envmatrix.stats.nodes import OnNode, anova_p_value, holm
from validation.noise import NOISES
from validation.simulated import Figure, Floats, rate

_BLOCK_S, _LEVEL = 37.0, 0.05
Draw = Callable[[np.random.Generator], list[OnNode]]


def alike(sizes: Sequence[int], noises: Sequence[float], lasts: float = 0.0, less: float = 0.0) -> Draw:
    """Return a function that draws an effect on nodes with these block counts and noise levels.

    ``lasts`` is the correlation of successive blocks; on the last node the log effect is lower by ``less``.
    """

    def draw(chance: np.random.Generator) -> list[OnNode]:
        found: list[OnNode] = []
        for size, noise in zip(sizes, noises, strict=True):
            values: Floats = np.asarray(chance.normal(0.0, noise, size), dtype=np.float64)
            for at in range(1, size):
                values[at] = lasts * values[at - 1] + np.sqrt(1 - lasts**2) * values[at]
            values -= less if len(found) == len(sizes) - 1 else 0.0
            found.append(OnNode(values, np.arange(size, dtype=np.float64) * _BLOCK_S))
        return found

    return draw


EFFECTS: Mapping[str, Draw] = {
    "4 nodes x 4, noise 15, 2, 2, 2 %": alike((4,) * 4, (0.15, 0.02, 0.02, 0.02)),
    "4 nodes x 6, noise 15, 2, 2, 2 %": alike((6,) * 4, (0.15, 0.02, 0.02, 0.02)),
    "4 nodes x 12, noise 15, 2, 2, 2 %": alike((12,) * 4, (0.15, 0.02, 0.02, 0.02)),
    "2 nodes x 6, one noise": alike((6,) * 2, (0.03,) * 2),
    "4 nodes x 6, one noise": alike((6,) * 4, (0.03,) * 4),
    "2 nodes x 24, AR 0.3": alike((24,) * 2, (0.03,) * 2, 0.3),
    "4 nodes x 12, 8 % less on one": alike((12,) * 4, (0.03,) * 4, less=0.08),
}


def differ(draw: Draw, chance: np.random.Generator) -> bool:
    """Return whether any of eight environments is reported to differ between nodes."""
    found = {str(number): anova_p_value(draw(chance)) for number in range(8)}
    return any(p < _LEVEL for p in holm({name: p for name, p in found.items() if p is not None}).values())


def nodes(machine: str, runs: int, chance: np.random.Generator) -> list[Figure]:
    """Return how often nodes are reported to differ, with a tenth of ``runs`` each; computed once."""
    if machine != next(iter(NOISES)):
        return []
    runs = max(20, runs // 10)
    question = "any of 8 effects said to differ"
    found = ((name, [differ(draw, chance) for _ in range(runs)]) for name, draw in EFFECTS.items())
    return [rate(question, "nodes", name, np.array(hits, dtype=np.bool_)) for name, hits in found]
