"""Estimation of effects: each arm against its reference, or any two arms, by paired log ratios over blocks."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from envmatrix.matrix.known_variables import NOT_IN_EFFECT
from envmatrix.matrix.model import Workload
from envmatrix.plan import Arm, Plan
from envmatrix.plan.environment import Environment
from envmatrix.stats.array_types import Bools, Floats
from envmatrix.stats.effects import (
    LEVEL,
    Effect,
    Flag,
    Verdict,
    draw_conclusion,
    hull,
    unless_contended,
    verdict_of,
    withheld,
)
from envmatrix.stats.inference.maxt import moderated_errors
from envmatrix.stats.measurements import Measurements
from envmatrix.stats.metrics import METRICS, Metric
from envmatrix.stats.pairing import (
    Family,
    PairedStatistics,
    Views,
    families,
    log_ratios_over_copy_mean,
    logs_of,
    name_with_copy_as_original,
    ratio_from_log,
    rescale_uninterrupted_arms,
)
from envmatrix.stats.primary_metric import further_metrics, primary_metrics
from envmatrix.stats.quality.contention import Waiting, contention_bounds, cpu_waits
from envmatrix.stats.quality.equal_work import unequal_work
from envmatrix.stats.quality.failures import (
    fill_with_slowest,
    has_larger_failed_share,
    ratios_with_slowest_failed_reference,
    surely_slower,
)
from envmatrix.stats.quality.slow_trials import needs_more_blocks, slow_trial_mask, with_and_without_slow
from envmatrix.stats.stopping.alpha_spending import confidence_level, interim_analysis_blocks
from envmatrix.stats.stopping.racing import Race, next_arms
from envmatrix.stats.trial_text_counts import ArmFacts

OPPOSITE: Mapping[Verdict, Verdict] = {"faster": "slower", "slower": "faster"}


@dataclass(frozen=True)
class Analysis:
    """All effects of a run, in the order of the plan, metric by metric; ``race`` is set if the run raced.

    ``level`` is the confidence of the intervals; ``looks`` are the block counts at which the run was read, the last one
    now. ``slow`` (arms, blocks) marks the slow trials of the primary metrics; ``for_cpus`` is how arms waited for CPUs.
    """

    plan: Plan
    effects: tuple[Effect, ...]
    primary: Mapping[str, Metric] = field(default_factory=dict)
    race: Race | None = None
    level: float = LEVEL
    looks: tuple[int, ...] = ()
    slow: Bools = field(default_factory=lambda: np.zeros((0, 0), dtype=np.bool_))
    for_cpus: Mapping[str, Waiting] = field(default_factory=dict)

    def level_of(self, arm: str) -> float:
        """Return the confidence of an arm's interval; if it left the race early, that of its early verdict."""
        return self.race.levels.get(arm, self.level) if self.race else self.level

    def primary_effects(self) -> tuple[Effect, ...]:
        """Return the effects in the primary metric, on which verdicts are based: one per arm with a reference."""
        return tuple(effect for effect in self.effects if effect.primary)

    def find(self, arm: str, metric: str | None = None) -> Effect | None:
        """Return the effect of an arm in a metric (None: its primary metric), or None."""
        for effect in self.effects:
            if effect.arm == arm and (effect.primary if metric is None else effect.metric == metric):
                return effect
        return None


@dataclass(frozen=True)
class _Input:
    """The input of estimation: an analysis without its effects, and what was measured and configured."""

    analysis: Analysis
    measured: Measurements
    environments: Mapping[str, Environment]


