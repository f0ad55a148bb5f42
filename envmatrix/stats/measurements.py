"""Table of measurements: one number per metric and trial, read without keeping any record in memory."""

from __future__ import annotations

import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from envmatrix.evidence.evidence_models import System
from envmatrix.evidence.trial_record import Record, Result
from envmatrix.plan import Plan
from envmatrix.results import NodeCheck, Reading, RunFolder, Trial
from envmatrix.stats import step_account
from envmatrix.stats.inference.standard_errors import block_gaps
from envmatrix.stats.metrics import METRICS, THROUGHPUT, VALUE, check_column, finite_or_nan, own_column
from envmatrix.stats.steady_state import later_speed
from envmatrix.stats.trial_text_counts import ArmFacts, Counted, count_text, counted, note_profile, note_trials

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
OUTCOMES = ("ok", "failed", "invalid", "timed_out", "skipped")
_OUTCOME_AT = {outcome: index for index, outcome in enumerate(OUTCOMES)}
#: Results that a trial must share with its reference for comparable speeds.
WORK_COLUMNS = ("loss", "accuracy", "samples", "steps", "parameters")
_CONDITION_COLUMNS = ("load_1m", "steal_ticks", "mhz")
#: The CPU quota around a trial, in CPUs, and the share of periods in which it was used up.
QUOTA = ("cpu_limit", "used_up")
#: Values among a record's metrics that are not used for comparisons.
TURN_START = "turn_start"
_BESIDE = (TURN_START, "others_s", "throttled_s", step_account.FIRST_HALF)
#: Seconds for which a trial was counted: its timed part, or the whole program (its turns, if interleaved).
COUNTED = "counted_s"
_METRIC_COLUMNS = (*METRICS, *_BESIDE)
_COLUMNS = (
    *_METRIC_COLUMNS,
    COUNTED,
    *WORK_COLUMNS,
    *_CONDITION_COLUMNS,
    *QUOTA,
    *step_account.COLUMNS,
    *later_speed.COLUMNS,
    "started",
)
#: Most numbers of a user's program kept per run.
_MAX_OWN_METRICS = 64
#: Most pairs of an arm and its evidence whose trials are counted together.
_MAX_UNCOUNTED = 512
_AT = {name: index for index, name in enumerate(_COLUMNS)}
_METRIC_AT = {name: _AT[name] for name in _METRIC_COLUMNS}
_UNKNOWN = [math.nan] * len(_COLUMNS)
_WORK, _CONDITIONS = attrgetter(*WORK_COLUMNS), attrgetter(*_CONDITION_COLUMNS)
_NO_RECORD, _NO_RESULT, _NO_SYSTEM = Record(), Result(), System()


@dataclass(frozen=True)
class TrialOrder:
    """All trials in the order they ran, one array per property.

    ``outcome`` is an index into OUTCOMES; ``primary`` contains the values of metrics that verdicts can be based on.
    """

    arm: Integers
    block: Integers
    outcome: Integers
    started: Floats
    primary: Mapping[str, Floats]


