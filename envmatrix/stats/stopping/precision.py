"""Stopping rule: a run ends on precision, never on significance, so frequent checks do no harm."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from envmatrix.matrix.model import Workload
from envmatrix.plan import Plan
from envmatrix.stats.effect_estimation import Analysis, estimate
from envmatrix.stats.measurements import Measurements, first_blocks
from envmatrix.stats.quality.slow_trials import LEAST_BLOCKS

#: Number of consecutive blocks that must be narrow enough, so that one lucky block does not end a run.
CONFIRMATIONS = 3


def is_precise_enough(
    plan: Plan,
    measured: Measurements,
    target: float,
    workloads: Mapping[str, Workload] | None = None,
    active: Collection[str] | None = None,
) -> bool:
    """Return whether the run can end: ``narrow_enough`` is true for all blocks, and without the last one or two.

    It is a pure function of the trials, so a resumed run ends at the same block as an uninterrupted one.
    """
    count = len(measured.blocks)
    earlier = (first_blocks(measured, count - back) for back in range(CONFIRMATIONS))
    return count > CONFIRMATIONS and all(
        narrow_enough(estimate(plan, blocks, workloads=workloads, metrics=()), target, active) for blocks in earlier
    )


def narrow_enough(analysis: Analysis, target: float, active: Collection[str] | None = None) -> bool:
    """Return whether every primary interval, including the control's, has a half-width of at most ``target``.

    ``target`` is a fraction (0.03 for 3 %). ``active`` are the arms that count (None: all); racing passes the remaining
    ones. Arms without any complete pair (skipped, or always failing) are ignored once the others have ``min_blocks``
    pairs. Arms with slow trials have no verdict, and are not narrow, below ``LEAST_BLOCKS``. False if nothing was
    measured.
    """
    effects = [effect for effect in analysis.primary_effects() if active is None or effect.arm in active]
    most_blocks = max((effect.blocks for effect in effects), default=0)
    if most_blocks >= analysis.plan.min_blocks:
        effects = [effect for effect in effects if effect.blocks]
    slow = {arm.name for arm, trials in zip(analysis.plan.arms, analysis.slow) if trials.any()}  # noqa: B905
    return most_blocks > 0 and all(
        effect.half_width is not None
        and effect.half_width <= target
        and (effect.blocks >= LEAST_BLOCKS or slow.isdisjoint((effect.arm, effect.reference)))
        for effect in effects
    )
