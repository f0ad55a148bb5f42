"""Fold trials into a small table, one number a metric and trial, without keeping a single record."""

from __future__ import annotations

import json
import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from envmatrix.evidence.evidence import System
from envmatrix.evidence.record import Record, Result
from envmatrix.plan import Plan
from envmatrix.results import NodeCheck, Reading, RunFolder, Trial, reading_from_line
from envmatrix.results.plan_check import planned_lines, raise_on_rejected
from envmatrix.stats.arm_facts import ArmFacts, count_text, note_trial
from envmatrix.stats.metrics import METRICS, THROUGHPUT, VALUE, check_column, finite_or_nan, own_column
from envmatrix.stats.slow_phases import apart
from envmatrix.system.atomic_files import read_whole_lines

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
OUTCOMES = ("ok", "failed", "invalid", "timed_out", "skipped")
#: What a trial's result must share with its reference's for their speeds to be comparable.
WORK_COLUMNS = ("loss", "accuracy", "samples", "steps", "parameters")
_CONDITION_COLUMNS = ("load_1m", "steal_ticks", "mhz")
#: The CPU quota around a trial, in CPUs, and the share of its periods in which it was used up.
QUOTA = ("cpu_limit", "used_up")
#: What is among a record's metrics and is none that anything is compared by.
TURN_START = "turn_start"
_BESIDE = (TURN_START, "others_s", "throttled_s")
#: How long a trial was counted: its timed part, or the whole of a program (of its turns, if it took some).
COUNTED = "counted_s"
_COLUMNS = (*METRICS, *_BESIDE, COUNTED, *WORK_COLUMNS, *_CONDITION_COLUMNS, *QUOTA, "started")
_STEP_TIME_KEYS = (b'"steps_ns":[', b'"epochs_ns":[')
#: Numbers of a program of the user's own that are kept of one run.
_MAX_OWN_METRICS = 64
#: What a trial says of the machine that it ran on, whatever its environment is.
_MACHINE_PATHS = (
    ("system", "kernel"), ("cpu", "architecture"), ("cpu", "model"), ("cpu", "flags"), ("memory", "numa_nodes"),
    ("memory", "total_bytes"),
)  # fmt: skip
_NO_RECORD, _NO_RESULT, _NO_SYSTEM = Record(), Result(), System()


@dataclass(frozen=True)
class TrialOrder:
    """All trials in the order they ran, one array a property.

    ``outcome`` is an index into OUTCOMES, ``primary`` the values of the metrics that verdicts may rest on.
    """

    arm: Integers
    block: Integers
    outcome: Integers
    started: Floats
    primary: Mapping[str, Floats]


@dataclass(frozen=True)
class Measurements:
    """Trials as numbers.

    ``table`` has one (arms x blocks) array per column, NaN where there is no such number. ``blocks`` holds
    the block numbers of the columns of each array. ``node_checks`` has, for each node and block of which there is one,
    the check in which most of the node was busy. ``trials`` are all trials in the order they ran. ``machine`` has what
    they say of the machines, as JSON text, by its path in the evidence.
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
        """When each block began, in seconds since the epoch; NaN if that is not known."""
        started = self.table["started"]
        first = np.where(np.isfinite(started), started, np.inf).min(axis=0, initial=np.inf)
        return np.where(np.isfinite(first), first, np.nan)

    @property
    def apart(self) -> Floats:
        """By how much of a slow phase of the machine each block began before the next one (``longrun.apart``)."""
        return apart(self.begins)

    def of(self, arm: str, column: str) -> Floats:
        """Return one arm's numbers, block by block (NaN: none)."""
        return np.asarray(self.table[column][self.arms.index(arm)])

    def median(self, arm: str, column: str) -> float | None:
        """Return the median of one arm's numbers, None when there is none."""
        values = self.of(arm, column)
        values = values[np.isfinite(values)]
        return float(np.median(values)) if values.size else None

    def cv(self, arm: str, column: str) -> float | None:
        """Return the standard deviation of one arm's numbers over their mean; None below two numbers above 0."""
        values = self.of(arm, column)
        values = values[np.isfinite(values) & (values > 0)]
        return float(values.std(ddof=1) / values.mean()) if values.size > 1 else None

    def mean(self, arm: str, column: str) -> float | None:
        """Return the geometric mean of one arm's numbers above 0, of which ratios are made; None when there is none."""
        values = self.of(arm, column)
        values = values[np.isfinite(values) & (values > 0)]
        return float(np.exp(np.log(values).mean())) if values.size else None

    def disturbed(self) -> Floats:
        """Return (arms, blocks): the share of the time that threads could have run in which they had no CPU."""
        delay = self.table["run_delay_s"]
        runnable_s = delay + self.table["user_s"] + self.table["system_s"]
        return np.asarray(delay / np.where(runnable_s > 0, runnable_s, np.nan))

    def median_contention(self, arm: str) -> float | None:
        """Return the median of that over an arm's trials, None when none counted it."""
        shares = self.disturbed()[self.arms.index(arm)]
        known_shares = shares[np.isfinite(shares)]
        return float(np.median(known_shares)) if known_shares.size else None