def estimate(
    plan: Plan, measured: Measurements, *, workloads: Mapping[str, Workload] | None = None, environments: Mapping[str,
    Environment] | None = None, metrics: Sequence[str] | None = None,
) -> Analysis:  # fmt: skip
    """Estimate the effect of every arm against its reference.

    ``workloads`` and ``environments`` are those of the run; they define the primary metric and changes of numerics.
    ``metrics`` are the secondary metrics to report (None: all); the primary metric always comes first. Intervals of a
    (family, metric) are simultaneous at 95 %, over all interim analyses (``alpha_spending``). In a race, an arm that
    left early has the confidence of its early verdict.
    """
    primary = primary_metrics(plan, measured, workloads or {})
    requested_metrics = [METRICS[name] for name in (METRICS if metrics is None else metrics)]
    race = next_arms(plan, measured, workloads) if plan.race else None
    looks = interim_analysis_blocks(plan, len(measured.blocks))
    slow = slow_trial_mask(plan, measured, primary)
    level, for_cpus = confidence_level(plan, looks[-1]), cpu_waits(plan, measured)
    run = _Input(Analysis(plan, (), primary, race, level, looks, slow, for_cpus), measured, environments or {})
    effects: list[Effect] = []
    for family in families(plan):
        work_differences = {arm.name: unequal_work(measured, arm, plan) for arm in family.arms}
        family_primary = primary[family.arms[0].workload]
        further = further_metrics((workloads or {}).get(family.arms[0].workload)) if metrics is None else ()
        others = (metric for metric in (*further, *requested_metrics) if metric.name != family_primary.name)
        for metric in (family_primary, *(metric for metric in others if metric.name in measured.table)):
            effects += [
                replace(
                    _with_flags(effect, arm, work_differences[arm.name], run, family.copies, metric),
                    primary=metric is family_primary,
                    worst=effect.worst if metric is family_primary else None,
                )
                for arm, effect in zip(family.arms, _family_effects(family, metric, run), strict=True)
                if effect.ratio is not None or metric is family_primary
            ]
    order = {arm.name: index for index, arm in enumerate(plan.arms)}
    return replace(run.analysis, effects=tuple(sorted(effects, key=lambda effect: order[effect.arm])))


def _family_effects(family: Family, metric: Metric, run: _Input) -> list[Effect]:
    measured = run.measured
    index = {name: position for position, name in enumerate(measured.arms)}
    arm_rows, copies = [index[arm.name] for arm in family.arms], [index[name] for name in family.copies]
    logs = metric.sign * logs_of(measured.table[metric.name][[*copies, *arm_rows]])
    is_primary = metric == run.analysis.primary[family.arms[0].workload]
    log_views = with_and_without_slow(logs, run.analysis.slow[[*copies, *arm_rows]]) if is_primary else (logs,)
    views = Views(tuple(log_ratios_over_copy_mean(view, len(copies)) for view in log_views), measured.block_gaps)
    differences = views.with_all_trials
    attempted_pairs = measured.attempted[arm_rows] & measured.attempted[copies[0]]
    separate_logs = logs_of(measured.table[metric.name][[index[arm.name] for arm in family.beside]])
    comparison_counts = (
        max(1, sum(int(np.isfinite(rows).any(axis=1).sum()) for rows in (differences, separate_logs))),
        len(copies),
    )
    incomplete = (attempted_pairs & ~np.isfinite(differences)).sum(axis=1)
    effects = worst_effects = best = _effects_in_all_views(family.arms, views, comparison_counts, run)
    if incomplete.any():
        filled = Views(
            (fill_with_slowest(differences, attempted_pairs, measured, copies), *views.every[1:]), views.gaps
        )
        worst_effects = _effects_in_all_views(family.arms, filled, comparison_counts, run)
    broke = is_primary and bool((measured.attempted[copies] & ~np.isfinite(logs[: len(copies)])).any())
    if broke:
        filled = Views(
            (ratios_with_slowest_failed_reference(logs, measured, copies, arm_rows), *views.every[1:]), views.gaps
        )
        best = _effects_in_all_views(family.arms, filled, comparison_counts, run)
    ends = zip((one.low for one in worst_effects), (one.high for one in best), strict=True)
    return [
        replace(
            effect, metric=metric.name, incomplete=int(lacking), worst=low if lacking else None,
            best=high if broke else None,
        )
        for effect, (low, high), lacking in zip(effects, ends, incomplete, strict=True)
    ]  # fmt: skip


