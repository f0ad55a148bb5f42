"""The steps of a search, read from their trials: readings, failures, no-ops and the time spent."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from envmatrix.plan import Arm
from envmatrix.results import Run, RunFolder
from envmatrix.results.elapsed import covered_s
from envmatrix.search.next_trials import REFERENCES, Batch, Phase
from envmatrix.search.space import Space
from envmatrix.stats.attribution.explanation import Explanation, explain
from envmatrix.stats.effect_estimation import Analysis, estimate
from envmatrix.stats.effects import Effect, Flag
from envmatrix.stats.inference.standard_errors import slow_phases_note
from envmatrix.stats.measurements import Measurements, fold_trials
from envmatrix.stats.metrics import MEMORY, THROUGHPUT, Metric
from envmatrix.stats.nodes import NodeGain, gains_by_node
from envmatrix.stats.pairing import logs_of
from envmatrix.stats.quality.equal_work import unchecked, unstable_checks
from envmatrix.stats.quality.slow_trials import describe_slow_trials
from envmatrix.stats.steady_state.effect import SteadyEffect, steady_effects, which_steps_text

#: Longest gap between trials that counts as search time (s); longer ones are waits or a sleeping machine.
_LONGEST_GAP_S = 10.0
_CERTAIN_FAILURE = 2
#: Replaces the advice for a trial over its limit, because nobody can edit the design of a step.
_LIMIT_ADVICE, _LIMIT_NOTE = re.compile(r" \(raise `trial_limit` .*\)"), " (`trial_limit`, or four times the baseline)"


@dataclass(frozen=True, kw_only=True)
class Confirmation:
    """What fresh blocks say about the recipe of a search.

    ``cautions`` are sentences without which its ``effect`` may not be told, ``unchecked`` says that nothing shows equal
    work, and ``nodes`` is what was confirmed on each of several nodes. ``why`` explains the effect, and ``steady`` is
    the effect in later steps; ``trial`` says which steps a trial has.
    """

    effect: Effect | None = None
    metric: Metric = THROUGHPUT
    cautions: tuple[str, ...] = ()
    unchecked: bool = False
    nodes: tuple[NodeGain, ...] = ()
    why: Explanation | None = None
    steady: SteadyEffect | None = None
    trial: str = "first steps"


@dataclass(frozen=True, eq=False)
class Step:
    """One run of a search. ``reasons`` say of a row why it is out, ``no_ops`` are rows that change nothing.

    ``spans`` are (start, end) of its trials in seconds since the epoch, ``baseline_s`` is what a trial of the baseline
    took, and ``peaks`` the most bytes that a process of each workload had.
    """

    batch: Batch
    reasons: Mapping[int, str]
    no_ops: tuple[int, ...]
    spans: tuple[tuple[float, float], ...]
    baseline_s: float | None
    peaks: Mapping[str, int] = field(default_factory=dict)
    confirmation: Confirmation = Confirmation()


def read_step(folder: RunFolder, space: Space) -> Step:
    """Read the run of a step. Raises StoreError."""
    run = folder.load()
    trials = list(folder.readings(run.plan))
    measurements = fold_trials(run.plan, trials)
    analysis = estimate(run.plan, measurements, workloads=run.workloads, environments=run.environments, metrics=())
    arms = [arm for arm in run.arms if not arm.is_uninterrupted_copy]
    rows = tuple(find_row(space, run, arm) for arm in arms[REFERENCES:])
    batch, reasons = _make_batch(run, measurements, analysis, arms, rows)
    row_by_arm = {arm.name: row for arm, row in zip(arms[REFERENCES:], rows, strict=True)}
    flags = {row_by_arm[item.arm]: item.flags for item in analysis.primary_effects() if item.arm in row_by_arm}
    baseline_trials = [item for item in trials if item.arm == arms[0].name and item.outcome == "ok"]
    walls = [item.wall_s / (item.together or 1) for item in baseline_trials if item.wall_s]
    return Step(
        batch,
        reasons,
        no_ops=tuple(row for row, row_flags in flags.items() if Flag.NO_OP in row_flags),
        spans=tuple((item.started, item.started + item.wall_s) for item in trials if item.started and item.wall_s),
        baseline_s=float(np.median(walls)) if walls else None,
        peaks=_peaks(measurements, run.arms),
        confirmation=_confirm(run, measurements, analysis, arms[-1]) if batch.phase == "confirm" else Confirmation(),
    )


def _confirm(run: Run, measurements: Measurements, analysis: Analysis, arm: Arm) -> Confirmation:
    slow_texts = describe_slow_trials(run.plan, measurements, analysis.primary, analysis.slow)
    cautions = [f"Of {name} {text} than the others." for name, text in slow_texts.items()]
    workload = run.workloads.get(arm.workload)
    return Confirmation(
        effect=next((item for item in analysis.primary_effects() if item.arm == arm.name), None),
        metric=analysis.primary[arm.workload],
        cautions=tuple(filter(None, [*cautions, slow_phases_note(measurements.block_gaps)])),
        unchecked=unchecked(workload, unstable_checks(measurements, run.plan, arm.workload)),
        nodes=gains_by_node(run.plan, measurements, arm, analysis.primary[arm.workload]),
        why=explain(run, measurements, analysis).get(arm.name),
        steady=steady_effects(run.plan, measurements, analysis).get(arm.name),
        trial=which_steps_text(workload),
    )


def _peaks(measurements: Measurements, arms: Iterable[Arm]) -> dict[str, int]:
    peaks: Counter[str] = Counter()
    for arm in arms:
        values = measurements.of(arm.name, MEMORY.name)
        peaks |= Counter({arm.workload: int(values[np.isfinite(values)].max(initial=0))})  # the larger of both
    return dict(peaks)


def find_row(space: Space, run: Run, arm: Arm) -> int:
    """Return the row of the space that an arm ran."""
    levels = run.environments[arm.runs].levels
    cell = [factor_levels.index(levels[name]) for name, factor_levels in zip(space.factors, space.levels, strict=True)]
    row = space.row_of(np.array(cell, np.int16))
    assert row is not None, "an arm of a search runs a cell of its space"
    return row


def _make_batch(
    run: Run, measurements: Measurements, analysis: Analysis, arms: Sequence[Arm], rows: Sequence[int]
) -> tuple[Batch, dict[int, str]]:
    metric = analysis.primary[arms[0].workload]
    names = [arm.name for arm in arms]
    indices = [measurements.arms.index(name) for name in names]
    scores = metric.sign * logs_of(measurements.table[metric.name][indices])
    attempted = np.asarray(measurements.attempted[indices])
    broken = (attempted & ~np.isfinite(scores)).astype(np.int64)
    broken[REFERENCES:, ~np.isfinite(scores[:REFERENCES]).any(axis=0)] = 0  # the baseline failed too: no cell to blame
    for position, arm in enumerate(arms):
        if arm.reference and arm.reference not in names:  # run separately: compare it with its own copy of the baseline
            copy = metric.sign * logs_of(measurements.table[metric.name][measurements.arms.index(arm.reference)])
            scores[position] += scores[0] - copy
    reasons: dict[int, str] = {}
    for position, (name, row) in enumerate(zip(names[REFERENCES:], rows, strict=True), REFERENCES):
        effect, facts = analysis.find(name), measurements.facts[name]
        certain_reason = run.skipped.get(name, "") or (
            next(iter(facts.reasons), "") if facts.outcomes["invalid"] else ""
        )
        if effect and Flag.UNEQUAL_WORK in effect.flags:
            certain_reason = f"other work: {'; '.join(effect.notes)}"
        if certain_reason:
            scores[position], broken[position] = np.nan, 0
            broken[position, :1] = _CERTAIN_FAILURE
        if certain_reason or broken[position].any():
            reasons[row] = certain_reason or _LIMIT_ADVICE.sub(_LIMIT_NOTE, next(iter(facts.reasons), "failed"))
    if not scores.shape[1]:
        scores, broken = np.full((len(names), 1), np.nan), np.zeros((len(names), 1), np.int64)
    return Batch(cast("Phase", run.design.name), tuple(rows), scores, broken), reasons


def spent_s(steps: Iterable[Step], sessions: Sequence[float] = ()) -> float:
    """Return the seconds of a search: when at least one trial ran, and the short gaps between trials."""
    return sum(running_and_gap_s((span for step in steps for span in step.spans), sessions))


def running_and_gap_s(spans: Iterable[tuple[float, float]], sessions: Sequence[float] = ()) -> tuple[float, float]:
    """Return the seconds covered by trials, some in parallel, and those of the gaps between them.

    ``sessions`` are the times when a search began or was resumed; the gap before a resumption does not count.
    """
    gap_s = last = 0.0
    in_order = sorted(spans)
    for number, (begin, end) in enumerate(in_order):
        is_resumed = any(last < session <= begin for session in sessions)
        gap_s += min(max(0.0, begin - last), _LONGEST_GAP_S) if number and not is_resumed else 0.0
        last = max(last, end)
    return covered_s(in_order), gap_s


def no_op_levels(space: Space, steps: Iterable[Step]) -> dict[tuple[int, int], str]:
    """Return (factor, level) -> reason for no-op levels: run on their own, they have the baseline's evidence."""
    reasons: dict[tuple[int, int], str] = {}
    for step in steps:
        for row in step.no_ops:
            factors = np.flatnonzero(space.codes[row])
            if len(factors) == 1:
                reasons[int(factors[0]), int(space.codes[row, factors[0]])] = "no-op: the baseline already does this"
    return reasons


def count_trials(steps: Iterable[Step]) -> int:
    """Return the number of trials that ran."""
    return sum(step.batch.trials for step in steps)
