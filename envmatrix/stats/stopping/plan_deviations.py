"""Missing and surplus trials among those that a run has already passed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from envmatrix.plan import Plan, Slot
from envmatrix.stats.measurements import Measurements
from envmatrix.stats.stopping.racing import Race

#: Most missing trials that are counted exactly.
_MAX_COUNTED = 100


def missing_trials_text(plan: Plan, measured: Measurements) -> str:
    """Return which trials of the plan are missing, or '' if none is."""
    missing_trials = [slot.trial for slot in itertools.islice(skipped_slots(plan, measured), _MAX_COUNTED + 1)]
    if not missing_trials:
        return ""
    count_text = f"{len(missing_trials)} trial{'s' * (len(missing_trials) > 1)}"
    if len(missing_trials) > _MAX_COUNTED:
        count_text = f"more than {_MAX_COUNTED} trials"
    return f"{count_text} of the plan ({missing_trials[0]} first) without a line, although later trials have theirs"


def skipped_slots(plan: Plan, measured: Measurements) -> Iterator[Slot]:
    """Yield, in the plan's order, trials without a line although a later trial has one.

    In a race, an arm without any later line has left, and nothing of it is missing.
    """
    last = _last_trial_positions(plan, measured)
    end = max(last.values(), default=(-1, 0))
    attempted_arms = dict(zip(measured.blocks.tolist(), measured.attempted.T, strict=True))
    for block in range(end[0] + 1):
        attempted = attempted_arms.get(block, np.zeros(len(measured.arms), dtype=np.bool_))
        if attempted.all():
            continue
        for slot in plan.block(block):
            until = last.get(slot.arm.name, (-1, 0)) if plan.race else end
            if not attempted[measured.arms.index(slot.arm.name)] and (slot.block, slot.position) < until:
                yield slot


def _last_trial_positions(plan: Plan, measured: Measurements) -> dict[str, tuple[int, int]]:
    """Return block and position of the last trial of every arm that has one."""
    positions: dict[str, tuple[int, int]] = {}
    for row, name in enumerate(measured.arms):
        columns = np.flatnonzero(measured.attempted[row])
        if columns.size:
            block = int(measured.blocks[columns[-1]])
            positions[name] = block, [arm.name for arm in plan.order(block)].index(name)
    return positions


def trials_after_leaving(race: Race, measured: Measurements) -> dict[str, list[int]]:
    """Return arm -> blocks in which it has a trial although it had left the race."""
    late_blocks = {
        item.arm: measured.blocks[measured.attempted[measured.arms.index(item.arm)] & (measured.blocks >= item.block)]
        for item in race.stopped
    }
    return {name: blocks.tolist() for name, blocks in late_blocks.items() if blocks.size}
