"""History of many runs, hosts and dates, read from the summary.json of each run without its trials."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from envmatrix.errors import StoreError
from envmatrix.plan.interleaving import turn_length_text
from envmatrix.plan.schedule import CONTROL
from envmatrix.results import RunFolder
from envmatrix.stats.effects import DISQUALIFYING_FLAGS, Flag
from envmatrix.stats.inference.change_points import FALSE_ALARM_RATE, MIN_RUNS, change_points, fewest_runs
from envmatrix.stats.metrics import VALUE, finite_or_nan
from envmatrix.stats.pairing import ratio_from_log
from envmatrix.system.regular_files import read_bytes

_SUMMARY = "summary.json"
#: Flags that must be shown with a speed-up.
_TOLD = DISQUALIFYING_FLAGS | {Flag.REFERENCE_FAILS_MORE, Flag.CONTENDED}
_SCHEMA = 1
#: The warning in summary.json for a run that was too short (``report.warning.WarningKind.SHORT_RUN``).
_SHORT_RUN = "short-run"
_EFFECTS_MARKER = b'\n "effects": ['


@dataclass(frozen=True)
class Point:
    """The result of one run for one environment: ``mean`` as in its report, ``ratio`` over the baseline.

    ``barred`` lists why it may not be called the best, or what weakens it, such as other work. ``withheld`` is why it
    has no verdict although the interval excludes 1. ``unchecked``: equal work was not checked. ``short``: the run was
    too short to allow for slow phases. ``versions`` are read from its processes, as (evidence, value). ``metric`` is
    label, unit and better direction of ``mean``, or '' if an older run lacks them.
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
#: Keys that identify the series of one machine.
_SERIES_KEYS = ("workload", "engine", "environment", "metric")


def _finite(value: object) -> float | None:
    parsed = finite_or_nan(value)
    return parsed if math.isfinite(parsed) else None


@dataclass(frozen=True)
class _SummaryContents:
    """The parts of a summary.json needed for a history."""

    created: str
    host: str
    arms: tuple[Mapping[str, object], ...]
    schedules: Mapping[tuple[str, str], str]
    unchecked: frozenset[tuple[str, str]]
    short: bool


def _points(body: _SummaryContents, run: str) -> Iterator[tuple[SeriesKey, Point]]:
    for arm in body.arms:
        mean = _finite(arm.get("mean", arm.get("median")))  # older summaries have only the median
        if mean is None or mean <= 0:
            continue
        workload, engine, environment, metric = (str(arm.get(name)) for name in _SERIES_KEYS)
        ratio, low, high = (_finite(arm.get(name)) for name in ("ratio", "low", "high"))
        flags = arm.get("flags")
        known = set(map(str, flags)) if isinstance(flags, list) else set()
        held = str(arm.get("withheld") or "")
        barred = tuple(sorted(known & _TOLD - {held}))
        is_unchecked, versions = (workload, engine) in body.unchecked, _versions(arm.get("versions"))
        label, unit, better = (str(arm.get(name) or "") for name in ("label", "unit", "better"))
        details = (barred, held, is_unchecked, body.short, versions, (label, unit, better))
        point = Point(run, body.created, mean, ratio, low, high, *details)
        schedule = body.schedules[workload, engine]
        yield (body.host, workload, engine, schedule, metric, environment), point


def _versions(versions: object) -> tuple[tuple[str, str], ...]:
    return tuple((str(name), str(value)) for name, value in versions.items()) if isinstance(versions, dict) else ()


def _without_effects(document: bytes) -> bytes:
    """Return a summary.json cut off before its effects, which are most of it and not needed here.

    Only envmatrix's own writer puts a line break before that key, and JSON strings escape line breaks. Other documents
    are returned as they are.
    """
    head, marker, _ = document.partition(_EFFECTS_MARKER)
    return head.rstrip().rstrip(b",") + b"}" if marker else document


def _read_summary(file: Path) -> _SummaryContents | None:
    try:
        body: object = json.loads(_without_effects(read_bytes(file)))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(body, dict) or not isinstance(body.get("schema"), int) or body["schema"] > _SCHEMA:
        return None
    arms = body.get("arms")
    if not isinstance(arms, list) or not all(isinstance(arm, dict) for arm in arms):
        return None
    keys = [tuple(str(arm.get(name)) for name in _SERIES_KEYS) for arm in arms]
    try:
        host = RunFolder(file.parent).names.real_host(str(body.get("host") or ""))
    except StoreError:
        return None
    unknown, short = frozenset(_unchecked(body)), _is_short(body)
    read = _SummaryContents(str(body.get("created") or ""), host, tuple(arms), _schedules(body, arms), unknown, short)
    return read if len(set(keys)) == len(keys) else None


def _schedules(body: Mapping[str, object], arms: Iterable[Mapping[str, object]]) -> dict[tuple[str, str], str]:
    """Return the schedule of each workload and engine; older summaries contain less about it.

    Without known steps, a turn is a fraction of a second; a program may also run uninterrupted among interleaved ones.
    """
    schedules: dict[tuple[str, str], str] = {}
    turn = body.get("turn")
    requested = "turns" if str(body.get("schedule") or "").startswith("turns of") else ""
    for arm in arms:
        group_key, program = (str(arm.get("workload")), str(arm.get("engine"))), arm.get("metric") == VALUE.name
        took_turns = not program or finite_or_nan(arm.get("in_turns")) > 0
        steps = not program or arm.get("turns_of") == "steps"
        schedule_text = f"turns of {turn_length_text(turn, steps=steps)}" if isinstance(turn, int) else requested
        schedules[group_key] = schedule_text if took_turns else schedules.get(group_key, "")
    return schedules


def _unchecked(body: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield workload and engine of answers without a check of equal work; older runs have it only in the headline."""
    answers = body.get("best")
    for answer in answers if isinstance(answers, list) else ():
        if isinstance(answer, dict):
            says_unchecked = str(answer.get("headline")).endswith("Equal work not checked.")
            if not answer.get("equal_work_checked", not says_unchecked):
                yield str(answer.get("workload")), str(answer.get("engine"))


def _is_short(body: Mapping[str, object]) -> bool:
    """Return whether the run's own report has the short-run warning."""
    warnings = body.get("warnings")
    warning_list = warnings if isinstance(warnings, list) else []
    return any(isinstance(item, dict) and item.get("kind") == _SHORT_RUN for item in warning_list)


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
    all_series = [
        Series(
            host,
            workload,
            engine,
            environment,
            metric,
            tuple(sorted(points, key=lambda point: (point.created, point.run))),
            (),
            schedule=schedule,
        )
        for (host, workload, engine, schedule, metric, environment), points in sorted(collected.items())
    ]
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
    folders = sorted(path for path in results.iterdir() if (path / _SUMMARY).exists()) if results.is_dir() else []
    for folder in folders:
        body = _read_summary(folder / _SUMMARY)
        if body is None:
            unreadable.append(folder.name)
            continue
        runs += 1
        for key, point in _points(body, folder.name):
            collected.setdefault(key, []).append(point)
    return History(runs, tuple(_series_with_changes(collected)), tuple(unreadable))