def first_blocks(measured: Measurements, count: int) -> Measurements:
    """Return the numbers of the first ``count`` blocks (facts and trials are still those of all)."""
    table = {name: values[:, :count] for name, values in measured.table.items()}
    attempted = measured.attempted[:, :count]
    return replace(measured, blocks=measured.blocks[:count], table=table, attempted=attempted)


def _loss(value: object) -> float:
    """Return a loss or accuracy; one that is not finite becomes infinite: it must not pass for missing."""
    if isinstance(value, float) and not math.isfinite(value):
        return math.inf
    return finite_or_nan(value)


class MeasurementBuilder:
    """Takes trials one by one; ``measured`` may be asked for at any time."""

    def __init__(self, plan: Plan) -> None:
        self._arms = tuple(arm.name for arm in plan.arms)
        self._index = {name: index for index, name in enumerate(self._arms)}
        self._facts = {name: ArmFacts() for name in self._arms}
        self._who, self._block, self._outcome = array("q"), array("q"), array("b")
        self._numbers = array("d")
        self._own: dict[str, dict[int, float]] = {}
        self._nodes: dict[str, None] = {}
        self._block_nodes: dict[int, tuple[str, ...]] = {}
        self._checks: dict[tuple[str, int], NodeCheck] = {}
        self._machine: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def add(self, trial: Reading | Trial) -> None:
        """Add one trial of the plan. Only numbers of trials that are ok count; the others are counted by outcome."""
        facts = self._facts[trial.arm]
        facts.outcomes[trial.outcome] += 1
        facts.longest_s = max(facts.longest_s, finite_or_nan(trial.wall_s))
        ran_together, is_uninterrupted = (trial.together or 0) > 1, _is_uninterrupted(trial.record)
        facts.in_turns += ran_together and not is_uninterrupted
        facts.in_one_go += ran_together and is_uninterrupted
        facts.together = max(facts.together, trial.together or 0)
        facts.in_waves += (trial.waves or 0) > 1
        self._who.append(self._index[trial.arm])
        self._block.append(trial.block)
        self._outcome.append(OUTCOMES.index(trial.outcome))
        if trial.node:
            self._nodes[trial.node] = None
            self._note_node(trial)
        for node, check in zip(trial.node.split(","), trial.node_checks, strict=False):
            self._note_check(trial.block, node, check)
        if trial.outcome == "ok":
            record = trial.record or _NO_RECORD
            note_trial(facts, trial, record)
            self._note_own(facts, record)
            self._note_machine(record)
            self._numbers.extend(_row(trial, record))
        else:
            count_text(facts.reasons, f"{trial.outcome}: {trial.reason}")
            self._numbers.extend([math.nan] * (len(_COLUMNS) - 1) + [finite_or_nan(trial.started)])

    def measured(self) -> Measurements:
        """Return the table so far."""
        arm_index = np.array(self._who, dtype=np.int64)
        outcome = np.array(self._outcome, dtype=np.int64)
        rows = np.array(self._numbers, dtype=np.float64).reshape(-1, len(_COLUMNS))
        blocks, block_index = np.unique(np.array(self._block, dtype=np.int64), return_inverse=True)
        table = np.full((len(_COLUMNS), len(self._arms), len(blocks)), np.nan)
        ok_rows = np.flatnonzero(outcome == OUTCOMES.index("ok"))
        table[:, arm_index[ok_rows], block_index[ok_rows]] = rows[ok_rows].T
        attempted = np.zeros((len(self._arms), len(blocks)), dtype=np.bool_)
        attempted[arm_index, block_index] = True
        primary = {metric.name: rows[:, _COLUMNS.index(metric.name)] for metric in (THROUGHPUT, VALUE)}
        trials = TrialOrder(arm_index, blocks[block_index], outcome, rows[:, -1], primary)
        columns = {name: table[index] for index, name in enumerate(_COLUMNS)}
        for name, values in self._own.items():
            columns[name] = np.full((len(self._arms), len(blocks)), np.nan)
            row_indices = list(values)
            columns[name][arm_index[row_indices], block_index[row_indices]] = list(values.values())
        return Measurements(
            self._arms, blocks, columns, self._facts, trials, tuple(self._nodes), attempted,
            dict(self._block_nodes), dict(self._checks), dict(self._machine),
        )  # fmt: skip

    def _note_own(self, facts: ArmFacts, record: Record) -> None:
        """Take the further metrics and the checks of a program of the user's own; the trial's row is not there yet."""
        row = len(self._numbers) // len(_COLUMNS)
        for metric in record.more_metrics or ():
            self._note_number(own_column(metric.name or ""), row, finite_or_nan(metric.value))
        for check in record.checks or ():
            name = check_column(check.name or "")
            self._note_number(name, row, _loss(check.value))
            facts.tolerances.setdefault(name, finite_or_nan(check.tolerance))

    def _note_machine(self, record: Record) -> None:
        for part, name in _MACHINE_PATHS:
            value = getattr(getattr(record.evidence, part, None), name, None)
            if value is not None:
                count_text(self._machine[f"{part}.{name}"], json.dumps(value))

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


