"""Comparison of two environments of one run, whose trials are paired by block."""

from __future__ import annotations

from dataclasses import replace

from envmatrix.errors import InputError
from envmatrix.plan import CONTROL, SIDES, Arm
from envmatrix.results import Run
from envmatrix.stats.attribution.explanation import explain_pair
from envmatrix.stats.comparisons import result
from envmatrix.stats.comparisons.result import ArmComparison, Comparison, SteadyComparison
from envmatrix.stats.effect_estimation import Analysis, between, estimate, is_blocked_by_slow_trials
from envmatrix.stats.effects import Bounds, Effect, Flag, level_of_one_sided_bounds, verdict_of
from envmatrix.stats.inference.maxt import student_quantile
from envmatrix.stats.inference.standard_errors import slow_phases_note
from envmatrix.stats.measurements import Measurements
from envmatrix.stats.pairing import table_identity
from envmatrix.stats.quality.slow_trials import LEAST_BLOCKS
from envmatrix.stats.steady_state.effect import continued_after_trials, steady_between, which_steps_text


def compare_environments(
    run: Run, measured: Measurements, old: str, new: str, allowed: float = 0.0, several: int = 1
) -> Comparison:
    """Compare two environments of one run, for every workload and engine they share.

    The result is the effect of the report's table. If neither is the other's reference, it is the effect with ``old``
    as the reference (``effect_estimation.between``). ``old`` and ``new`` may also be full names of arms. ``allowed`` is
    the accepted slowdown (0.03: 3 %); intervals of ``several`` such comparisons are simultaneous. Raises InputError for
    an unknown environment.
    """
    pairs = _arm_pairs(run, old, new)
    analysis = estimate(run.plan, measured, workloads=run.workloads, environments=run.environments, metrics=())
    items, cautions = [], []
    for old_arm, new_arm in pairs:
        effect = between(analysis, measured, old_arm, new_arm, run.environments)
        effect = _bonferroni_adjusted(effect, several, analysis.level, run.plan.margin)
        arms = old_arm, new_arm
        items.append(_compare_pair(run, measured, analysis, arms, (old, new), effect, allowed, several))
        if Flag.UNEQUAL_WORK in effect.flags:
            cautions.append(f"{new_arm.shown} did other work than {old_arm.shown}: {'; '.join(effect.notes)}")
        on = [arm.shown for arm in arms if continued_after_trials(measured, arm.name)]
        if len(on) == 1 and not items[-1].other:
            cautions.append(f"only {on[0]} has later steps: first steps are compared")
    compared_arms = dict.fromkeys(arm.name for pair in pairs for arm in pair)
    short = [
        text
        for text in (slow_phases_note(measured.block_gaps),)
        if text and any(item.low is not None for item in items)
    ]
    works = result.unchecked_work_cautions(run, measured, (old_arm.workload for old_arm, _ in pairs))
    run_cautions = (*result.flag_cautions(analysis, compared_arms), *result.missing_trials_cautions(run, measured))
    return Comparison(tuple(items), (*cautions, *works, *run_cautions, *short))


def compare_sides(run: Run, measured: Measurements, allowed: float = 0.0) -> Comparison:
    """Compare the two sides of a run of two matrices, environment by environment."""
    names = [(f"{SIDES[0]}.{name}", f"{SIDES[1]}.{name}") for name in run.design.environments]
    several = sum(len(_arm_pairs(run, *pair)) for pair in names)
    comparisons = [compare_environments(run, measured, *pair, allowed, several) for pair in names]
    items = tuple(item for comparison in comparisons for item in comparison.items)
    cautions = tuple(dict.fromkeys(text for comparison in comparisons for text in comparison.cautions))
    return Comparison(items, cautions)