@dataclass(frozen=True)
class Measurements:
    """The numbers of all trials of a run.

    ``table`` has one (arms x blocks) array per column, with NaN for missing numbers; ``blocks`` are its block numbers.
    ``node_checks`` has the check with the most activity for each node and block. ``trials`` are all trials in the order
    they ran. ``machine`` has their facts about the machines, as JSON text, by path in the evidence.
    """

    arms: tuple[str, ...]
    blocks: NDArray[np.int64]
    table: Mapping[str, Floats]
    facts: Mapping[str, ArmFacts]
    trials: TrialOrder
    nodes: tuple[str, ...]
    attempted: NDArray[np.bool_]
    block_nodes: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    node_checks: Mapping[tuple[str, int], NodeCheck] = field(default_factory=dict)
    machine: Mapping[str, Counter[str]] = field(default_factory=dict)

    @property
    def begins(self) -> Floats:
        """The start of each block in seconds since the epoch, or NaN if unknown."""
        started = self.table["started"]
        first = np.where(np.isfinite(started), started, np.inf).min(axis=0, initial=np.inf)
        return np.where(np.isfinite(first), first, np.nan)

    @property
    def block_gaps(self) -> Floats:
        """The time from each block to the next, as a fraction of a slow phase (``standard_errors.block_gaps``)."""
        return block_gaps(self.begins)

    def of(self, arm: str, column: str) -> Floats:
        """Return the numbers of one arm by block, with NaN for missing ones."""
        return np.asarray(self.table[column][self.arms.index(arm)])

    def median(self, arm: str, column: str) -> float | None:
        """Return the median of one arm's numbers, or None if there are none."""
        values = self.of(arm, column)
        values = values[np.isfinite(values)]
        return float(np.median(values)) if values.size else None

    def cv(self, arm: str, column: str) -> float | None:
        """Return the standard deviation over the mean of one arm's numbers, or None below two numbers above 0."""
        values = self.of(arm, column)
        values = values[np.isfinite(values) & (values > 0)]
        return float(values.std(ddof=1) / values.mean()) if values.size > 1 else None

    def geometric_mean(self, arm: str, column: str) -> float | None:
        """Return the geometric mean of one arm's numbers above 0, as used in ratios, or None if there are none."""
        values = self.of(arm, column)
        values = values[np.isfinite(values) & (values > 0)]
        return float(np.exp(np.log(values).mean())) if values.size else None

    def cpu_wait_shares(self) -> Floats:
        """Return (arms, blocks) shares of the time in which threads could run, but waited for a CPU."""
        delay = self.table["run_delay_s"]
        runnable_s = delay + self.table["user_s"] + self.table["system_s"]
        return np.asarray(delay / np.where(runnable_s > 0, runnable_s, np.nan))

    def median_contention(self, arm: str) -> float | None:
        """Return the median of ``disturbed`` over an arm's trials, or None if no trial counted it."""
        shares = self.cpu_wait_shares()[self.arms.index(arm)]
        known_shares = shares[np.isfinite(shares)]
        return float(np.median(known_shares)) if known_shares.size else None


def first_blocks(measured: Measurements, count: int) -> Measurements:
    """Return the numbers of the first ``count`` blocks; facts and trials remain those of all blocks."""
    table = {name: values[:, :count] for name, values in measured.table.items()}
    attempted = measured.attempted[:, :count]
    return replace(measured, blocks=measured.blocks[:count], table=table, attempted=attempted)