def _row(trial: Reading | Trial, record: Record) -> list[float]:
    result = record.result or _NO_RESULT
    system = (record.evidence and record.evidence.system) or _NO_SYSTEM
    metrics = dict(record.metrics or {})
    if _started_beside_others(trial, record):
        metrics.pop("run_delay_s", None)
    return [
        *(
            finite_or_nan(trial.wall_s) if name == "trial_s" else finite_or_nan(metrics.get(name))
            for name in (*METRICS, *_BESIDE)
        ),
        _counted_s(trial, record),
        *(_loss(getattr(result, name)) for name in WORK_COLUMNS),
        *(finite_or_nan(getattr(system, name)) for name in _CONDITION_COLUMNS),
        *_quota(record),
        finite_or_nan(trial.started),
    ]


def _quota(record: Record) -> tuple[float, float]:
    sandbox = record.evidence and record.evidence.sandbox
    group = sandbox and sandbox.cgroup
    if not group:
        return math.nan, math.nan
    periods = finite_or_nan(group.cpu_periods)
    return finite_or_nan(group.cpu_limit), finite_or_nan(group.throttled_periods) / periods if periods > 0 else math.nan


def _counted_s(trial: Reading | Trial, record: Record) -> float:
    timing = record.timing
    told = (
        finite_or_nan((record.metrics or {}).get("training_s")),
        finite_or_nan(timing and timing.wall_ns) / 1e9,
        trial.wall_s,
    )
    return next((finite_or_nan(value) for value in told if math.isfinite(finite_or_nan(value))), math.nan)


def _is_uninterrupted(record: Record | None) -> bool:
    """Whether a trial took its steps in one turn with none set apart, which no trial does that shares its rounds."""
    turns = record.timing.turns if record and record.timing else None
    return turns is not None and len(turns) == 1 and not turns[0].apart_ns


def _started_beside_others(trial: Reading | Trial, record: Record) -> bool:
    """Whether a program's counters hold a start beside others: it took turns by its steps.

    Older ones are those of the whole program, so that what it waited for a CPU then is of our own making.
    """
    timing = record.timing
    if math.isfinite(finite_or_nan((record.metrics or {}).get("others_s"))):
        return False
    return bool((trial.together or 0) > 1 and timing and timing.turns is not None and timing.paused_ns is not None)


def _without_step_times(line: bytes) -> bytes:
    """Cut the raw step times out of a line: they are nine tenths of it, and are not needed here.

    The searched text cannot stand inside a JSON string, where its quotes would be escaped.
    """
    for key in _STEP_TIME_KEYS:
        start = line.find(key)
        if start >= 0:
            end = line.find(b"]", start)
            line = line[: start + len(key)] + line[end:]
    return line


def read_trials(folder: RunFolder, plan: Plan) -> Iterator[Reading | Trial]:
    """Yield the trials without their raw step times; a half-written last line is passed over.

    Raises StoreError for a line that is damaged or no trial of the plan, naming it.
    """
    return planned_lines(plan, _read_lines(folder), raise_on_rejected(folder.trials_file))


def _read_lines(folder: RunFolder) -> Iterator[Reading | Trial]:
    for count, line in read_whole_lines(folder.trials_file):
        yield reading_from_line(_without_step_times(line).decode(errors="replace"), folder.trials_file, count)


def fold_trials(plan: Plan, trials: Iterable[Reading | Trial]) -> Measurements:
    """Fold trials into Measurements, keeping none of them."""
    builder = MeasurementBuilder(plan)
    for trial in trials:
        builder.add(trial)
    return builder.measured()


def read_measurements(folder: RunFolder, plan: Plan) -> Measurements:
    """Fold the trials of a results folder."""
    return fold_trials(plan, read_trials(folder, plan))
