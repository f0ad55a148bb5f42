"""The price of certainty: ``python -m validation.price`` prints how many times the fewest possible blocks are needed.

The best possible is a paired z interval of known variance, with Bonferroni's correction for several environments. The
interval is that of real runs, for independent normal trials of equal noise and one look. Blocks are the squared ratio
of half-widths.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import numpy as np

from envmatrix.stats.array_types import Floats
from envmatrix.stats.effects import ALL_ANALYSES_LEVEL, CONFIDENCE, LEVEL
from envmatrix.stats.inference.maxt import critical_value, moderated_errors
from envmatrix.stats.inference.standard_errors import block_gaps
from envmatrix.stats.pairing import summarise_pairs
from validation.simulated import over_two_copies

_ENVIRONMENTS, _BLOCKS, _BLOCK_S, _COPIES, _RUNS = (1, 4, 9), (6, 8, 12, 16, 24, 32), 37.0, 2, 2000
#: The confidences of what is paid for: one look, all stops and looks, and what is kept for `resume`.
_LEVELS = (CONFIDENCE, ALL_ANALYSES_LEVEL, LEVEL)


def half_widths(differences: Floats, gaps: Floats | None, level: float) -> Floats:
    """Return the half-widths of the intervals of (arms, blocks) differences, as logs."""
    found = summarise_pairs(differences, gaps)
    errors, own = moderated_errors(found.error, found.units, len(differences))
    critical = [
        critical_value(int(units), len(differences), _COPIES, level=level, own=bool(is_own))
        for units, is_own in zip(found.units, own, strict=True)
    ]
    return np.asarray(np.array(critical) * errors)


def price(
    environments: int, blocks: int, level: float, block_s: float | None, runs: int, chance: np.random.Generator
) -> float:
    """Return how many times the blocks of the best possible interval are needed; ``block_s`` None: far apart."""
    from scipy.special import ndtri

    best = ndtri(1.0 - (1.0 - CONFIDENCE) / (2 * environments)) ** 2 * (1.0 + 1.0 / _COPIES) / blocks
    differences = over_two_copies(chance.standard_normal((runs, environments + _COPIES, blocks)))
    gaps = None if block_s is None else block_gaps(np.arange(blocks) * block_s)
    return float(np.mean([half_widths(one, gaps, level) ** 2 for one in differences]) / best)


def _rows(runs: int) -> Iterator[str]:
    yield "| environments | blocks | variances unknown | and stops and looks | and kept for `resume` | blocks of 37 s |"
    yield "|---:|---:|---:|---:|---:|---:|"
    for environments in _ENVIRONMENTS:
        for blocks in _BLOCKS:
            cells = [(level, None) for level in _LEVELS] + [(LEVEL, _BLOCK_S)]
            prices = [
                price(environments, blocks, level, block_s, runs, np.random.default_rng(1)) for level, block_s in cells
            ]
            yield f"| {environments} | {blocks} | {' | '.join(f'{one:.2f}' for one in prices)} |"


def main(arguments: Sequence[str] = ()) -> int:
    """Print the table; the only argument is the number of simulated runs per cell."""
    for row in _rows(int(arguments[0]) if arguments else _RUNS):
        sys.stdout.write(f"{row}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
