"""Effects: paired log ratios over blocks, simultaneous intervals, verdicts (see docs/statistics.md)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from envmatrix.plan import Arm, Plan
from envmatrix.stats.equal_work import unequal_work
from envmatrix.stats.maxt import DRAWS, adjusted_p, critical_value
from envmatrix.stats.metrics import METRICS, Metric, primary_metric
from envmatrix.stats.pairing import Family, families, log_ratios, paired, ratio_of
from envmatrix.stats.samples import Samples

Verdict = Literal["faster", "slower", "same", "undecided"]
#: What is promised: all intervals of a family cover together in 95 of 100 runs.
CONFIDENCE = 0.95
#: What is computed: a run that ends as soon as its intervals are narrow ends more often when they are
#: narrow by luck, so that 95 % intervals cover 93 % (docs/statistics.md). 96.4 % intervals then keep the
#: promise.
LEVEL = 0.964


class Flag:
    """Texts of ``Effect.flags``: what a reader must know before using the ratio."""

    UNEQUAL_WORK = "unequal-work"
    CHANGES_NUMERICS = "changes-numerics"
    STAND_IN = "stand-in-data"
    TOO_FEW_BLOCKS = "too-few-blocks"
    FAILED = "failed-trials"
    INVALID = "invalid-trials"
    INCOMPLETE = "incomplete-blocks"


@dataclass(frozen=True)
class Effect:
    """One arm against its reference in one metric.

    ``ratio`` above 1 is always better: faster, or less memory. ``low`` and ``high`` bound the ratio
    simultaneously with all comparisons that share the reference; ``p`` is adjusted likewise. All three are
    None, and the verdict 'undecided', below the plan's ``min_blocks``; ``missing`` says how many complete
    blocks are lacking. ``ratio`` is None when no block has both trials. ``blocks`` counts the complete
    pairs, ``incomplete`` the blocks in which one of the two is absent.
    """

    workload: str
    environment: str
    engine: str
    reference: str
    metric: str
    ratio: float | None
    low: float | None
    high: float | None
    p: float | None
    verdict: Verdict
    blocks: int
    flags: tuple[str, ...] = ()
    missing: int = 0
    incomplete: int = 0
    arm: str = ""
    spread: float | None = None
    notes: tuple[str, ...] = ()
    primary: bool = False

    @property
    def half_width(self) -> float | None:
        """Half the width of the interval as a fraction: 0.03 for a ratio known to 3 %."""
        if self.low is None or self.high is None or self.low <= 0:
            return None
        return math.sqrt(self.high / self.low) - 1.0

    @property
    def is_control(self) -> bool:
        """Whether this compares the baseline with its own second copy."""
        return self.environment == "control"


@dataclass(frozen=True)
class Analysis:
    """All effects of a run, in the order of the plan, metric by metric."""

    plan: Plan
    effects: tuple[Effect, ...]
    primary: Mapping[str, Metric] = field(default_factory=dict)

    def primary_effects(self) -> tuple[Effect, ...]:
        """Return the effects that verdicts rest on: one for every arm that has a reference."""
        return tuple(effect for effect in self.effects if effect.primary)

    def find(self, arm: str, metric: str | None = None) -> Effect | None:
        """Return the effect of an arm in a metric (None: its primary one), if there is one."""
        for effect in self.effects:
            if effect.arm == arm and (effect.primary if metric is None else effect.metric == metric):
                return effect
        return None


def verdict_of(low: float, high: float, margin: float) -> Verdict:
    """Judge an interval: wholly inside 1/(1+margin)..(1+margin) is 'same', however narrow it is."""
    if 1.0 / (1.0 + margin) <= low and high <= 1.0 + margin:
        return "same"
    if low > 1.0:
        return "faster"
    return "slower" if high < 1.0 else "undecided"


@dataclass(frozen=True)
class _Among:
    """What an effect's interval depends on beside its own numbers."""

    plan: Plan
    comparisons: int
    copies: int
    draws: int
    levels: Mapping[str, float]


def _claim(mean: float, spread: float, blocks: int, level: float, among: _Among) -> tuple[float, float, float, Verdict]:
    """Return low, high, p and verdict of one comparison; p is below 5 % just when 1 is not in the interval."""
    error = spread / math.sqrt(blocks)
    family = (blocks, among.comparisons, among.copies)
    reach = critical_value(*family, level=level, draws=among.draws) * error
    t = mean / error if error > 0 else (math.inf if mean else 0.0)
    p = adjusted_p(t, *family, draws=among.draws) * (1.0 - CONFIDENCE) / (1.0 - level)
    low, high = ratio_of(mean - reach), ratio_of(mean + reach)
    return low, high, min(1.0, p), verdict_of(low, high, among.plan.margin)


