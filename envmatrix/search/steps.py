"""The steps of a search as their trials tell them: readings, what failed and why, what changes nothing, the time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from envmatrix.plan import Arm
from envmatrix.results import Run, RunFolder
from envmatrix.results.elapsed import covered_s
from envmatrix.search.search import REFERENCES, Batch, Phase
from envmatrix.search.space import Space
from envmatrix.stats.analysis import Analysis, estimate
from envmatrix.stats.effects import Effect, Flag
from envmatrix.stats.equal_work import unchecked, unstable_checks
from envmatrix.stats.measurements import Measurements, fold
from envmatrix.stats.metrics import MEMORY, THROUGHPUT, Metric
from envmatrix.stats.nodes import NodeGain, gains_by_node
from envmatrix.stats.pairing import logs_of
from envmatrix.stats.slow_phases import told_short
from envmatrix.stats.slow_trials import described

#: A longer pause between two trials was no work of the search: it waited for another one, or the machine slept (s).
_LONGEST_GAP_S = 10.0
_WOULD_FAIL_AGAIN = 2
#: What a trial that took too long is told of: a step's design is none that somebody can edit.
_OWN_LIMIT, _LIMITS = re.compile(r" \(raise `trial_limit` .*\)"), " (`trial_limit`, or four times the baseline)"
_PHASES: Mapping[str, Phase] = {"evidence": "evidence", "screen": "screen", "race": "race", "confirm": "confirm"}


@dataclass(frozen=True, eq=False)
class Step:
    """One run of a search. ``reasons`` say of a row why it is out, ``no_ops`` are rows that change nothing.

    ``spans`` are (start, end) of its trials in seconds since the epoch, ``effects`` those of its rows. ``cautions`` are
    sentences without which its effects may not be told, ``unchecked`` says that nothing shows equal work.
    ``baseline_s`` is what a trial of the baseline took, ``nodes`` what was confirmed is on each of several nodes,
    ``peaks`` the most bytes that a process of each workload had.
    """

    batch: Batch
    reasons: Mapping[int, str]
    no_ops: tuple[int, ...]
    spans: tuple[tuple[float, float], ...]
    effects: tuple[Effect, ...]
    baseline_s: float | None
    metric: Metric = THROUGHPUT
    cautions: tuple[str, ...] = ()
    unchecked: bool = False
    nodes: tuple[NodeGain, ...] = ()
    peaks: Mapping[str, int] = field(default_factory=dict)


def read_step(folder: RunFolder, space: Space) -> Step:
    """Read the run of a step. Raises StoreError."""
    run = folder.load()
    trials = list(folder.readings(run.plan))
    measured = fold(run.plan, trials)
    analysis = estimate(run.plan, measured, workloads=run.workloads, environments=run.environments, metrics=())
    arms = [arm for arm in run.arms if not arm.is_alone]
    rows = tuple(row_of(space, run, arm) for arm in arms[REFERENCES:])
    batch, reasons = _readings(run, measured, analysis, arms, rows)
    found = {arm.name: row for arm, row in zip(arms[REFERENCES:], rows, strict=True)}
    effects = {found[one.arm]: one for one in analysis.primary_effects() if one.arm in found}
    no_ops = tuple(row for row, effect in effects.items() if Flag.NO_OP in effect.flags)
    spans = tuple((one.started, one.started + one.wall_s) for one in trials if one.started and one.wall_s)
    own = [one for one in trials if one.arm == arms[0].name and one.outcome == "ok"]
    walls = [one.wall_s / (one.together or 1) for one in own if one.wall_s]
    workload = run.arms[0].workload
    slow = described(run.plan, measured, analysis.primary, analysis.slow)
    cautions = (*(f"Of {name} {text} than the others." for name, text in slow.items()), told_short(measured.apart))
    not_checked = unchecked(run.workloads.get(workload), unstable_checks(measured, run.plan, workload))
    nodes = gains_by_node(run.plan, measured, arms[-1], analysis.primary[workload]) if batch.phase == "confirm" else ()
    return Step(
        batch, reasons, no_ops, spans, tuple(effects.values()), float(np.median(walls)) if walls else None,
        analysis.primary[workload], tuple(filter(None, cautions)), not_checked, nodes,
        _peaks(measured, run.arms),
    )  # fmt: skip


def _peaks(measured: Measurements, arms: Iterable[Arm]) -> dict[str, int]:
    found: dict[str, int] = {}
    for arm in arms:
        known = measured.of(arm.name, MEMORY.name)
        for most in known[np.isfinite(known)].astype(np.int64).tolist():
            found[arm.workload] = max(found.get(arm.workload, 0), most)
    return found


def row_of(space: Space, run: Run, arm: Arm) -> int:
    """Return the row of the space that an arm ran."""
    levels = run.environments[arm.runs].levels
    code = [known.index(levels[name]) for name, known in zip(space.factors, space.levels, strict=True)]
    return int(np.flatnonzero((space.codes == np.array(code)).all(axis=1))[0])


def _readings(
    run: Run, measured: Measurements, analysis: Analysis, arms: Sequence[Arm], rows: Sequence[int]
) -> tuple[Batch, dict[int, str]]:
    metric = analysis.primary[arms[0].workload]
    names = [arm.name for arm in arms]
    at = [measured.arms.index(name) for name in names]
    scores = metric.sign * logs_of(measured.table[metric.name][at])
    attempted = np.asarray(measured.attempted[at])
    broken = (attempted & ~np.isfinite(scores)).astype(np.int64)
    broken[REFERENCES:, ~np.isfinite(scores[:REFERENCES]).any(axis=0)] = 0  # where the baseline failed too, who knows
    for place, arm in enumerate(arms):
        if arm.reference and arm.reference not in names:  # it took no turns: over the copy that took none either
            copy = metric.sign * logs_of(measured.table[metric.name][measured.arms.index(arm.reference)])
            scores[place] += scores[0] - copy
    reasons: dict[int, str] = {}
    for place, (name, row) in enumerate(zip(names[REFERENCES:], rows, strict=True), REFERENCES):
        effect, facts = analysis.find(name), measured.facts[name]
        sure = run.skipped.get(name, "") or (next(iter(facts.reasons), "") if facts.outcomes["invalid"] else "")
        if effect and Flag.UNEQUAL_WORK in effect.flags:
            sure = f"other work: {'; '.join(effect.notes)}"
        if sure:
            scores[place], broken[place] = np.nan, 0
            broken[place, :1] = _WOULD_FAIL_AGAIN
        if sure or broken[place].any():
            reasons[row] = sure or _OWN_LIMIT.sub(_LIMITS, next(iter(facts.reasons), "failed"))
    phase = _PHASES[run.design.name]
    if not scores.shape[1]:
        scores, broken = np.full((len(names), 1), np.nan), np.zeros((len(names), 1), np.int64)
    return Batch(phase, tuple(rows), scores, broken), reasons


def spent_s(steps: Iterable[Step], sessions: Sequence[float] = ()) -> float:
    """Return the seconds in which a trial ran, or several did, and what lay between while the search was going on.

    ``sessions`` are when it began and went on: what lies between two trials on either side of one is not of the search.
    """
    return within_s((span for step in steps for span in step.spans), sessions)


def within_s(spans: Iterable[tuple[float, float]], sessions: Sequence[float] = ()) -> float:
    """Return the seconds of some trials, of which several may run at a time, with what lies between them."""
    return sum(_running_and_between(spans, sessions))


def running_share(steps: Iterable[Step], sessions: Sequence[float] = ()) -> float:
    """Return the part of the time spent in which a trial ran, or several did: 1 before any has."""
    running, between = _running_and_between((span for step in steps for span in step.spans), sessions)
    return running / (running + between) if running else 1.0


def _running_and_between(spans: Iterable[tuple[float, float]], sessions: Sequence[float]) -> tuple[float, float]:
    between = last = 0.0
    begun = np.sort(np.asarray(sessions, dtype=np.float64))
    in_order = sorted(spans)
    for number, (begin, end) in enumerate(in_order):
        stopped = np.searchsorted(begun, begin, "right") > np.searchsorted(begun, last, "right")
        between += min(max(0.0, begin - last), _LONGEST_GAP_S) if number and not stopped else 0.0
        last = max(last, end)
    return covered_s(in_order), between


def dropped_levels(space: Space, steps: Iterable[Step]) -> dict[tuple[int, int], str]:
    """Return (factor, level) -> why: levels whose evidence is that of the baseline, shown where they stood alone."""
    found: dict[tuple[int, int], str] = {}
    for step in steps:
        for row in step.no_ops:
            at = np.flatnonzero(space.codes[row])
            if len(at) == 1:
                found[int(at[0]), int(space.codes[row, at[0]])] = "no-op: what it promises is so in the baseline too"
    return found


def trials_of(steps: Iterable[Step]) -> int:
    """Return how many trials ran."""
    return sum(step.batch.trials for step in steps)
