"""When is it enough: stop on precision, never on significance, so that looking often does no harm."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from envmatrix.matrix.model import Workload
from envmatrix.plan import Plan
from envmatrix.stats.analysis import Analysis, estimate
from envmatrix.stats.effects import Effect
from envmatrix.stats.measurements import Measurements, first_blocks
from envmatrix.stats.slow_trials import LEAST_BLOCKS


def _is_hopeless(effect: Effect, most_blocks: int, min_blocks: int) -> bool:
    """Whether an arm never gave one pair while others had their fill: it must not hold up the others."""
    return effect.blocks == 0 and most_blocks >= min_blocks


def is_narrow(effect: Effect, target: float, slow: Collection[str]) -> bool:
    """Whether the interval's half-width is at most ``target`` (a fraction: 0.03 for 3 %), and it may be judged.

    ``slow`` are the arms with slow trials.
    """
    if effect.blocks < LEAST_BLOCKS and (effect.arm in slow or effect.reference in slow):
        return False
    return effect.half_width is not None and effect.half_width <= target


#: So many blocks in a row must say that it is enough, so that one lucky block does not end a run.
CONFIRMATIONS = 3


def is_precise_enough(
    plan: Plan,
    measured: Measurements,
    target: float,
    workloads: Mapping[str, Workload] | None = None,
    active: Collection[str] | None = None,
) -> bool:
    """Whether the run can end: ``narrow_enough`` now, and without the last one and the last two blocks.

    A pure function of the trials, so that a resumed run ends where the interrupted one would have ended.
    """
    last = len(measured.blocks)
    return last > CONFIRMATIONS and all(
        narrow_enough(_without_last_blocks(plan, measured, back, workloads), target, active)
        for back in range(CONFIRMATIONS)
    )


def _without_last_blocks(
    plan: Plan, measured: Measurements, back: int, workloads: Mapping[str, Workload] | None
) -> Analysis:
    """Estimate the primary metrics from all blocks but the last ``back``."""
    earlier = first_blocks(measured, len(measured.blocks) - back)
    return estimate(plan, earlier, workloads=workloads, metrics=())


def narrow_enough(analysis: Analysis, target: float, active: Collection[str] | None = None) -> bool:
    """Whether every primary interval, the control's too, has a half-width of at most ``target``.

    ``active`` names the arms that count (None: all); racing passes the arms still in.

    Arms without a single complete pair (skipped, or failing every time) are passed over once the others have
    ``min_blocks`` pairs. False while nothing was measured.
    """
    effects = [e for e in analysis.primary_effects() if active is None or e.arm in active]
    most_blocks = max((effect.blocks for effect in effects), default=0)
    judged_effects = [effect for effect in effects if not _is_hopeless(effect, most_blocks, analysis.plan.min_blocks)]
    slow = [arm.name for arm, trials in zip(analysis.plan.arms, analysis.slow) if trials.any()]  # noqa: B905
    return most_blocks > 0 and all(is_narrow(effect, target, slow) for effect in judged_effects)
