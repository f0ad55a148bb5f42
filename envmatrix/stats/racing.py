"""Racing: arms that are surely not the best, or surely the same as the baseline, stop early.

A pure function of the trials on disk, so that a resumed run decides what the interrupted one would have
decided. Decisions are taken at a few looks only, and each look spends its part of the error that is
allowed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from envmatrix.matrix.model import Workload
from envmatrix.plan import Plan
from envmatrix.stats.effects import CONFIDENCE, LEVEL, verdict_of
from envmatrix.stats.equal_work import unequal_work
from envmatrix.stats.failures import fails_more
from envmatrix.stats.maxt import critical_value, student_quantile
from envmatrix.stats.measurements import Measurements, first_blocks
from envmatrix.stats.pairing import Family, families, logs_of, paired, ratio_of, reference_logs
from envmatrix.stats.primary import primary_metrics
from envmatrix.stats.spending import level_at

Floats = NDArray[np.float64]
Reason = Literal["not the best", "same as the reference"]
#: Chance that the truly best arm is ever stopped as not the best, over all looks of a family.
ELIMINATION_ERROR = 0.05
#: Of the 5 % for false verdicts, this much is for arms that stop early; the rest is for the end of the run.
EARLY_VERDICT_ERROR = 0.01
#: What is left of the error for the end of a run that raced: a fifth of it was spent early.
_LEFT = 1.0 - EARLY_VERDICT_ERROR / (1.0 - CONFIDENCE)
_GROWTH = 1.35
_MOST_LOOKS = 8


@dataclass(frozen=True)
class Stopped:
    """One arm that left the race after ``block`` blocks. ``level`` is the confidence its interval is given at."""

    arm: str
    block: int
    reason: Reason
    level: float


@dataclass(frozen=True)
class Race:
    """Who runs in the next block, and the confidence ``levels`` that ``analysis.estimate`` is to use.

    ``finished``: nobody is left, or the leader of every family is surely within the margin of the best.
    """

    active: tuple[str, ...]
    stopped: tuple[Stopped, ...] = ()
    finished: bool = False
    leaders: tuple[str, ...] = ()
    levels: Mapping[str, float] = field(default_factory=dict)


def looks(plan: Plan) -> tuple[int, ...]:
    """Return the numbers of blocks after which decisions are taken: from min_blocks, each a third more."""
    at = max(2, plan.min_blocks)
    found: list[int] = []
    while at < plan.max_blocks and len(found) < _MOST_LOOKS:
        found.append(at)
        at = max(at + 1, math.ceil(at * _GROWTH))
    return tuple(found)


def least_lead(logs: Floats, rival: Floats, tests: float) -> Floats:
    """Return by how much, at least, ``rival`` (blocks,) is better than each row of ``logs`` (m, blocks).

    Lower bounds of one-sided paired t intervals, in log units, at ELIMINATION_ERROR / ``tests``; -inf below
    2 pairs. The truly best arm is wronged only if a bound of it against a rival errs, so ``tests`` is the
    number of its rivals times the number of looks (Bonferroni).
    """
    lead = paired(rival[None, :] - logs)
    asked = 1.0 - ELIMINATION_ERROR / tests
    reach = np.array([student_quantile(int(n), asked) if n >= 2 else np.inf for n in lead.blocks])
    with np.errstate(invalid="ignore"):
        bound = lead.mean - reach * lead.spread / np.sqrt(np.maximum(lead.blocks, 1))
    return np.where(np.isfinite(bound), bound, -np.inf)


def surely_not_best(logs: Floats, rivals: Floats, tests: float) -> NDArray[np.bool_]:
    """Say for each row of ``logs`` (m, blocks) whether some row of ``rivals`` (r, blocks) is surely better."""
    beaten = np.zeros(len(logs), dtype=np.bool_)
    for rival in rivals:
        beaten |= least_lead(logs, rival, tests) > 0.0
    return beaten


def surely_near_best(logs: Floats, tests: int, margin: float) -> int | None:
    """Return the row of ``logs`` that no other is better than by more than ``margin``, surely; None: not yet.

    An indifference zone: arms closer than the margin need not be told apart (Kim & Nelson 2001).
    """
    means = paired(logs).mean
    if not np.isfinite(means).any():
        return None
    leader = int(np.nanargmax(means))
    near = least_lead(np.delete(logs, leader, axis=0), logs[leader], tests) > -math.log1p(margin)
    return leader if bool(near.all()) else None


def _same(differences: Floats, family: Family, level: float, margin: float) -> NDArray[np.bool_]:
    numbers = paired(differences)
    found = []
    for blocks, mean, spread in zip(numbers.blocks, numbers.mean, numbers.spread, strict=True):
        if blocks < 2:
            found.append(False)
            continue
        critical = critical_value(int(blocks), len(family.arms), len(family.copies), level=level)
        reach = critical * spread / math.sqrt(blocks)
        found.append(verdict_of(ratio_of(mean - reach), ratio_of(mean + reach), margin) == "same")
    return np.array(found, dtype=np.bool_)


@dataclass(frozen=True)
class Field:
    """The numbers of one family: logs, better upwards, (arms x blocks), those of the reference, and who counts."""

    family: Family
    logs: Floats
    reference: Floats
    eligible: NDArray[np.bool_]


def field_of(family: Family, plan: Plan, measured: Measurements, workloads: Mapping[str, Workload]) -> Field:
    """Collect a family's numbers in its workload's primary metric."""
    metric = primary_metrics(plan, measured, workloads)[family.arms[0].workload]
    index = {name: position for position, name in enumerate(measured.arms)}
    table = metric.sign * logs_of(measured.table[metric.name])
    copies = measured.table[metric.name][[index[name] for name in family.copies]]
    barred = [
        bool(unequal_work(measured, arm, plan)) or fails_more(measured, arm.name, family.copies) for arm in family.arms
    ]
    reference = metric.sign * reference_logs(copies)
    return Field(family, table[[index[arm.name] for arm in family.arms]], reference, ~np.array(barred, dtype=np.bool_))


@dataclass(frozen=True)
class FamilyRace:
    """``stopped`` in order; ``block``: after how many blocks the race was over (None: it goes on)."""

    stopped: tuple[Stopped, ...]
    block: int | None
    leader: str | None


def race_family(field_: Field, blocks: NDArray[np.int64], plan: Plan) -> FamilyRace:
    """Replay the looks of one family over the blocks on disk."""
    at = looks(plan)
    done = int(blocks.max()) + 1 if blocks.size else 0
    active = np.ones(len(field_.family.arms), dtype=np.bool_)
    stopped: list[Stopped] = []
    for look in (look for look in at if look <= done):
        left = _one_look(field_, active, blocks < look, look, plan)
        stopped += left
        active &= ~np.isin([arm.name for arm in field_.family.arms], [item.arm for item in left])
        mine = np.flatnonzero(active & field_.eligible)
        if not mine.size:
            return FamilyRace(tuple(stopped), look, None)
        tests = len(active) * len(at)
        leader = surely_near_best(field_.logs[mine][:, blocks < look], tests, plan.margin)
        if leader is not None:
            return FamilyRace(tuple(stopped), look, field_.family.arms[mine[leader]].name)
    return FamilyRace(tuple(stopped), None, None)


def _one_look(
    field_: Field, active: NDArray[np.bool_], then: NDArray[np.bool_], look: int, plan: Plan
) -> list[Stopped]:
    """Return who stops at one look, judged by the blocks of ``then``."""
    at, family = looks(plan), field_.family
    level = 1.0 - EARLY_VERDICT_ERROR / len(at)
    logs, reference = field_.logs[:, then], field_.reference[then]
    rivals = np.vstack([reference, logs[active & field_.eligible]])
    beaten = surely_not_best(logs, rivals, len(family.arms) * len(at))
    same = _same(logs - reference, family, level, plan.margin)
    reasons: list[Reason | None] = [
        "not the best" if is_beaten else "same as the reference" if is_same else None
        for is_beaten, is_same in zip(beaten, same, strict=True)
    ]
    return [
        Stopped(arm.name, look, reason, level)
        for arm, reason, there in zip(family.arms, reasons, active, strict=True)
        if there and reason
    ]


def next_arms(plan: Plan, measured: Measurements, workloads: Mapping[str, Workload] | None = None) -> Race:
    """Decide which arms run in the next block. Call it after every block; references and controls always stay.

    The last block counts once every arm that was still in has run in it, so a block that is half on disk changes
    nothing. An arm that did unequal work, or that fails more often than its reference, never stops another one.
    """
    race = _replayed(plan, first_blocks(measured, max(0, len(measured.blocks) - 1)), workloads or {})
    ran = [measured.arms.index(name) for name in race.active]
    if measured.blocks.size and measured.attempted[ran, -1].all():
        race = _replayed(plan, measured, workloads or {})
    return replace(race, levels=final_levels(plan, race.stopped, level_at(plan, len(measured.blocks))))


def _replayed(plan: Plan, measured: Measurements, workloads: Mapping[str, Workload]) -> Race:
    """Replay the race of every family over all blocks of ``measured``."""
    references = {family.reference for family in families(plan)}
    raced = [family for family in families(plan) if not family.arms[0].is_control]
    races = [race_family(field_of(family, plan, measured, workloads), measured.blocks, plan) for family in raced]
    stopped = [item for race in races for item in race.stopped if item.arm not in references]
    gone = {item.arm for item in stopped}
    active = tuple(arm.name for arm in plan.arms if arm.name not in gone)
    finished = bool(races) and all(race.block is not None for race in races)
    leaders = tuple(race.leader for race in races if race.leader)
    return Race(active, tuple(stopped), finished, leaders)


def final_levels(plan: Plan, stopped: Sequence[Stopped], level: float = LEVEL) -> dict[str, float]:
    """Return the confidence of every arm's interval in a run that raced; ``level``: had it not."""
    levels = {arm.name: 1.0 - (1.0 - level) * _LEFT for arm in plan.arms if not arm.is_control}
    return {**levels, **{item.arm: item.level for item in stopped}}
