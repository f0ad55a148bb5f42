"""History of many runs, hosts and dates, read from the summary.json of each run without its trials."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator

from envmatrix.errors import StoreError
from envmatrix.plan.schedule import CONTROL
from envmatrix.plan.turn_order import turn_length_text
from envmatrix.results import RunFolder
from envmatrix.stats.effects import DISQUALIFYING_FLAGS, Flag
from envmatrix.stats.inference.change_points import FALSE_ALARM_RATE, MIN_RUNS, change_points, fewest_runs
from envmatrix.stats.metrics import VALUE
from envmatrix.stats.pairing import ratio_from_log
from envmatrix.system.regular_files import read_bytes

_SUMMARY = "summary.json"
#: Flags that must be shown with a speed-up.
_TOLD = DISQUALIFYING_FLAGS | {Flag.REFERENCE_FAILS_MORE, Flag.CONTENDED}
#: The warning in summary.json for a run that was too short (``report.warning.WarningKind.SHORT_RUN``).
_SHORT_RUN = "short-run"


@dataclass(frozen=True)
class Point:
    """The result of one run for one environment: ``mean`` as in its report, ``ratio`` over the baseline.

    ``barred`` lists why it may not be called the best, or what weakens it, such as other work. ``withheld`` is why it
    has no verdict although the interval excludes 1. ``unchecked``: equal work was not checked. ``short``: the run was
    too short to allow for slow phases. ``versions`` are read from its processes, as (evidence, value). ``metric`` is
    label, unit and better direction of ``mean``, or '' for the default ones.
    """

    run: str
    created: str
    mean: float
    ratio: float | None
    low: float | None
    high: float | None
    barred: tuple[str, ...] = ()
    withheld: str = ""
    unchecked: bool = False
    short: bool = False
    versions: tuple[tuple[str, str], ...] = ()
    metric: tuple[str, str, str] = ("", "", "")


@dataclass(frozen=True)
class Change:
    """A new level that begins with ``run``; ``factor`` is the new level over the old one."""

    index: int
    run: str
    created: str
    factor: float


@dataclass(frozen=True)
class Series:
    """The runs of one environment, workload, engine and schedule on one host, oldest first.

    An environment is tracked by its ratio to the baseline of the same run, which cancels changes of the machine. The
    control is tracked by its mean, which shows the machine itself. ``followed`` counts the runs with that value (none
    for the baseline); below ``needed``, no change is looked for. ``schedule`` is 'turns of 3 steps', 'turns of 0.3 s'
    for a user's program, or '' for separate trials. Series are kept apart by schedule: interleaved and separate trials
    are not comparable.
    """

    host: str
    workload: str
    engine: str
    environment: str
    metric: str
    points: tuple[Point, ...]
    changes: tuple[Change, ...]
    followed: int = 0
    needed: int = MIN_RUNS
    schedule: str = ""

    @property
    def is_machine(self) -> bool:
        """Return whether this is the series of the machine itself (the control)."""
        return self.environment == CONTROL

    @property
    def course(self) -> list[float]:
        """The tracked values, or the means if there are none."""
        return [value for value in map(self.value, self.points) if value] or [point.mean for point in self.points]

    @property
    def has_enough(self) -> bool:
        """Return whether there are enough runs to look for a change."""
        return self.followed >= self.needed

    def value(self, point: Point) -> float | None:
        """Return the tracked value of a run."""
        return point.mean if self.is_machine else point.ratio


@dataclass(frozen=True)
class History:
    """All series; ``unreadable`` are the folders whose summary.json could not be used."""

    runs: int
    series: tuple[Series, ...]
    unreadable: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """Return the JSON document."""
        return {"schema": 1, **asdict(self)}


SeriesKey = tuple[str, str, str, str, str, str]


class _Part(BaseModel):
    """A part of a summary.json, as far as a history needs it."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class _SummaryArm(_Part):
    workload: str
    engine: str
    environment: str
    metric: str
    mean: float | None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    flags: tuple[str, ...] = ()
    withheld: str | None = None
    versions: Mapping[str, str] = Field(default_factory=dict)
    label: str = ""
    unit: str = ""
    better: str = ""
    in_turns: int = 0
    turns_of: str = ""


class _SummaryAnswer(_Part):
    workload: str
    engine: str
    equal_work_checked: bool


class _SummaryWarning(_Part):
    kind: str