def _effects_in_all_views(
    arms: Sequence[Arm], views: Views, comparison_counts: tuple[int, int], run: _Input
) -> list[Effect]:
    as_measured, *without_slow = (
        (numbers, *moderated_errors(numbers.error, numbers.units, comparison_counts[0])) for numbers in views.paired()
    )
    effects, plan = [], run.analysis.plan
    for row, arm in enumerate(arms):
        effect = _effect(arm, row, as_measured, comparison_counts, run, max(2, plan.min_blocks))
        for view, other in zip(views.every[1:], without_slow, strict=True):
            if not np.array_equal(view[row], views.with_all_trials[row], equal_nan=True):
                usual = _effect(arm, row, other, comparison_counts, run, 2)
                effect = _cover_both_views(effect, usual, plan.margin)
        effects.append(effect)
    return effects


def _effect(
    arm: Arm, row: int, judged: tuple[PairedStatistics, Floats, Bools], among: tuple[int, int], run: _Input,
    min_blocks: int,
) -> Effect:  # fmt: skip
    """Return the effect of one row's mean; ``among`` is the number of comparisons and of reference copies.

    ``judged`` also has the errors (m,) used for conclusions, and which of them (m,) are not moderated.
    """
    numbers, errors, is_own = judged
    blocks, mean, spread = int(numbers.blocks[row]), float(numbers.mean[row]), float(numbers.spread[row])
    error, units = float(numbers.error[row]), int(numbers.units[row])
    effect = Effect(
        workload=arm.workload, environment=arm.environment, engine=arm.engine, reference=arm.reference or "",
        metric="", ratio=ratio_from_log(mean) if blocks else None, low=None, high=None, p=None, verdict="undecided",
        blocks=blocks, arm=arm.name, spread=spread if math.isfinite(spread) else None,
        error=error if math.isfinite(error) else None, units=units,
    )  # fmt: skip
    if blocks < min_blocks:
        return replace(effect, missing=min_blocks - blocks)
    level, margin = run.analysis.level_of(arm.name), run.analysis.plan.margin
    conclusion = draw_conclusion(mean, float(errors[row]), units, *among, level, margin, own=bool(is_own[row]))
    return replace(effect, **vars(conclusion))


def _cover_both_views(effect: Effect, usual: Effect, margin: float) -> Effect:
    """Return the effect with interval, p and verdict that are valid both with and without (``usual``) slow trials."""
    combined = replace(effect, usual=usual.ratio)
    if effect.low is None or effect.high is None or effect.p is None:
        return combined
    if usual.low is None or usual.high is None or usual.p is None:
        return replace(combined, low=None, high=None, p=None, verdict="undecided", one_sided=None)
    low, high = min(effect.low, usual.low), max(effect.high, usual.high)
    one_sided = hull(effect.one_sided, usual.one_sided)
    covering = replace(combined, low=low, high=high, p=max(effect.p, usual.p), one_sided=one_sided)
    return replace(covering, verdict=verdict_of(low, high, margin, one_sided))