def finite_medians(values: Floats, axis: int) -> Floats:
    """Return medians of the finite values, NaN if there are none, without numpy's warning and its loop."""
    is_finite = np.isfinite(values)
    if is_finite.all():
        return np.asarray(np.median(values, axis=axis))
    ordered = np.sort(np.where(is_finite, values, np.nan), axis=axis)  # NaN last
    count = is_finite.sum(axis=axis, keepdims=True)
    low, high = (np.take_along_axis(ordered, np.maximum(rank, 0) // 2, axis) for rank in (count - 1, count))
    return np.asarray(np.where(count > 0, (low + high) / 2, np.nan).squeeze(axis))


def _finite(values: Floats) -> Floats:
    """Return a copy of the numbers, with NaN for infinite ones."""
    return np.where(np.isfinite(values), values, np.nan)


def _loss(value: object) -> float:
    """Return a loss or accuracy; non-finite values become infinite so that they do not count as missing."""
    if type(value) is float:
        return value if math.isfinite(value) else math.inf
    return finite_or_nan(value)


class MeasurementBuilder:
    """Builder of Measurements from single trials; ``measured`` can be called at any time."""

    def __init__(self, plan: Plan) -> None:
        self._arms = tuple(arm.name for arm in plan.arms)
        self._index = {name: index for index, name in enumerate(self._arms)}
        self._facts = {name: ArmFacts() for name in self._arms}
        self._who, self._block, self._outcome = array("q"), array("q"), array("b")
        self._numbers = array("d")
        self._uncounted: dict[tuple[str, Counted], int] = {}
        self._own: dict[str, dict[int, float]] = {}
        self._nodes: dict[str, None] = {}
        self._block_nodes: dict[int, tuple[str, ...]] = {}
        self._checks: dict[tuple[str, int], NodeCheck] = {}
        self._machine: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def add(self, trial: Reading | Trial) -> None:
        """Add one trial of the plan. Only successful trials add numbers; all are counted by outcome."""
        arm, outcome = trial.arm, trial.outcome
        facts = self._facts[arm]
        facts.outcomes[outcome] += 1
        facts.longest_s = max(facts.longest_s, finite_or_nan(trial.wall_s))
        if trial.together is not None:
            _note_together(facts, trial, trial.together)
        facts.in_waves += (trial.waves or 0) > 1
        if trial.later_failed:
            count_text(facts.later_failed, trial.later_failed)
        self._who.append(self._index[arm])
        self._block.append(trial.block)
        self._outcome.append(_OUTCOME_AT[outcome])
        if trial.node:
            self._nodes[trial.node] = None
            self._note_node(trial)
        for node, check in zip(trial.node.split(","), trial.node_checks, strict=False) if trial.node_checks else ():
            self._note_check(trial.block, node, check)
        if outcome == "ok":
            record = trial.record or _NO_RECORD
            key = arm, counted(trial, record)
            self._uncounted[key] = self._uncounted.get(key, 0) + 1
            if len(self._uncounted) > _MAX_UNCOUNTED:
                self._count()
            if record.profile:
                note_profile(facts, record.profile)
            if record.more_metrics or record.checks:
                self._note_own(facts, record)
            self._numbers.fromlist(_row(trial, record))
        else:
            count_text(facts.reasons, f"{outcome}: {trial.reason}")
            self._numbers.fromlist([*_UNKNOWN[:-1], finite_or_nan(trial.started)])

    def measured(self) -> Measurements:
        """Return the measurements so far."""
        self._count()
        arm_index = np.array(self._who, dtype=np.int64)
        outcome = np.array(self._outcome, dtype=np.int64)
        rows = np.asarray(self._numbers).reshape(-1, len(_COLUMNS))  # no copy: leave no view of it, or it cannot grow
        blocks, block_index = np.unique(np.array(self._block, dtype=np.int64), return_inverse=True)
        columns = {name: np.full((len(self._arms), len(blocks)), np.nan) for name in (*_COLUMNS, *self._own)}
        ok_rows = np.flatnonzero(outcome == OUTCOMES.index("ok"))
        ok_arms, ok_blocks = arm_index[ok_rows], block_index[ok_rows]
        for index, name in enumerate(_COLUMNS):
            values = rows[ok_rows, index]
            columns[name][ok_arms, ok_blocks] = values if name in WORK_COLUMNS else _finite(values)
        attempted = np.zeros((len(self._arms), len(blocks)), dtype=np.bool_)
        attempted[arm_index, block_index] = True
        primary = {metric.name: _finite(rows[:, _AT[metric.name]]) for metric in (THROUGHPUT, VALUE)}
        trials = TrialOrder(arm_index, blocks[block_index], outcome, rows[:, -1].copy(), primary)
        for name, numbers in self._own.items():
            row_indices = list(numbers)
            columns[name][arm_index[row_indices], block_index[row_indices]] = list(numbers.values())
        return Measurements(
            self._arms,
            blocks,
            columns,
            self._facts,
            trials,
            tuple(self._nodes),
            attempted,
            dict(self._block_nodes),
            dict(self._checks),
            dict(self._machine),
        )

    def _count(self) -> None:
        """Count what the trials have in common, in the order in which it first occurred."""
        for (arm, fact), trials in self._uncounted.items():
            note_trials(self._facts[arm], fact, trials)
            for path, text in fact.evidence.texts.machine if fact.evidence else ():
                count_text(self._machine[path], text, trials)
        self._uncounted.clear()

    def _note_own(self, facts: ArmFacts, record: Record) -> None:
        """Store further metrics and checks of a user's program, before the trial's row is added."""
        row = len(self._numbers) // len(_COLUMNS)
        for metric in record.more_metrics or ():
            self._note_number(own_column(metric.name or ""), row, finite_or_nan(metric.value))
        for check in record.checks or ():
            name = check_column(check.name or "")
            self._note_number(name, row, _loss(check.value))
            facts.tolerances.setdefault(name, finite_or_nan(check.tolerance))

    def _note_number(self, name: str, row: int, value: float) -> None:
        if name in self._own or len(self._own) < _MAX_OWN_METRICS:
            self._own.setdefault(name, {})[row] = value

    def _note_node(self, trial: Reading | Trial) -> None:
        node_names = self._block_nodes.get(trial.block, ())
        if trial.outcome == "ok" and trial.node not in node_names:
            self._block_nodes[trial.block] = (*node_names, trial.node)

    def _note_check(self, block: int, node: str, check: NodeCheck) -> None:
        busiest = self._checks.get((node, block))
        if busiest is None or finite_or_nan(check.busy) > finite_or_nan(busiest.busy):
            self._checks[node, block] = check


def _note_together(facts: ArmFacts, trial: Reading | Trial, together: int) -> None:
    if together > 1:
        is_uninterrupted = _is_uninterrupted(trial.record)
        facts.in_turns += not is_uninterrupted
        facts.in_one_go += is_uninterrupted
    facts.together = max(facts.together, together)


def _row(trial: Reading | Trial, record: Record) -> list[float]:
    """Return the numbers of a successful trial, NaN if unknown; ``measured`` leaves out infinite ones."""
    row = _UNKNOWN.copy()
    for name, value in (record.metrics or {}).items():
        if value is not None and name in _METRIC_AT:
            row[_METRIC_AT[name]] = value if type(value) is float else finite_or_nan(value)
    row[_AT["trial_s"]] = finite_or_nan(trial.wall_s)
    if _started_beside_others(trial, record):
        row[_AT["run_delay_s"]] = math.nan
    system = (record.evidence and record.evidence.system) or _NO_SYSTEM
    row[len(_METRIC_COLUMNS) :] = [
        _counted_s(trial, record),
        *map(_loss, _WORK(record.result or _NO_RESULT)),
        *map(finite_or_nan, _CONDITIONS(trial.conditions or system)),
        *_own_cpu_quota(record),
        *step_account.row(record),
        *later_speed.row(record),
        finite_or_nan(trial.started),
    ]
    return row


def _own_cpu_quota(record: Record) -> tuple[float, float]:
    sandbox = record.evidence and record.evidence.sandbox
    group = sandbox and sandbox.cgroup
    if not group:
        return math.nan, math.nan
    periods = finite_or_nan(group.cpu_periods)
    return finite_or_nan(group.cpu_limit), finite_or_nan(group.throttled_periods) / periods if periods > 0 else math.nan


def _counted_s(trial: Reading | Trial, record: Record) -> float:
    seconds = finite_or_nan((record.metrics or {}).get("training_s"))
    if math.isnan(seconds):
        seconds = finite_or_nan(record.timing and record.timing.wall_ns) / 1e9
    return finite_or_nan(trial.wall_s) if math.isnan(seconds) else seconds


def _is_uninterrupted(record: Record | None) -> bool:
    """Return whether a trial took all steps in one turn without extra steps, which no interleaved trial does."""
    turns = record.timing.turns if record and record.timing else None
    return turns is not None and len(turns) == 1 and not turns[0].apart_ns


def _started_beside_others(trial: Reading | Trial, record: Record) -> bool:
    """Return whether a program's counters include its start next to other processes, as it was interleaved by steps.

    Older records count the whole program, so part of its CPU waits comes from the other trials.
    """
    timing = record.timing
    if math.isfinite(finite_or_nan((record.metrics or {}).get("others_s"))):
        return False
    return bool((trial.together or 0) > 1 and timing and timing.turns is not None and timing.paused_ns is not None)


def fold_trials(plan: Plan, trials: Iterable[Reading | Trial]) -> Measurements:
    """Return the Measurements of trials, without keeping the trials."""
    builder = MeasurementBuilder(plan)
    for trial in trials:
        builder.add(trial)
    return builder.measured()


def read_measurements(folder: RunFolder, plan: Plan) -> Measurements:
    """Return the Measurements of a results folder."""
    return fold_trials(plan, folder.readings(plan))
