"""The tables of blocks in docs/how-to: ``python -m validation.expected_widths``.

They follow from the method alone, for independent normal trials and one look: noise is the standard deviation of a
process within its block.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import numpy as np

from envmatrix.stats.comparisons.result import NARROW_ENOUGH
from envmatrix.stats.effects import LEVEL, level_of_one_sided_bounds
from envmatrix.stats.inference.maxt import critical_value

_COPIES = 2
_NOISES, _BLOCKS, _ENVIRONMENTS = (0.01, 0.02, 0.03, 0.05, 0.1), (6, 8, 12, 20, 40, 100), (1, 4, 9)
_SPREADS, _ALLOWED, _TRIAL_S = (0.02, 0.03, 0.05, 0.1, 0.15), 0.05, 5.0


def _error(noise: float, blocks: int) -> float:
    """Return the standard error of a mean log ratio to a reference with two copies."""
    return noise * float(np.sqrt((1.0 + 1.0 / _COPIES) / blocks))


def half_width(noise: float, blocks: int, environments: int) -> float:
    """Return the half-width of an interval as a fraction, if standard deviations are measured exactly."""
    return float(np.expm1(critical_value(blocks, environments, _COPIES, level=LEVEL) * _error(noise, blocks)))


def blocks_to_pass(noise: float, allowed: float) -> int:
    """Return after how many blocks about nine of ten gates of two equal sides pass, at least ``min_blocks``."""
    level, enough = level_of_one_sided_bounds(LEVEL), NARROW_ENOUGH * float(np.log1p(allowed))
    return next(
        blocks
        for blocks in range(6, 10_000)
        if critical_value(blocks, 1, _COPIES, level=level) * _error(noise, blocks) <= enough
    )


def _widths() -> Iterator[str]:
    yield f"| blocks | {' | '.join(f'noise of {noise:.0%}'.replace('%', ' %') for noise in _NOISES)} |"
    yield f"|---:|{'---:|' * len(_NOISES)}"
    for blocks in _BLOCKS:
        cells = (
            " / ".join(f"{100 * half_width(noise, blocks, environments):.1f}" for environments in _ENVIRONMENTS)
            for noise in _NOISES
        )
        yield f"| {blocks} | {' | '.join(cells)} |"


def _gates() -> Iterator[str]:
    yield "| cv | blocks | minutes, with trials of 5 s (three trials per block: old, new and control) |"
    yield "|---|---|---|"
    for noise in _SPREADS:
        blocks = blocks_to_pass(noise, _ALLOWED)
        yield f"| {100 * noise:.0f} % | {blocks} | {int(np.ceil(blocks * 3 * _TRIAL_S / 60))} |"


#: Page in docs/how-to -> its table.
TABLES = {"undecided.md": _widths, "gate.md": _gates}


def main(arguments: Sequence[str] = ()) -> int:
    """Print the tables."""
    for page, table in TABLES.items():
        sys.stdout.write(f"{page}:\n\n" + "\n".join(table()) + "\n\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