def _with_flags(
    effect: Effect, arm: Arm, work_notes: tuple[str, ...], run: _Input, copies: Sequence[str], metric: Metric
) -> Effect:
    facts, analysis = run.measured.facts[arm.name], run.analysis
    outcomes, environment = facts.outcomes, run.environments.get(arm.runs)
    flag_states = {
        Flag.UNEQUAL_WORK: bool(work_notes),
        Flag.CHANGES_NUMERICS: environment is not None and environment.changes_numerics,
        Flag.STAND_IN: facts.stand_in > 0,
        Flag.TOO_FEW_BLOCKS: effect.missing > 0,
        Flag.FAILED: outcomes["failed"] + outcomes["timed_out"] > 0,
        Flag.INVALID: outcomes["invalid"] > 0,
        Flag.FAILS_MORE: not arm.is_control and has_larger_failed_share(run.measured, [arm.name], copies),
        Flag.REFERENCE_FAILS_MORE: has_larger_failed_share(run.measured, copies, [arm.name]),
        Flag.INCOMPLETE: effect.incomplete > 0,
        Flag.UNPROVEN: bool(facts.unproven),
        Flag.NOT_IN_EFFECT: any(text.startswith(NOT_IN_EFFECT) for text in facts.unproven),
        Flag.SLOW_TRIALS: bool(analysis.slow[run.measured.arms.index(arm.name)].any()),
        Flag.NO_OP: not arm.is_control and _is_no_op(arm, run),
    }
    if needs_more_blocks(analysis.plan, analysis.slow, (arm.name, *copies), effect.blocks):
        effect = withheld(effect, Flag.SLOW_TRIALS)
    if flag_states[Flag.REFERENCE_FAILS_MORE]:
        effect = _unless_slower_at_best(effect, [run.measured.facts[name] for name in copies])
    if metric.is_speed:
        effect = unless_contended(effect, contention_bounds(analysis.for_cpus, copies, arm.name), analysis.plan.margin)
        flag_states[Flag.CONTENDED] = effect.contended.shares is not None or effect.withheld == Flag.CONTENDED
    return replace(effect, flags=tuple(flag for flag, is_set in flag_states.items() if is_set), notes=work_notes)


def _unless_slower_at_best(effect: Effect, reference: Sequence[ArmFacts]) -> Effect:
    """Withdraw 'slower' if more trials of the reference failed: without its slow ones it looks too fast."""
    stays = effect.verdict != "slower" or surely_slower(effect.best, reference)
    return effect if stays else withheld(effect, Flag.REFERENCE_FAILS_MORE)


def _is_no_op(arm: Arm, run: _Input) -> bool:
    """Return whether everything an arm checks beyond its reference was also true of the reference.

    Return False without such checks, if some were not verified, or if one is of a variable, whose reader is unknown. A
    setting without a check may have an effect that nothing shows.
    """
    reference = next((other for other in run.analysis.plan.arms if other.name == arm.reference), None)
    if run.measured.facts[arm.name].unproven or reference is None or arm.workload != reference.workload:
        return False
    environment, other = run.environments.get(arm.runs), run.environments.get(reference.runs)
    extra_claims = set(environment.claims) - set(other.claims) if environment and other else set()
    if not extra_claims or any(claim.path.startswith("variables.") for claim in extra_claims):
        return False
    settings, reference_settings = (run.measured.facts[name].settled for name in (arm.name, reference.name))
    return bool(settings) and set(settings) <= set(reference_settings)


def between(
    analysis: Analysis, measured: Measurements, old: Arm, new: Arm,
    environments: Mapping[str, Environment] | None = None,
) -> Effect:  # fmt: skip
    """Return the effect of ``new`` over ``old``, two arms of one run.

    If one is the other's reference, this is the effect of the table, inverted if needed. Otherwise the interval is
    simultaneous over all pairs of the table's arms, so you may pick a pair after seeing the results. An uninterrupted
    copy of a reference is replaced by that reference, unless the two are compared with each other.
    """
    plan = analysis.plan
    if name_with_copy_as_original(old.name, plan) != name_with_copy_as_original(new.name, plan):
        old, new = (
            next(arm for arm in plan.arms if arm.name == name_with_copy_as_original(side.name, plan))
            for side in (old, new)
        )
    listed_effect = analysis.find(new.name) if name_with_copy_as_original(new.reference, plan) == old.name else None
    reverse_effect = analysis.find(old.name) if name_with_copy_as_original(old.reference, plan) == new.name else None
    if listed_effect:
        return listed_effect
    if reverse_effect is None:
        return _contrast(analysis, measured, old, new, environments or {})
    inverted = invert_effect(reverse_effect, old, new)
    fails_more_often = Flag.FAILS_MORE in reverse_effect.flags
    return _unless_slower_at_best(inverted, [measured.facts[old.name]]) if fails_more_often else inverted


