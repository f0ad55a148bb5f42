"""Forecast of the block at which each undecided interval will be narrow enough, without interval or verdict."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from scipy.special import stdtrit

from envmatrix.stats.effects import CONFIDENCE, Effect
from envmatrix.units import MOST_BLOCKS

#: The most environments named, those decided first.
_MAX_NAMED = 6


def blocks_until(effect: Effect, target: float) -> int | None:
    """Return after how many blocks in all an interval has about the width ``target``; None if unknown.

    Assumes a constant spread: the width follows Student's t and the square root of the blocks.
    """
    blocks_so_far, width = effect.blocks, effect.half_width
    if width is None or blocks_so_far < 2:
        return None
    if width <= target:
        return blocks_so_far
    first_estimate = blocks_so_far * (math.log1p(width) / math.log1p(target)) ** 2
    refined = first_estimate
    for _ in range(5):  # t depends on the result; each pass comes several times closer
        refined = max(first_estimate * (_critical_t(refined) / _critical_t(blocks_so_far)) ** 2, blocks_so_far + 1)
    return math.ceil(refined)


def _critical_t(blocks: float) -> float:
    return float(stdtrit(max(blocks - 1, 1), (1 + CONFIDENCE) / 2))


def effect_label(effect: Effect, among: Collection[Effect]) -> str:
    """Return an effect's name in the form of an arm's, with only the parts that distinguish it from the others."""
    workload = f":{effect.workload}" if len({other.workload for other in among}) > 1 else ""
    engine = f"@{effect.engine}" if len({other.engine for other in among}) > 1 else ""
    return f"{effect.environment}{workload}{engine}"


def _list_first(texts: Sequence[str], rest: str = "more") -> str:
    """Return the first texts, and how many there are besides."""
    omitted = len(texts) - _MAX_NAMED
    return ", ".join([*texts[:_MAX_NAMED], *([f"{omitted} {rest}"] if omitted > 0 else [])])


def decision_forecast(effects: Collection[Effect], target: float, budget_ends: float) -> str:
    """Return about which block each open interval is as narrow as ``target``; '' if none is open or known.

    ``budget_ends`` is the block at which the budget is spent.
    """
    forecasts = [
        (blocks, effect_label(effect, effects))
        for effect in effects
        if (blocks := blocks_until(effect, target)) is not None and blocks > effect.blocks
    ]
    if not forecasts:
        return ""
    forecasts.sort()
    near = [(blocks, name) for blocks, name in forecasts if blocks <= MOST_BLOCKS]
    far = _list_first([name for blocks, name in forecasts if blocks > MOST_BLOCKS])
    texts = [_list_first([f"{name} {blocks}" for blocks, name in near], f"more by {near[-1][0]}")] if near else []
    texts += [f"{far} beyond {MOST_BLOCKS}"] if far else []
    return f"±{target:.1%} at about block: {'; '.join(texts)} (the budget ends at about {budget_ends:.0f})"
