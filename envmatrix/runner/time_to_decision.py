"""When each open question will be answered, as far as the spread so far tells: no interval, no verdict."""

from __future__ import annotations

import math
from collections.abc import Collection

from scipy.special import stdtrit

from envmatrix.stats.effects import CONFIDENCE, Effect
from envmatrix.units import MOST_BLOCKS

#: So many environments are named, those that are answered first.
_NAMED = 6


def blocks_until(effect: Effect, target: float) -> int | None:
    """Return after how many blocks in all an interval is about as narrow as ``target``; None: that cannot be told.

    The spread is taken to stay as it is: the width goes with Student's t and the root of the blocks.
    """
    now, width = effect.blocks, effect.half_width
    if width is None or now < 2:
        return None
    if width <= target:
        return now
    wanted = now * (math.log1p(width) / math.log1p(target)) ** 2
    needed = wanted
    for _ in range(5):  # t needs the answer that it is a part of; each pass comes several times nearer
        needed = max(wanted * (_t(needed) / _t(now)) ** 2, now + 1)
    return math.ceil(needed)


def _t(blocks: float) -> float:
    return float(stdtrit(max(blocks - 1, 1), (1 + CONFIDENCE) / 2))


def called(effect: Effect, among: Collection[Effect]) -> str:
    """Name an effect as arms are named, with no more than what tells it from the others."""
    workload = f":{effect.workload}" if len({one.workload for one in among}) > 1 else ""
    engine = f"@{effect.engine}" if len({one.engine for one in among}) > 1 else ""
    return f"{effect.environment}{workload}{engine}"


def _shown(blocks: int) -> str:
    return f"beyond {MOST_BLOCKS}" if blocks > MOST_BLOCKS else str(blocks)


def outlook(effects: Collection[Effect], target: float, budget_ends: float) -> str:
    """Say at about which block each open interval is as narrow as ``target``; '' where none is open, or none known.

    ``budget_ends`` is the block at which the budget is spent.
    """
    known = [(blocks, called(effect, effects)) for effect in effects
             if (blocks := blocks_until(effect, target)) is not None and blocks > effect.blocks]  # fmt: skip
    if not known:
        return ""
    ordered = sorted(known)
    named = [f"{name} {_shown(blocks)}" for blocks, name in ordered[:_NAMED]]
    more = len(ordered) - len(named)
    rest = f", {more} more by {_shown(ordered[-1][0])}" if more else ""
    return f"±{target:.1%} by about block: {', '.join(named)}{rest} (the budget ends at about {budget_ends:.0f})"