def is_blocked_by_slow_trials(analysis: Analysis, sides: Collection[str], blocks: int) -> bool:
    """Return whether two arms have no verdict yet because one of them, or its control, has slow trials."""
    controls = {arm.name for arm in analysis.plan.arms if arm.is_control and arm.reference in sides}
    return needs_more_blocks(analysis.plan, analysis.slow, {*sides, *controls}, blocks)


def invert_effect(effect: Effect, old: Arm, new: Arm) -> Effect:
    """Return the effect of ``old`` over its reference ``new`` inverted: of ``new`` over ``old``."""
    figures = (effect.ratio, effect.high, effect.low, effect.usual, effect.best, effect.worst)
    ratio, low, high, usual, worst, best = (None if value is None else 1.0 / value for value in figures)
    one_sided = effect.one_sided and (1.0 / effect.one_sided[1], 1.0 / effect.one_sided[0])
    return replace(
        effect, environment=new.environment, workload=new.workload, engine=new.engine, arm=new.name,
        reference=old.name, ratio=ratio, low=low, high=high, verdict=OPPOSITE.get(effect.verdict, effect.verdict),
        usual=usual, worst=worst, best=best, contended=effect.contended.inverted, one_sided=one_sided,
    )  # fmt: skip


def _contrast(
    analysis: Analysis, measured: Measurements, old: Arm, new: Arm, environments: Mapping[str, Environment]
) -> Effect:
    plan = analysis.plan
    highest_level = max(analysis.level_of(arm.name) for arm in (old, new))
    # Bonferroni: drawing the largest |t| of all pairs would make intervals only 1 % narrower.
    level = 1.0 - (1.0 - highest_level) / pairs_to_pick_from(plan, measured, old, new)
    work_notes, slow = _work_differences(measured, old, new, plan), analysis.slow
    if name_with_copy_as_original(old.name, plan) != name_with_copy_as_original(new.name, plan):
        measured, slow = rescale_uninterrupted_arms(plan, measured, analysis.primary, slow)
    # A family of one is not moderated: the family's mean variance depends on the reference.
    run = _Input(replace(analysis, race=None, level=level, slow=slow), measured, environments)
    family = Family(old.name, (old.name,), (replace(new, reference=old.name),))
    metric = analysis.primary[old.workload]
    (effect,) = _family_effects(family, metric, run)
    return replace(_with_flags(effect, family.arms[0], work_notes, run, family.copies, metric), primary=True)


def _work_differences(measured: Measurements, old: Arm, new: Arm, plan: Plan) -> tuple[str, ...]:
    """Return how the work of two arms differs; if only one is interleaved, compare each with its own reference."""
    is_separate = [
        arm.is_uninterrupted_copy or name_with_copy_as_original(arm.reference, plan) != arm.reference
        for arm in (old, new)
    ]
    if is_separate[0] is is_separate[1]:
        return unequal_work(measured, replace(new, reference=old.name), plan)
    return tuple(text for arm in (old, new) if arm.reference for text in unequal_work(measured, arm, plan))


def pairs_to_pick_from(plan: Plan, measured: Measurements, old: Arm, new: Arm) -> int:
    """Return how many pairs the two can be picked from: of all arms with numbers in their table, or both tables."""
    both = {old.name, new.name}
    tables = [{*family.copies, *(arm.name for arm in (*family.arms, *family.beside))} for family in families(plan)]
    known = set().union(*([own for own in tables if both <= own] or [own for own in tables if both & own]))
    ran = {name for name in known if measured.facts[name].outcomes["ok"]}
    names = {arm.name for arm in plan.arms if arm.name in ran and not (arm.is_control or arm.is_uninterrupted_copy)}
    return math.comb(len(names | both), 2)