def _bonferroni_adjusted(effect: Effect, several: int, level: float, margin: float) -> Effect:
    """Return an effect from a family of one with its bounds widened for ``several`` comparisons (Bonferroni)."""
    ratio, low, high, p = effect.ratio, effect.low, effect.high, effect.p
    if several < 2 or ratio is None or low is None or high is None or p is None:
        return effect

    def widened(bounds: Bounds, confidence: float) -> Bounds:
        joint, single = (
            student_quantile(effect.units, 0.5 + confidence_each / 2)
            for confidence_each in (1.0 - (1.0 - confidence) / several, confidence)
        )
        least, most = (ratio * (bound / ratio) ** (joint / single) for bound in bounds)
        return least, most

    one_sided = widened(effect.one_sided or (low, high), level_of_one_sided_bounds(level))
    low, high = widened((low, high), level)
    verdict = effect.verdict if effect.verdict == "undecided" else verdict_of(low, high, margin, one_sided)
    return replace(effect, low=low, high=high, p=min(1.0, several * p), verdict=verdict, one_sided=one_sided)


def _arm_pairs(run: Run, old: str, new: str) -> list[tuple[Arm, Arm]]:
    """Return the pairs of arms that share workload and engine, or the two arms with these full names."""
    old_arms, new_arms = result.find_arms(run, old), result.find_arms(run, new)
    if set(old_arms) & set(new_arms):
        raise InputError(
            f"{old} and {new} are the same environment of run {run.name}",
            remedy="to see how much two copies differ, compare with the control: --environments "
            f"{old_arms[0].environment},{CONTROL}",
        )
    if all(name in (arms[0].name, arms[0].shown) for name, arms in ((old, old_arms), (new, new_arms))):
        return [(old_arms[0], new_arms[0])]
    places = {table_identity(arm, run.plan): arm for arm in new_arms}
    shared = [(arm, places[place]) for arm in old_arms if (place := table_identity(arm, run.plan)) in places]
    if not shared:
        raise InputError(
            f"{old} and {new} have no workload in common on the same engine",
            remedy=f"write both in full: --environments {old_arms[0].shown},{new_arms[0].shown}",
        )
    return shared


def _compare_pair(
    run: Run, measured: Measurements, analysis: Analysis, arms: tuple[Arm, Arm], names: tuple[str, str],
    effect: Effect, allowed: float, several: int,
) -> ArmComparison:  # fmt: skip
    """Return the comparison of two arms, named ``names``, with their ``effect`` and with that of later steps."""
    (old, new), metric = arms, analysis.primary[arms[0].workload]
    later = steady_between(measured, analysis, arms, effect, several)
    steady = None if later is None else SteadyComparison(
        later.ratio, later.low, later.high, later.verdict, result.status_of(later.low, later.high, allowed),
        later.since_s, later.until_s, which_steps_text(run.workloads.get(old.workload)),
    )  # fmt: skip
    # Where later steps could fail a gate too, each of the two has one side of its interval, so both keep 5 %.
    one_sided = effect.one_sided if allowed and steady is None else None
    least, most = one_sided or (effect.low, effect.high)
    trials = result.count_trials(measured, old.name, metric), result.count_trials(measured, new.name, metric)
    item = ArmComparison(
        "@".join(table_identity(new, run.plan)), *names, effect.metric, effect.ratio, effect.low, effect.high, effect.p,
        effect.verdict, trials, allowed, result.status_of(least, most, allowed), one_sided=one_sided, steady=steady,
        smallest=result.smallest_detectable_slowdown(effect.ratio, most, allowed),
        wanted=result.blocks_needed(least, most, effect.blocks, allowed), other="" if metric.is_speed else metric.label,
    )  # fmt: skip
    facts, did_other_work = (measured.facts[old.name], measured.facts[new.name]), Flag.UNEQUAL_WORK in effect.flags
    has_slow_trials = is_blocked_by_slow_trials(analysis, (old.name, new.name), effect.blocks)
    pending = f"one side has outliers: then a verdict needs {LEAST_BLOCKS} blocks" if has_slow_trials else ""
    item = result.concluded(item, facts, effect.contended, effect.best, pending=pending, did_other_work=did_other_work)
    if item.other or did_other_work:
        return item
    return replace(item, why=explain_pair(run, measured, analysis, arms, effect))
