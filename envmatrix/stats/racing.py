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
from envmatrix.plan.interleaving import left_behind
from envmatrix.stats.alpha_spending import level_at
from envmatrix.stats.effects import CONFIDENCE, LEVEL, verdict_of
from envmatrix.stats.equal_work import unequal_work
from envmatrix.stats.failures import fails_more, reference_fails_more
from envmatrix.stats.maxt import critical_value, student_quantile
from envmatrix.stats.measurements import Measurements, first_blocks
from envmatrix.stats.pairing import Family, Views, families, logs_of, mean_copies, ratio_of
from envmatrix.stats.primary_metric import primary_metrics
from envmatrix.stats.slow_trials import LEAST_BLOCKS, both, find_slow

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


def least_lead(logs: Views, rivals: Views, tests: float) -> Floats:
    """Return by how much, at least, each row of ``rivals`` is better than each row of ``logs``: (rivals, rows).

    Lower bounds of one-sided paired t intervals, in log units, at ELIMINATION_ERROR / ``tests``, the lowest of all
    views; -inf below 2 pairs. The truly best arm is wronged only if a bound of it against a rival errs, so ``tests``
    is the number of its rivals times the number of looks (Bonferroni).
    """
    asked = 1.0 - ELIMINATION_ERROR / tests
    found = [
        [_least(Views((rival - own,), logs.far), asked) for rival in others]
        for own, others in zip(logs.every, rivals.every, strict=True)
    ]
    shape = len(found), len(rivals.measured), len(logs.measured)
    return np.asarray(np.array(found).reshape(shape).min(axis=0))


def _least(lead: Views, asked: float) -> Floats:
    (numbers,) = lead.paired()
    reach = np.array([student_quantile(int(n), asked) if n >= 2 else np.inf for n in numbers.units])
    with np.errstate(invalid="ignore"):
        bound = numbers.mean - reach * numbers.error
    return np.where(np.isfinite(bound), bound, -np.inf)


def surely_not_best(logs: Views, rivals: Views, tests: float) -> NDArray[np.bool_]:
    """Say for each row of ``logs`` whether some row of ``rivals`` is surely better."""
    return np.asarray((least_lead(logs, rivals, tests) > 0.0).any(axis=0))


def surely_near_best(logs: Views, tests: int, margin: float) -> int | None:
    """Return the row of ``logs`` that no other is better than by more than ``margin``, surely; None: not yet.

    An indifference zone: arms closer than the margin need not be told apart (Kim & Nelson 2001).
    """
    means = logs.paired()[0].mean
    if not np.isfinite(means).any():
        return None
    leader = int(np.nanargmax(means))
    others = np.delete(np.arange(len(means)), leader)
    near = least_lead(logs.rows(others), logs.rows([leader]), tests) > -math.log1p(margin)
    return leader if bool(near.all()) else None


def _same(differences: Views, family: Family, level: float, margin: float) -> NDArray[np.bool_]:
    """Say for each row whether it is surely the same as the reference, in every view."""
    same = np.ones(len(differences.measured), dtype=np.bool_)
    for numbers in differences.paired():
        for row, (mean, error, units) in enumerate(zip(numbers.mean, numbers.error, numbers.units, strict=True)):
            if units < 2:
                same[row] = False
                continue
            reach = critical_value(int(units), family.together, len(family.copies), level=level, own=True) * error
            same[row] &= verdict_of(ratio_of(mean - reach), ratio_of(mean + reach), margin) == "same"
    return same


@dataclass(frozen=True)
class Field:
    """The numbers of one family: logs, better upwards, of its arms and of its reference's copies, and who counts.

    Both are (rows, blocks); ``far`` is ``longrun.apart`` of the blocks. ``breaks``: the reference breaks more often
    than some arm, so that it may look too fast, and puts nobody out.
    """

    family: Family
    logs: Floats
    copies: Floats
    eligible: NDArray[np.bool_]
    far: Floats | None = None
    breaks: bool = False


@dataclass(frozen=True)
class _Then:
    """What was known of a family at a look: logs of arms and of the reference, and what must wait for more blocks."""

    logs: Views
    reference: Views
    waits: NDArray[np.bool_]
    reference_waits: bool


