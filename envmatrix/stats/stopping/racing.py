"""Racing: arms that are surely not the best, or surely the same as the baseline, stop early.

Decisions are a pure function of the trials on disk, so a resumed run decides as an uninterrupted one. They are made at
a few interim analyses, each of which spends a part of the allowed error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from envmatrix.matrix.model import Workload
from envmatrix.plan import Plan
from envmatrix.plan.turn_order import unused_reference_copies
from envmatrix.stats.array_types import Bools, Floats, Integers
from envmatrix.stats.effects import CONFIDENCE, LEVEL, level_of_one_sided_bounds, verdict_of
from envmatrix.stats.inference.maxt import critical_value, student_quantile
from envmatrix.stats.measurements import Measurements, first_blocks
from envmatrix.stats.pairing import Family, Views, families, logs_of, mean_copies, ratio_from_log, summarise_pairs
from envmatrix.stats.primary_metric import primary_metrics
from envmatrix.stats.quality.equal_work import unequal_work
from envmatrix.stats.quality.failures import has_larger_failed_share
from envmatrix.stats.quality.slow_trials import LEAST_BLOCKS, find_slow_trials, with_and_without_slow
from envmatrix.stats.stopping.alpha_spending import confidence_level

Reason = Literal["not the best", "same as the reference"]
#: Chance that the best arm is ever stopped as not the best or missing in the best set, over all analyses of a family.
ELIMINATION_ERROR = 0.05
#: The part of it for the best set at the end; the rest is for the interim analyses.
BEST_SET_SHARE = 0.2
#: The part of the 5 % for false verdicts used by arms that stop early; the rest is for the end.
EARLY_VERDICT_ERROR = 0.01
#: The share of the error for the end of a race: a fifth was spent early.
FINAL_ERROR_SHARE = 1.0 - EARLY_VERDICT_ERROR / (1.0 - CONFIDENCE)
_GROWTH = 1.35
_MAX_DECISIONS = 8
#: The share of the error of an interim analysis, over that of the one before.
_SHARE_RATIO = 0.7


@dataclass(frozen=True)
class StoppedArm:
    """An arm that left the race after ``block`` blocks. ``level`` is the confidence of its interval."""

    arm: str
    block: int
    reason: Reason
    level: float


@dataclass(frozen=True)
class Race:
    """The arms that run in the next block, and the confidence ``levels`` for ``effect_estimation.estimate``.

    ``finished``: no arm is left, or the leader of every family is surely within the margin of the best.
    """

    active: tuple[str, ...]
    stopped: tuple[StoppedArm, ...] = ()
    finished: bool = False
    leaders: tuple[str, ...] = ()
    levels: Mapping[str, float] = field(default_factory=dict)


def decision_blocks(plan: Plan) -> tuple[int, ...]:
    """Return the block counts after which decisions are made: ``min_blocks``, then about a third more each time."""
    count = max(2, plan.min_blocks)
    block_counts: list[int] = []
    while count < plan.max_blocks and len(block_counts) < _MAX_DECISIONS:
        block_counts.append(count)
        count = max(count + 1, math.ceil(count * _GROWTH))
    return tuple(block_counts)


def error_share(plan: Plan, look: int) -> float:
    """Return the share of a race's error that the interim analysis after ``look`` blocks may spend.

    Each has less than the one before: with few blocks, error is worth more, and an arm that leaves early saves more.
    Shares do not depend on the last block, so a run that is resumed with more blocks keeps its decisions.
    """
    return float((1.0 - _SHARE_RATIO) * _SHARE_RATIO ** decision_blocks(plan).index(look))


def rivals_lead_lower_bounds(logs: Views, rivals: Views, tests: float) -> Floats:
    """Return by how much, at least, each row of ``rivals`` is better than each row of ``logs``: (rivals, rows).

    These are lower bounds of one-sided paired t intervals, in log units, at ELIMINATION_ERROR / ``tests``. The lowest
    of all views counts; it is -inf below 2 pairs. The best arm is stopped wrongly only if a bound against a rival errs.
    So ``tests`` is the number of rivals over this analysis' share of the error (Bonferroni).
    """
    confidence = 1.0 - ELIMINATION_ERROR / tests
    bounds = [
        [_lower_bounds(rival - row_logs, logs.gaps, confidence) for rival in others]
        for row_logs, others in zip(logs.every, rivals.every, strict=True)
    ]
    shape = len(bounds), len(rivals.with_all_trials), len(logs.with_all_trials)
    return np.asarray(np.array(bounds).reshape(shape).min(axis=0))


def _lower_bounds(lead: Floats, gaps: Floats | None, confidence: float) -> Floats:
    numbers = summarise_pairs(lead, gaps)
    reach = np.array([student_quantile(int(n), confidence) if n >= 2 else np.inf for n in numbers.units])
    with np.errstate(invalid="ignore"):
        bound = numbers.mean - reach * numbers.error
    return np.where(np.isfinite(bound), bound, -np.inf)


def surely_not_best(logs: Views, rivals: Views, tests: float) -> Bools:
    """Return for each row of ``logs`` whether some row of ``rivals`` is surely better."""
    return np.asarray((rivals_lead_lower_bounds(logs, rivals, tests) > 0.0).any(axis=0))


def surely_near_best(logs: Views, tests: float, margin: float) -> int | None:
    """Return the row of ``logs`` that surely no other beats by more than ``margin``, or None if there is none yet.

    This is an indifference zone: arms closer than the margin need not be distinguished (Kim & Nelson 2001).
    """
    means = logs.paired()[0].mean
    if not np.isfinite(means).any():
        return None
    leader = int(np.nanargmax(means))
    others = np.delete(np.arange(len(means)), leader)
    near = rivals_lead_lower_bounds(logs.rows(others), logs.rows([leader]), tests) > -math.log1p(margin)
    return leader if bool(near.all()) else None


def _is_same_as_reference(differences: Views, family: Family, level: float, margin: float) -> Bools:
    """Return for each row whether it is surely the same as the reference, in every view."""
    same = np.ones(len(differences.with_all_trials), dtype=np.bool_)
    confidence = level_of_one_sided_bounds(level)
    for numbers in differences.paired():
        for row, (mean, error, units) in enumerate(zip(numbers.mean, numbers.error, numbers.units, strict=True)):
            if units < 2:
                same[row] = False
                continue
            reach = critical_value(int(units), family.together, len(family.copies), level=confidence, own=True) * error
            same[row] &= verdict_of(ratio_from_log(mean - reach), ratio_from_log(mean + reach), margin) == "same"
    return same


@dataclass(frozen=True)
class FamilyData:
    """The numbers of one family: logs (higher is better) of arms and reference copies, and eligible arms.

    Both are (rows, blocks); ``gaps``: see ``standard_errors.block_gaps``. ``breaks``: the reference fails
    more often than some arm. It may then look too fast, and removes no arm.
    """

    family: Family
    logs: Floats
    copies: Floats
    eligible: Bools
    gaps: Floats | None = None
    breaks: bool = False


def family_data(family: Family, plan: Plan, measured: Measurements, workloads: Mapping[str, Workload]) -> FamilyData:
    """Return a family's numbers in its workload's primary metric."""
    metric = primary_metrics(plan, measured, workloads)[family.arms[0].workload]
    index = {name: position for position, name in enumerate(measured.arms)}
    table = metric.sign * logs_of(measured.table[metric.name])
    barred = [
        bool(measured.facts[arm.name].unproven or unequal_work(measured, arm, plan))
        or has_larger_failed_share(measured, [arm.name], family.copies)
        for arm in family.arms
    ]
    logs, copies = table[[index[arm.name] for arm in family.arms]], table[[index[name] for name in family.copies]]
    breaks = any(has_larger_failed_share(measured, family.copies, [arm.name]) for arm in family.arms)
    return FamilyData(family, logs, copies, ~np.array(barred, dtype=np.bool_), measured.block_gaps, breaks)


@dataclass(frozen=True)
class FamilyRace:
    """The race of a family: ``stopped`` arms in order, and the ``block`` count at its end (None: not over)."""

    stopped: tuple[StoppedArm, ...]
    block: int | None
    leader: str | None


def race_family(data: FamilyData, blocks: Integers, plan: Plan) -> FamilyRace:
    """Replay the interim analyses of one family over the blocks on disk."""
    active, stopped = np.ones(len(data.family.arms), dtype=np.bool_), list[StoppedArm]()
    for look in (look for look in decision_blocks(plan) if look <= blocks.max(initial=-1) + 1):
        newly_stopped, leader = _decide(data, active, blocks < look, look, plan)
        stopped += newly_stopped
        if leader is not None or not (active & data.eligible).any():
            return FamilyRace(tuple(stopped), look, leader)
    return FamilyRace(tuple(stopped), None, None)


def _decide(data: FamilyData, active: Bools, then: Bools, look: int, plan: Plan) -> tuple[list[StoppedArm], str | None]:
    """Return the arms that stop at an interim analysis of the blocks ``then``, and the leader if the race is over.

    The arms that stop are removed from ``active``. Those with slow trials stop no other.
    """
    family, share, count = data.family, error_share(plan, look), len(data.copies)
    rows = np.vstack([data.copies, data.logs])[:, then]
    slow = find_slow_trials(rows)
    views = Views(with_and_without_slow(rows, slow), None if data.gaps is None else data.gaps[then])
    reference = Views(tuple(mean_copies(view[:count])[None, :] for view in views.every), views.gaps)
    logs = views.rows(np.arange(count, len(rows)))
    has_slow = np.asarray(slow.any(axis=1) & (int(then.sum()) < LEAST_BLOCKS))
    reference_waits, waits = bool(has_slow[:count].any()), has_slow[count:]
    rivals = logs.rows(np.flatnonzero(active & data.eligible & ~waits))
    rivals = rivals if reference_waits or data.breaks else reference.stacked_on(rivals)
    beaten = surely_not_best(logs, rivals, len(family.arms) / (share * (1.0 - BEST_SET_SHARE))) & ~waits
    level = 1.0 - EARLY_VERDICT_ERROR * share
    same = _is_same_as_reference(logs.minus(reference), family, level, plan.margin) & ~(waits | reference_waits)
    stopped = [
        StoppedArm(arm.name, look, "not the best" if is_beaten else "same as the reference", level)
        for arm, is_beaten, stops in zip(family.arms, beaten, active & (beaten | same), strict=True)
        if stops
    ]
    active &= ~(beaten | same)
    eligible_rows = np.flatnonzero(active & data.eligible)
    # Equal shares of the error: a small margin is shown late.
    best = surely_near_best(logs.rows(eligible_rows), len(active) * _MAX_DECISIONS, plan.margin)
    if best is None or waits[eligible_rows[best]]:
        return stopped, None
    return stopped, family.arms[eligible_rows[best]].name


def next_arms(plan: Plan, measured: Measurements, workloads: Mapping[str, Workload] | None = None) -> Race:
    """Return the race with the arms of the next block. Call it after every block; references and controls remain.

    A copy of a reference (``unused_reference_copies``) leaves with the last arm compared with it. The last block counts
    once every remaining arm has run in it, so a half-written block changes nothing. An arm never stops another if it
    did unequal work, fails more often than its reference, or is not verified.
    """
    race = _replay_races(plan, first_blocks(measured, max(0, len(measured.blocks) - 1)), workloads or {})
    ran = [measured.arms.index(name) for name in race.active]
    if measured.blocks.size and measured.attempted[ran, -1].all():
        race = _replay_races(plan, measured, workloads or {})
    return replace(
        race, levels=confidence_levels_of_all_arms(plan, race.stopped, confidence_level(plan, len(measured.blocks)))
    )


def _replay_races(plan: Plan, measured: Measurements, workloads: Mapping[str, Workload]) -> Race:
    """Replay the race of every family over all blocks of ``measured``."""
    references = {family.reference for family in families(plan)}
    raced = [family for family in families(plan) if not family.arms[0].is_control]
    races = [race_family(family_data(family, plan, measured, workloads), measured.blocks, plan) for family in raced]
    stopped = [item for race in races for item in race.stopped if item.arm not in references]
    stopped_names = {item.arm for item in stopped}
    stopped_names |= unused_reference_copies(plan.arms, stopped_names)
    active = tuple(arm.name for arm in plan.arms if arm.name not in stopped_names)
    finished = bool(races) and all(race.block is not None for race in races)
    leaders = tuple(race.leader for race in races if race.leader)
    return Race(active, tuple(stopped), finished, leaders)


def confidence_levels_of_all_arms(plan: Plan, stopped: Sequence[StoppedArm], level: float = LEVEL) -> dict[str, float]:
    """Return the confidence of every arm's interval after a race; ``level`` is that without a race."""
    levels = {arm.name: 1.0 - (1.0 - level) * FINAL_ERROR_SHARE for arm in plan.arms if not arm.is_control}
    return {**levels, **{item.arm: item.level for item in stopped}}
