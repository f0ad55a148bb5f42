"""When each open question will be answered, as far as the spread so far tells: no interval, no verdict."""

from __future__ import annotations

import math
from collections.abc import Collection

from scipy.special import stdtrit

from envmatrix.stats.effects import CONFIDENCE, Effect
from envmatrix.units import MOST_BLOCKS

#: So many environments are named, those that are answered first.
_MAX_NAMED = 6


def blocks_until(effect: Effect, target: float) -> int | None:
    """Return after how many blocks in all an interval is about as narrow as ``target``; None: that cannot be told.

    The spread is taken to stay as it is: the width goes with Student's t and the root of the blocks.
    """
    blocks_so_far, width = effect.blocks, effect.half_width
    if width is None or blocks_so_far < 2:
        return None
    if width <= target:
        return blocks_so_far
    first_estimate = blocks_so_far * (math.log1p(width) / math.log1p(target)) ** 2
    refined = first_estimate
    for _ in range(5):  # t needs the answer that it is a part of; each pass comes several times nearer
        refined = max(first_estimate * (_critical_t(refined) / _critical_t(blocks_so_far)) ** 2, blocks_so_far + 1)
    return math.ceil(refined)


def _critical_t(blocks: float) -> float:
    return float(stdtrit(max(blocks - 1, 1), (1 + CONFIDENCE) / 2))


def effect_label(effect: Effect, among: Collection[Effect]) -> str:
    """Name an effect as arms are named, with no more than what tells it from the others."""
    workload = f":{effect.workload}" if len({other.workload for other in among}) > 1 else ""
    engine = f"@{effect.engine}" if len({other.engine for other in among}) > 1 else ""
    return f"{effect.environment}{workload}{engine}"


def _blocks_text(blocks: int) -> str:
    return f"beyond {MOST_BLOCKS}" if blocks > MOST_BLOCKS else str(blocks)


def decision_forecast(effects: Collection[Effect], target: float, budget_ends: float) -> str:
    """Say at about which block each open interval is as narrow as ``target``; '' where none is open, or none known.

    ``budget_ends`` is the block at which the budget is spent.
    """
    forecasts = [(blocks, effect_label(effect, effects)) for effect in effects
             if (blocks := blocks_until(effect, target)) is not None and blocks > effect.blocks]  # fmt: skip
    if not forecasts:
        return ""
    ordered = sorted(forecasts)
    entries = [f"{name} {_blocks_text(blocks)}" for blocks, name in ordered[:_MAX_NAMED]]
    omitted = len(ordered) - len(entries)
    omitted_text = f", {omitted} more by {_blocks_text(ordered[-1][0])}" if omitted else ""
    return (
        f"±{target:.1%} at about block: {', '.join(entries)}{omitted_text} (the budget ends at about {budget_ends:.0f})"
    )