class _Summary(_Part):
    schema_number: Literal[1] = Field(alias="schema")
    created: str
    host: str
    turn: int | None = None
    best: tuple[_SummaryAnswer, ...] = ()
    arms: tuple[_SummaryArm, ...]
    warnings: tuple[_SummaryWarning, ...] = ()

    @field_validator("arms")
    @classmethod
    def _check_unique_arms(cls, arms: tuple[_SummaryArm, ...]) -> tuple[_SummaryArm, ...]:
        if len({(arm.workload, arm.engine, arm.environment, arm.metric) for arm in arms}) < len(arms):
            raise ValueError("an arm is listed more than once")
        return arms


def _points(summary: _Summary, run: str, host: str) -> Iterator[tuple[SeriesKey, Point]]:
    schedules = _schedules(summary)
    unchecked = {(answer.workload, answer.engine) for answer in summary.best if not answer.equal_work_checked}
    is_short = any(warning.kind == _SHORT_RUN for warning in summary.warnings)
    for arm in summary.arms:
        if arm.mean is None or arm.mean <= 0:
            continue
        table, held = (arm.workload, arm.engine), arm.withheld or ""
        barred = tuple(sorted(_TOLD.intersection(arm.flags) - {held}))
        details = barred, held, table in unchecked, is_short, tuple(arm.versions.items())
        metric = arm.label, arm.unit, arm.better
        point = Point(run, summary.created, arm.mean, arm.ratio, arm.low, arm.high, *details, metric)
        yield (host, *table, schedules.get(table, ""), arm.metric, arm.environment), point


def _schedules(summary: _Summary) -> dict[tuple[str, str], str]:
    """Return the schedule of each interleaved workload and engine.

    Without known steps, a turn is a fraction of a second; a program may also run uninterrupted among interleaved ones.
    """
    schedules: dict[tuple[str, str], str] = {}
    if summary.turn is None:
        return schedules
    for arm in summary.arms:
        is_program = arm.metric == VALUE.name
        if arm.in_turns or not is_program:
            length = turn_length_text(summary.turn, steps=not is_program or arm.turns_of == "steps")
            schedules[arm.workload, arm.engine] = f"turns of {length}"
    return schedules


def _with_changes(series: Series, error: float) -> Series:
    """Return a series with its changes; ``error`` is the rate of false changes."""
    values = [(index, math.log(value)) for index, point in enumerate(series.points) if (value := series.value(point))]
    logs = np.array([log for _, log in values])
    splits = change_points(logs, error)
    levels = [float(logs[a:b].mean()) for a, b in itertools.pairwise((0, *splits, len(logs)))] if values else []
    starts = [(values[split][0], levels[n + 1] - levels[n]) for n, split in enumerate(splits)]
    changes = tuple(
        Change(index, series.points[index].run, series.points[index].created, ratio_from_log(step))
        for index, step in starts
    )
    return replace(series, changes=changes, followed=len(values), needed=fewest_runs(error))


def _series_with_changes(collected: Mapping[SeriesKey, list[Point]]) -> Iterator[Series]:
    """Yield all series; those of one host, workload, engine, schedule and metric share the error (Bonferroni)."""
    all_series = []
    for (host, workload, engine, schedule, metric, environment), points in sorted(collected.items()):
        by_time = tuple(sorted(points, key=lambda point: (point.created, point.run)))
        all_series.append(Series(host, workload, engine, environment, metric, by_time, (), schedule=schedule))
    groups = Counter(series_group(series) for series in all_series if any(map(series.value, series.points)))
    for series in all_series:
        yield _with_changes(series, FALSE_ALARM_RATE / max(1, groups[series_group(series)]))


def series_group(series: Series) -> tuple[str, ...]:
    """Return the properties that all series of one table share."""
    return series.host, series.workload, series.engine, series.schedule, series.metric


def read_history(results: Path) -> History:
    """Read every run below ``results`` that has a summary.json, and mark changes of level.

    Runs without one (still running, or never reported) are skipped: `envmatrix report RUN` writes it.
    """
    collected: dict[SeriesKey, list[Point]] = {}
    runs, unreadable = 0, []
    for file in sorted(results.glob(f"*/{_SUMMARY}")):
        try:
            summary = _Summary.model_validate_json(read_bytes(file))
            host = RunFolder(file.parent).names.real_host(summary.host)
        except (OSError, ValueError, StoreError):
            unreadable.append(file.parent.name)
            continue
        runs += 1
        for key, point in _points(summary, file.parent.name, host):
            collected.setdefault(key, []).append(point)
    return History(runs, tuple(_series_with_changes(collected)), tuple(unreadable))