def _then(field_: Field, then: NDArray[np.bool_]) -> _Then:
    """Return what the blocks of ``then`` say."""
    count, far = len(field_.copies), None if field_.far is None else field_.far[then]
    rows = np.vstack([field_.copies, field_.logs])[:, then]
    slow = find_slow(rows)
    every = both(rows, slow)
    waits = np.asarray(slow.any(axis=1) & (int(then.sum()) < LEAST_BLOCKS))
    reference = Views(tuple(mean_copies(view[:count])[None, :] for view in every), far)
    logs = Views(tuple(view[count:] for view in every), far)
    return _Then(logs, reference, waits[count:], bool(waits[:count].any()))


def field_of(family: Family, plan: Plan, measured: Measurements, workloads: Mapping[str, Workload]) -> Field:
    """Collect a family's numbers in its workload's primary metric."""
    metric = primary_metrics(plan, measured, workloads)[family.arms[0].workload]
    index = {name: position for position, name in enumerate(measured.arms)}
    table = metric.sign * logs_of(measured.table[metric.name])
    barred = [
        bool(measured.facts[arm.name].unproven or unequal_work(measured, arm, plan))
        or fails_more(measured, arm.name, family.copies)
        for arm in family.arms
    ]
    logs, copies = table[[index[arm.name] for arm in family.arms]], table[[index[name] for name in family.copies]]
    breaks = any(reference_fails_more(measured, arm.name, family.copies) for arm in family.arms)
    return Field(family, logs, copies, ~np.array(barred, dtype=np.bool_), measured.apart, breaks)


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
        known = _then(field_, blocks < look)
        left = _one_look(field_, active, known, look, plan)
        stopped += left
        active &= ~np.isin([arm.name for arm in field_.family.arms], [item.arm for item in left])
        mine = np.flatnonzero(active & field_.eligible)
        if not mine.size:
            return FamilyRace(tuple(stopped), look, None)
        tests = len(active) * len(at)
        leader = surely_near_best(known.logs.rows(mine), tests, plan.margin)
        if leader is not None and not known.waits[mine[leader]]:
            return FamilyRace(tuple(stopped), look, field_.family.arms[mine[leader]].name)
    return FamilyRace(tuple(stopped), None, None)


def _one_look(field_: Field, active: NDArray[np.bool_], known: _Then, look: int, plan: Plan) -> list[Stopped]:
    """Return who stops at one look, judged by what was ``known`` then; arms with slow trials stop nobody."""
    at, family = looks(plan), field_.family
    level = 1.0 - EARLY_VERDICT_ERROR / len(at)
    rivals = known.logs.rows(np.flatnonzero(active & field_.eligible & ~known.waits))
    rivals = rivals if known.reference_waits or field_.breaks else known.reference.over(rivals)
    beaten = surely_not_best(known.logs, rivals, len(family.arms) * len(at)) & ~known.waits
    same = _same(known.logs.less(known.reference), family, level, plan.margin)
    same &= ~(known.waits | known.reference_waits)
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

    A copy of a reference (``plan.turns``) leaves with the last arm that is compared with it.

    The last block counts once every arm that was still in has run in it, so a block that is half on disk changes
    nothing. An arm that did unequal work, fails more often than its reference or is unproven never stops another one.
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
    gone |= left_behind(plan.arms, gone)
    active = tuple(arm.name for arm in plan.arms if arm.name not in gone)
    finished = bool(races) and all(race.block is not None for race in races)
    leaders = tuple(race.leader for race in races if race.leader)
    return Race(active, tuple(stopped), finished, leaders)


def final_levels(plan: Plan, stopped: Sequence[Stopped], level: float = LEVEL) -> dict[str, float]:
    """Return the confidence of every arm's interval in a run that raced; ``level``: had it not."""
    levels = {arm.name: 1.0 - (1.0 - level) * _LEFT for arm in plan.arms if not arm.is_control}
    return {**levels, **{item.arm: item.level for item in stopped}}
