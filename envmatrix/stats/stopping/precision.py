"""Stopping rule: a run ends on precision, never on significance, so frequent checks do no harm."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from envmatrix.matrix.model import Workload
from envmatrix.plan import Plan
from envmatrix.stats.analysis import Analysis, estimate
from envmatrix.stats.effects import Effect
from envmatrix.stats.measurements import Measurements, first_blocks
from envmatrix.stats.quality.slow_trials import LEAST_BLOCKS


def _is_hopeless(effect: Effect, most_blocks: int, min_blocks: int) -> bool:
    """Return whether an arm has no pair while others have enough, so that the run does not wait for it."""
    return effect.blocks == 0 and most_blocks >= min_blocks


def is_narrow(effect: Effect, target: float, slow: Collection[str]) -> bool:
    """Return whether the interval's half-width is at most ``target`` (0.03 for 3 %) and a verdict is possible.

    ``slow`` are the arms with slow trials.
    """
    if effect.blocks < LEAST_BLOCKS and (effect.arm in slow or effect.reference in slow):
        return False
    return effect.half_width is not None and effect.half_width <= target


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
    last = len(measured.blocks)
    return last > CONFIRMATIONS and all(
        narrow_enough(_without_last_blocks(plan, measured, back, workloads), target, active)
        for back in range(CONFIRMATIONS)
    )


def _without_last_blocks(
    plan: Plan, measured: Measurements, back: int, workloads: Mapping[str, Workload] | None
) -> Analysis:
    """Return estimates of the primary metrics from all blocks except the last ``back``."""
    earlier = first_blocks(measured, len(measured.blocks) - back)
    return estimate(plan, earlier, workloads=workloads, metrics=())


def narrow_enough(analysis: Analysis, target: float, active: Collection[str] | None = None) -> bool:
    """Return whether every primary interval, including the control's, has a half-width of at most ``target``.

    ``active`` are the arms that count (None: all); racing passes the remaining ones. Arms without any complete pair
    (skipped, or always failing) are ignored once the others have ``min_blocks`` pairs. False if nothing was measured.
    """
    effects = [e for e in analysis.primary_effects() if active is None or e.arm in active]
    most_blocks = max((effect.blocks for effect in effects), default=0)
    judged_effects = [effect for effect in effects if not _is_hopeless(effect, most_blocks, analysis.plan.min_blocks)]
    slow = [arm.name for arm, trials in zip(analysis.plan.arms, analysis.slow) if trials.any()]  # noqa: B905
    return most_blocks > 0 and all(is_narrow(effect, target, slow) for effect in judged_effects)