def _family_effects(family: Family, samples: Samples, metric: Metric, among: _Among) -> list[Effect]:
    index = {name: position for position, name in enumerate(samples.arms)}
    table = samples.table[metric.name]
    at = [index[arm.name] for arm in family.arms]
    differences = log_ratios(table[at], table[[index[name] for name in family.copies]], metric)
    tried = samples.attempted[at] & samples.attempted[index[family.reference]]
    numbers = paired(differences)
    among = replace(among, comparisons=max(1, int((numbers.blocks > 0).sum())), copies=len(family.copies))
    incomplete = (tried & ~np.isfinite(differences)).sum(axis=1)
    rows = zip(family.arms, numbers.blocks, numbers.mean, numbers.spread, incomplete, strict=True)
    return [
        _effect(arm, metric, int(blocks), float(mean), float(spread), int(lacking), among)
        for arm, blocks, mean, spread, lacking in rows
    ]


def _effect(
    arm: Arm, metric: Metric, blocks: int, mean: float, spread: float, incomplete: int, among: _Among
) -> Effect:
    low = high = p = None
    verdict: Verdict = "undecided"
    needed = max(2, among.plan.min_blocks)
    if blocks >= needed:
        low, high, p, verdict = _claim(mean, spread, blocks, among.levels.get(arm.name, LEVEL), among)
    return Effect(
        workload=arm.workload, environment=arm.environment, engine=arm.engine, reference=arm.reference or "",
        metric=metric.name, ratio=ratio_of(mean) if blocks else None, low=low, high=high, p=p,
        verdict=verdict, blocks=blocks, missing=max(0, needed - blocks), incomplete=incomplete,
        arm=arm.name, spread=spread if math.isfinite(spread) else None,
    )  # fmt: skip


def primary_metrics(plan: Plan, samples: Samples, workloads: Mapping[str, Any]) -> dict[str, Metric]:
    """Return each workload's primary metric; a run without workload entries is judged by what it measured."""
    chosen: dict[str, Metric] = {}
    for arm in plan.arms:
        metric = primary_metric(workloads.get(arm.workload))
        has_value = np.isfinite(samples.of(arm.name, "value")).any()
        if arm.workload not in workloads and has_value:
            metric = METRICS["value"]
        chosen[arm.workload] = chosen.get(arm.workload, metric)
    return chosen


def _flags(effect: Effect, samples: Samples, notes: _Notes) -> tuple[str, ...]:
    facts = samples.facts[effect.arm]
    outcomes: Counter[str] = facts.outcomes
    found = {
        Flag.UNEQUAL_WORK: bool(notes.work),
        Flag.CHANGES_NUMERICS: notes.numerics,
        Flag.STAND_IN: facts.stand_in > 0,
        Flag.TOO_FEW_BLOCKS: effect.missing > 0,
        Flag.FAILED: outcomes["failed"] + outcomes["timed_out"] > 0,
        Flag.INVALID: outcomes["invalid"] > 0,
        Flag.INCOMPLETE: effect.incomplete > 0,
    }
    return tuple(flag for flag, there in found.items() if there)


def estimate(
    plan: Plan,
    samples: Samples,
    *,
    workloads: Mapping[str, Mapping[str, Any]] | None = None,
    environments: Mapping[str, Mapping[str, Any]] | None = None,
    metrics: Sequence[str] | None = None,
    draws: int = DRAWS,
    levels: Mapping[str, float] | None = None,
) -> Analysis:
    """Estimate every arm's effect against its reference.

    ``workloads`` and ``environments`` are run.json's entries (they name the primary metric and what changes
    numerics); ``metrics`` the secondary metrics to report (None: all), the primary one always comes first.
    Each (family, metric) has intervals that hold simultaneously with 95 % confidence; ``levels`` asks for
    more for some arms, by name (an arm that racing stopped early, see ``racing``).
    """
    primary = primary_metrics(plan, samples, workloads or {})
    wanted = [METRICS[name] for name in (METRICS if metrics is None else metrics)]
    among = _Among(plan, 1, 1, draws, levels or {})
    effects: list[Effect] = []
    for family in families(plan):
        notes = {arm.name: _notes(arm, plan, samples, environments or {}) for arm in family.arms}
        first = primary[family.arms[0].workload]
        for metric in (first, *(m for m in wanted if m.name != first.name)):
            effects += [
                _annotated(effect, notes[effect.arm], samples, metric is first)
                for effect in _family_effects(family, samples, metric, among)
                if effect.ratio is not None or metric is first
            ]
    order = {arm.name: index for index, arm in enumerate(plan.arms)}
    return Analysis(plan, tuple(sorted(effects, key=lambda effect: order[effect.arm])), primary)


@dataclass(frozen=True)
class _Notes:
    numerics: bool
    work: tuple[str, ...]


def _notes(arm: Arm, plan: Plan, samples: Samples, environments: Mapping[str, Mapping[str, Any]]) -> _Notes:
    numerics = bool((environments.get(arm.runs) or {}).get("changes_numerics"))
    return _Notes(numerics, unequal_work(samples, arm, plan))


def _annotated(effect: Effect, notes: _Notes, samples: Samples, primary: bool) -> Effect:
    return replace(effect, flags=_flags(effect, samples, notes), notes=notes.work, primary=primary)
