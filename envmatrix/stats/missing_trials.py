"""Trials that lack, or are too many, among those that a run has gone past."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from envmatrix.plan import Plan, Slot
from envmatrix.stats.measurements import Measurements
from envmatrix.stats.racing import Race

#: As many missing trials are counted one by one.
_MOST = 100


def told_missing(plan: Plan, measured: Measurements) -> str:
    """Return which trials of the plan lack, '' where none does."""
    found = [slot.trial for slot in itertools.islice(missing(plan, measured), _MOST + 1)]
    if not found:
        return ""
    number = f"more than {_MOST} trials" if len(found) > _MOST else f"{len(found)} trial{'s' * (len(found) > 1)}"
    return f"{number} of the plan, {found[0]} first, without a line though later ones have theirs"


def missing(plan: Plan, measured: Measurements) -> Iterator[Slot]:
    """Yield, in the plan's order, what has no line although a later trial has one.

    Where arms race, one that has no later line has left, and lacks nothing.
    """
    last = _last_places(plan, measured)
    end = max(last.values(), default=(-1, 0))
    known = {int(block): column for column, block in enumerate(measured.blocks)}
    for block in range(end[0] + 1):
        there = measured.attempted[:, known[block]] if block in known else np.zeros(len(measured.arms), dtype=np.bool_)
        if there.all():
            continue
        for slot in plan.block(block):
            until = last.get(slot.arm.name, (-1, 0)) if plan.race else end
            if not there[measured.arms.index(slot.arm.name)] and (slot.block, slot.position) < until:
                yield slot


def _last_places(plan: Plan, measured: Measurements) -> dict[str, tuple[int, int]]:
    """Return block and position of every arm's last trial, for those that have one."""
    found: dict[str, tuple[int, int]] = {}
    for row, name in enumerate(measured.arms):
        columns = np.flatnonzero(measured.attempted[row])
        if columns.size:
            block = int(measured.blocks[columns[-1]])
            found[name] = block, [arm.name for arm in plan.order(block)].index(name)
    return found


def after_leaving(race: Race, measured: Measurements) -> dict[str, list[int]]:
    """Return the blocks in which an arm has a trial though it had left the race, by its name."""
    late = {
        item.arm: measured.blocks[measured.attempted[measured.arms.index(item.arm)] & (measured.blocks >= item.block)]
        for item in race.stopped
    }
    return {name: blocks.tolist() for name, blocks in late.items() if blocks.size}
