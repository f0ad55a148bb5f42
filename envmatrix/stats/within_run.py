"""Compare two environments of one run, whose trials are paired by block."""

from __future__ import annotations

from dataclasses import replace

from envmatrix.errors import InputError
from envmatrix.plan import CONTROL, SIDES, Arm
from envmatrix.results import Run
from envmatrix.stats.analysis import between, estimate, held_with, waiting
from envmatrix.stats.comparison import (
    Compared,
    Comparison,
    blocks_wanted,
    counts,
    lacking,
    named,
    other_than_speed,
    smallest_seen,
    status_of,
    unchecked_works,
    unless_broken,
    unless_contended,
    unless_other_work,
    unsure,
    weaker,
)
from envmatrix.stats.effects import Effect, Flag
from envmatrix.stats.explanation import explain_pair
from envmatrix.stats.measurements import Measurements
from envmatrix.stats.pairing import group_of
from envmatrix.stats.slow_phases import told_short
from envmatrix.stats.slow_trials import LEAST_BLOCKS


def compare_environments(
    run: Run, measured: Measurements, old: str, new: str, allowed: float = 0.0, several: int = 1
) -> Comparison:
    """Compare two environments of one run for every workload and engine they share.

    The answer is the effect of the report's table, or, where neither is the other's reference, what the table would
    say were ``old`` the reference (``analysis.between``). ``old`` and ``new`` may be whole names of arms too.
    ``allowed`` is the slow-down that is accepted (0.03: 3 %); ``several`` such comparisons hold together. Raises
    InputError for an unknown environment.
    """
    pairs = _pairs(run, old, new)
    analysis = estimate(run.plan, measured, workloads=run.workloads, environments=run.environments, metrics=())
    items, cautions = [], []
    for one, other in pairs:
        effect = between(analysis, measured, one, other, run.environments)
        effect = held_with(effect, several, analysis.level, run.plan.margin)
        trials = counts((measured, measured), (one.name, other.name), analysis.primary[one.workload])
        item = _item("@".join(group_of(other, run.plan)), (old, new), effect, trials, allowed)
        item = replace(item, other=other_than_speed(analysis.primary[one.workload]))
        item = item if item.other else replace(item, why=explain_pair(run, measured, analysis, (one, other), effect))
        item = unless_broken(item, measured.facts[one.name], measured.facts[other.name], effect.best)
        item = unless_contended(item, effect.contended)
        slow = waiting(analysis, (one.name, other.name), effect.blocks)
        item = unsure(item, f"a side has slow trials, which takes {LEAST_BLOCKS} blocks" if slow else "")
        items.append(unless_other_work(item, Flag.UNEQUAL_WORK in effect.flags))
        if Flag.UNEQUAL_WORK in effect.flags:
            cautions.append(f"{other.shown} did not do the work of {one.shown}: {'; '.join(effect.notes)}")
    compared = dict.fromkeys(arm.name for pair in pairs for arm in pair)
    short = [text for text in (told_short(measured.apart),) if text and any(item.low is not None for item in items)]
    works = unchecked_works(run, measured, (one.workload for one, _ in pairs))
    said = (*weaker(analysis, compared), *lacking(run, measured))
    return Comparison(tuple(items), (*cautions, *works, *said, *short))


def compare_sides(run: Run, measured: Measurements, allowed: float = 0.0) -> Comparison:
    """Compare the two sides of a run that was begun with two matrices, environment by environment."""
    names = [(f"{SIDES[0]}.{name}", f"{SIDES[1]}.{name}") for name in run.design.environments]
    several = sum(len(_pairs(run, *pair)) for pair in names)
    found = [compare_environments(run, measured, *pair, allowed, several) for pair in names]
    items = tuple(item for one in found for item in one.items)
    cautions = tuple(dict.fromkeys(text for one in found for text in one.cautions))
    return Comparison(items, cautions)


def _pairs(run: Run, old: str, new: str) -> list[tuple[Arm, Arm]]:
    """Return the arms of the two that share a workload and engine, or the two arms whose whole names these are."""
    ones, others = named(run, old), named(run, new)
    if set(ones) & set(others):
        raise InputError(
            f"{old} and {new} are the same environment of run {run.name}",
            remedy=f"how far two copies of one lie apart says its control: {ones[0].environment},{CONTROL}",
        )
    if all(name in (arms[0].name, arms[0].shown) for name, arms in ((old, ones), (new, others))):
        return [(ones[0], others[0])]
    places = {group_of(arm, run.plan): arm for arm in others}
    shared = [(arm, places[place]) for arm in ones if (place := group_of(arm, run.plan)) in places]
    if not shared:
        raise InputError(
            f"{old} and {new} share no workload on one engine",
            remedy=f"name two arms in full: --environments {ones[0].shown},{others[0].shown}",
        )
    return shared


def _item(name: str, names: tuple[str, str], effect: Effect, trials: tuple[int, int], allowed: float) -> Compared:
    return Compared(
        name, *names, effect.metric, effect.ratio, effect.low, effect.high, effect.p, effect.verdict, trials, allowed,
        status_of(effect.low, effect.high, allowed), smallest=smallest_seen(effect.ratio, effect.high, allowed),
        wanted=blocks_wanted(effect.low, effect.high, effect.blocks, allowed),
    )  # fmt: skip
