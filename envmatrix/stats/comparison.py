"""Compare two environments of one run, or two runs, and say whether the new one is slower than allowed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from envmatrix.errors import ExitCode, InputError, StoreError, suggestion
from envmatrix.plan import SIDES, Arm
from envmatrix.stats.analysis import Analysis, between, estimate, held_with, waiting
from envmatrix.stats.effects import Effect, Flag, Verdict, verdict_of
from envmatrix.stats.equal_work import other_work, unchecked
from envmatrix.stats.failures import broken_of
from envmatrix.stats.gaps import told_missing
from envmatrix.stats.longrun import told_short
from envmatrix.stats.measurements import ArmFacts, Measurements, read_measurements
from envmatrix.stats.metrics import Metric
from envmatrix.stats.pairing import group_of, logs_of
from envmatrix.stats.primary import primary_metrics
from envmatrix.stats.run_to_run import FEWEST_RUNS, against, runs_beside, same_thing, schedule_of
from envmatrix.stats.slow_trials import LEAST_BLOCKS, described
from envmatrix.stats.spending import level_at
from envmatrix.stats.welch import Mean, mean_of, quotient
from envmatrix.store import Run, RunFolder
from envmatrix.store.names import is_numbered

Floats = NDArray[np.float64]
Status = Literal["slower", "not slower", "cannot say"]
_WEAKER: Mapping[str, str] = {
    Flag.FAILS_MORE: "fails more often than its reference",
    Flag.UNPROVEN: "is unproven: not all that it promises was seen",
    Flag.NO_OP: "does nothing here that its reference does not",
}


@dataclass(frozen=True)
class Compared:
    """``new`` over ``old`` in one metric: a ratio above 1 is faster. No interval where there are too few trials.

    ``status`` answers whether new is slower by more than ``allowed`` (a fraction): 'slower' when the whole
    interval says so, 'not slower' when the whole interval denies it, else 'cannot say'. ``runs`` counts the runs of one
    thing that ``new`` is compared with (0: both were measured in one run), and ``smallest`` is the smallest slow-down
    that would have been called slower; where there are too few runs, had all days been alike. ``unsure`` is why nothing
    is said though there is an interval: a side has slow trials and too few blocks, trials of new broke, or it did
    other work.
    """

    name: str
    old: str
    new: str
    metric: str
    ratio: float | None
    low: float | None
    high: float | None
    p: float | None
    verdict: Verdict
    trials: tuple[int, int]
    allowed: float
    status: Status
    runs: int = 0
    smallest: float | None = None
    unsure: str = ""

    def line(self) -> str:
        """Return the sentence for people."""
        slower = f"slower by more than {self.allowed:.1%}" if self.allowed else "slower"
        if self.ratio is not None and 0 < self.runs < FEWEST_RUNS:
            seen = f" (had all days been alike, {self.smallest:.1%} would have been seen)" if self.smallest else ""
            return (
                f"{self.name}: {self.new} is {_figure(self.ratio)} times as fast as {self.old}: cannot say whether it "
                f"is {slower}: how much runs differ from day to day takes {FEWEST_RUNS} runs of the same thing in the "
                f"folder of {self.old}, which has {self.runs}{seen}; two environments of one run need none"
            )
        if self.unsure and self.ratio is not None:
            return (
                f"{self.name}: {self.new} is {_figure(self.ratio)} times as fast as {self.old}: cannot say whether it "
                f"is {slower}: {self.unsure}"
            )
        if self.ratio is None or self.low is None or self.high is None:
            return f"{self.name}: too few trials to compare {self.new} with {self.old}: cannot say"
        figures = f"{_figure(self.ratio)} (95 % interval {_figure(self.low)} to {_figure(self.high)}, {self.verdict})"
        seen = f" ({self.smallest:.1%} would have been seen)" if self.smallest else ""
        verdict = {
            "slower": slower,
            "not slower": f"not {slower}",
            "cannot say": f"the data cannot say whether it is {slower}{seen}",
        }[self.status]
        more = f" and {self.runs - 1} more runs of the same thing" if self.runs else ""
        return f"{self.name}: {self.new} is {figures} times as fast as {self.old}{more}: {verdict}"


@dataclass(frozen=True)
class Comparison:
    """All comparisons asked for; their intervals hold together. ``cautions`` say what makes them weaker."""

    items: tuple[Compared, ...]
    cautions: tuple[str, ...] = ()

    @property
    def exit_code(self) -> ExitCode:
        """SLOWER when any interval says so; what the data cannot say never fails a build."""
        return ExitCode.SLOWER if any(item.status == "slower" for item in self.items) else ExitCode.FINE

    def to_json(self) -> dict[str, object]:
        """Return the document for programs."""
        items = [asdict(item) for item in self.items]
        return {"schema": 1, "exit_code": int(self.exit_code), "comparisons": items, "cautions": list(self.cautions)}

    def lines(self) -> list[str]:
        """Return the sentences for people."""
        return [*(item.line() for item in self.items), *(f"caution: {text}" for text in self.cautions)]


def _figure(value: float) -> str:
    return f"{value:.3f}" if value < 1000 else f"{value:.3g}"


def status_of(low: float | None, high: float | None, allowed: float) -> Status:
    """Judge an interval of new over old against an allowed slow-down."""
    limit = 1.0 / (1.0 + allowed)
    if high is not None and high < limit:
        return "slower"
    return "not slower" if low is not None and low >= limit else "cannot say"


def smallest_seen(ratio: float | None, high: float | None, allowed: float) -> float | None:
    """Return the smallest slow-down that an interval this wide would have called slower than ``allowed``."""
    return (1.0 + allowed) * high / ratio - 1.0 if high is not None and ratio else None


def _counts(measured: Iterable[Measurements], arms: Iterable[str], metric: Metric) -> tuple[int, int]:
    old, new = (int(np.isfinite(_logs(one, arm, metric)).sum()) for one, arm in zip(measured, arms, strict=True))
    return old, new


def _logs(measured: Measurements, arm: str, metric: Metric) -> Floats:
    return np.asarray(metric.sign * logs_of(measured.of(arm, metric.name)))


def _named(run: Run, name: str) -> list[Arm]:
    """Return the arms that ``name`` means: an environment's, or the one arm whose whole name it is."""
    found = [arm for arm in run.plan.arms if name in (arm.environment, arm.name)]
    if not found:
        known = {arm.environment for arm in run.plan.arms}
        raise InputError(f"run {run.name} has no environment {name!r}", remedy=suggestion(name, known))
    return found


def _pairs(run: Run, old: str, new: str) -> list[tuple[Arm, Arm]]:
    """Return the arms of the two that share a workload and engine, or the two arms whose whole names these are."""
    ones, others = _named(run, old), _named(run, new)
    if (ones[0].name, others[0].name) == (old, new):
        return [(ones[0], others[0])]
    places = {group_of(arm, run.plan): arm for arm in others}
    shared = [(arm, places[place]) for arm in ones if (place := group_of(arm, run.plan)) in places]
    if not shared:
        raise InputError(
            f"{old} and {new} share no workload on one engine",
            remedy=f"name two arms in full: {ones[0].name} {others[0].name}",
        )
    return shared


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
        trials = _counts((measured, measured), (one.name, other.name), analysis.primary[one.workload])
        item = _item("@".join(group_of(other, run.plan)), (old, new), effect, trials, allowed)
        item = _unless_broken(item, measured.facts[one.name], measured.facts[other.name])
        item = _unless_other_work(item, Flag.UNEQUAL_WORK in effect.flags)
        slow = waiting(analysis, (one.name, other.name), effect.blocks)
        items.append(_unsure(item, f"a side has slow trials, which takes {LEAST_BLOCKS} blocks" if slow else ""))
        if Flag.UNEQUAL_WORK in effect.flags:
            cautions.append(f"{other.name} did not do the work of {one.name}: {'; '.join(effect.notes)}")
    compared = dict.fromkeys(arm.name for pair in pairs for arm in pair)
    short = [text for text in (told_short(measured.apart),) if text and any(item.low is not None for item in items)]
    works = _unchecked(run, (one.workload for one, _ in pairs))
    said = (*_weaker(analysis, compared), *_lacking(run, measured))
    return Comparison(tuple(items), (*cautions, *works, *said, *short))


def _weaker(analysis: Analysis, arms: Iterable[str]) -> Iterator[str]:
    """Yield what the run's own tables say of these arms, each against its reference."""
    for effect in filter(None, map(analysis.find, arms)):
        yield from (f"{effect.arm} {text}" for flag, text in _WEAKER.items() if flag in effect.flags)


def _unchecked(run: Run, workloads: Iterable[str]) -> Iterator[str]:
    """Yield which workloads nothing shows to have been the same work on both sides."""
    names = [name for name in dict.fromkeys(workloads) if unchecked(run.workloads.get(name))]
    if names:
        yield f"equal work not checked: {', '.join(names)} has no `check:` with a number that only the work decides"


def _lacking(run: Run, measured: Measurements) -> tuple[str, ...]:
    lacking = told_missing(run.plan, measured)
    return (f"trials.jsonl has {lacking}: their pairs do not count",) if lacking else ()


def compare_sides(run: Run, measured: Measurements, allowed: float = 0.0) -> Comparison:
    """Compare the two sides of a run that was begun with two matrices, environment by environment."""
    names = [(f"{SIDES[0]}.{name}", f"{SIDES[1]}.{name}") for name in run.design.environments]
    several = sum(len(_pairs(run, *pair)) for pair in names)
    found = [compare_environments(run, measured, *pair, allowed, several) for pair in names]
    items = tuple(item for one in found for item in one.items)
    cautions = tuple(dict.fromkeys(text for one in found for text in one.cautions))
    return Comparison(items, cautions)


def _item(name: str, names: tuple[str, str], effect: Effect, trials: tuple[int, int], allowed: float) -> Compared:
    return Compared(
        name, *names, effect.metric, effect.ratio, effect.low, effect.high, effect.p, effect.verdict, trials, allowed,
        status_of(effect.low, effect.high, allowed), smallest=smallest_seen(effect.ratio, effect.high, allowed),
    )  # fmt: skip


def _unsure(found: Compared, why: str) -> Compared:
    return replace(found, status="cannot say", smallest=None, unsure=why) if why else found


def _unless_broken(found: Compared, old: ArmFacts, new: ArmFacts) -> Compared:
    """Take back 'not slower' where a larger share of new's trials broke: those might have been the slow ones."""
    (before, of_old), (broken, of_new) = broken_of([old]), broken_of([new])
    if found.status != "not slower" or broken * max(1, of_old) <= before * of_new:
        return found
    return _unsure(found, f"{broken} of {of_new} trials of {found.new} broke, {before} of {of_old} of {found.old}")


def _unless_other_work(found: Compared, other: bool) -> Compared:
    """Take back 'not slower' where new did other work: that much faster is what skipped work is."""
    return _unsure(found, "it did other work") if other and found.status == "not slower" else found


def differences(old: Run, new: Run, measured: tuple[Measurements, Measurements]) -> tuple[str, ...]:
    """Return what makes two runs not comparable: another machine, schedule, benchmark or workload."""
    found = [
        f"{key} of the hosts differ: {then} and {now}"
        for key, then, now in (
            ("name", old.host.name, new.host.name),
            ("cpu_model", old.host.cpu_model, new.host.cpu_model),
            ("cpus", list(old.host.cpus), list(new.host.cpus)),
            ("memory_bytes", old.host.memory_bytes, new.host.memory_bytes),
        )
        if then != now and None not in (then, now)
        if not (key == "name" and (is_numbered(str(then)) or is_numbered(str(now))))
    ]
    ways = [schedule_of(run) for run in (old, new)]
    if ways[0] != ways[1]:
        found.append(f"the schedules differ: {ways[0]} and {ways[1]}")
    if old.bench_digest != new.bench_digest:
        found.append("the benchmark itself differs")
    works = [{d for fact in one.facts.values() for d in fact.work} for one in measured]
    if works[0] and works[1] and works[0].isdisjoint(works[1]):
        found.append("the workloads differ")
    data = [{d for fact in one.facts.values() for d in fact.data} for one in measured]
    if data[0] and data[1] and data[0].isdisjoint(data[1]):
        found.append("the data sets differ")
    return tuple(found)


def compare_runs(
    old: RunFolder,
    new: RunFolder,
    *,
    environments: Sequence[str] = (),
    allowed: float = 0.0,
    anyway: bool = False,
) -> Comparison:
    """Compare the arms that two runs share (or only those of ``environments``), run against run.

    The runs were made at different times, so nothing pairs their trials. How much runs of one thing differ is learnt
    from those in the folder of ``old``, which ``new`` is compared with together (``run_to_run``); with fewer than three
    it cannot be said whether new is slower. Raises InputError when the runs are not comparable, unless ``anyway``: then
    the reasons are cautions.
    """
    pair = _Pair((old, new), (old.load_here(), new.load_here()))
    runs, measured = pair.runs, pair.measured
    reasons = differences(*runs, measured)
    if reasons and not anyway:
        raise InputError(
            f"runs {runs[0].name} and {runs[1].name} are not comparable: {'; '.join(reasons)}",
            remedy="make both on one machine with one version of the benchmark, or compare them --anyway "
            "(from Python: anyway=True)",
        )
    for name in environments:
        for run in runs:
            _named(run, name)
    arms = [arm for arm in runs[0].plan.arms if arm.name in measured[1].arms and not arm.is_control]
    arms = [arm for arm in arms if not environments or arm.environment in environments]
    if not arms:
        raise InputError("the runs share no environment of one workload and engine", remedy="compare other runs")
    metrics = primary_metrics(runs[0].plan, measured[0], runs[0].workloads)
    work = {arm.name: other_work(*measured, arm.name) for arm in arms}
    items = [
        _unless_other_work(_across(arm, metrics[arm.workload], pair, len(arms), allowed), bool(work[arm.name]))
        for arm in arms
    ]
    apart = "the runs were made at different times: a change of the machine since the older ones is not cancelled"
    differ = (f"{name} of {runs[1].name} did not do the work of {runs[0].name}: {'; '.join(text)}"
              for name, text in work.items() if text)  # fmt: skip
    return Comparison(tuple(items), (apart, *reasons, *differ, *_of_programs(runs, arms), *pair.weaker(arms)))


def _of_programs(runs: tuple[Run, Run], arms: Sequence[Arm]) -> Iterator[str]:
    """Yield what is to be said of own programs: files that are others in the newer run, and work without a check."""
    names = dict.fromkeys(arm.workload for arm in arms)
    for name in names:
        then, now = (run.programs.get(name, {}) for run in runs)
        files = sorted(file for file in {*then, *now} if then.get(file) != now.get(file))
        if then and now and files:
            yield f"the program of {name} is not the same in both runs: {', '.join(files[:8])}"
    yield from _unchecked(runs[1], names)


class _Pair:
    """Two runs, and those beside the older one that are comparable with it; each is read once."""

    def __init__(self, folders: tuple[RunFolder, RunFolder], runs: tuple[Run, Run]) -> None:
        self.folders, self.runs = folders, runs
        self.measured = (
            read_measurements(folders[0], runs[0].plan), read_measurements(folders[1], runs[1].plan),
        )  # fmt: skip

    @property
    def level(self) -> float:
        """The confidence of the run that was looked at more often."""
        pairs = zip(self.runs, self.measured, strict=True)
        return max(level_at(run.plan, len(measured.blocks)) for run, measured in pairs)

    def weaker(self, arms: Sequence[Arm]) -> Iterator[str]:
        """Yield what the tables of each run say of the arms, and which have slow trials."""
        names = [arm.name for arm in arms]
        for run, measured in zip(self.runs, self.measured, strict=True):
            analysis = estimate(run.plan, measured, workloads=run.workloads, environments=run.environments, metrics=())
            slow = described(run.plan, measured, analysis.primary, analysis.slow)
            said = [
                *_weaker(analysis, names),
                *(f"{name}: {slow[name]} than its others" for name in names if name in slow),
            ]
            yield from (f"in {run.name} {text}" for text in (*said, *_lacking(run, measured)))

    @cached_property
    def beside(self) -> tuple[tuple[Run, Measurements], ...]:
        """Further runs of what the older one measured, for any of its arms."""
        old = self.runs[0]
        found = []
        for folder, run in runs_beside(*self.folders):
            if any(same_thing(old, run, arm) for arm in old.plan.arms):
                with contextlib.suppress(StoreError):  # a damaged run is passed over
                    measured = read_measurements(folder, run.plan)
                    found += [] if differences(old, run, (self.measured[0], measured)) else [(run, measured)]
        return tuple(found)

    def means(self, arm: Arm, metric: Metric) -> list[Mean]:
        """Return the mean of the older run and those of the further ones of the same thing."""
        same = [measured for run, measured in self.beside if same_thing(self.runs[0], run, arm)]
        found = (self.mean(measured, arm, metric) for measured in (self.measured[0], *same))
        return [mean for mean in found if mean]

    def mean(self, measured: Measurements, arm: Arm, metric: Metric) -> Mean | None:
        """Return the mean log of one run, None where it has too few trials."""
        return mean_of(_logs(measured, arm.name, metric), max(run.plan.min_blocks for run in self.runs))


def _across(arm: Arm, metric: Metric, pair: _Pair, family: int, allowed: float) -> Compared:
    """Compare one arm of two runs with what runs of one thing differ by; below three of them without an interval."""
    olds, new = pair.means(arm, metric), pair.mean(pair.measured[1], arm, metric)
    known = len(olds) >= FEWEST_RUNS
    found = None
    if olds and new and pair.mean(pair.measured[0], arm, metric):
        found = against(olds, new, family, pair.level) if known else quotient(olds[0], new, family, pair.level)
    ratio = found.ratio if found else None
    low, high, p = (found.low, found.high, found.p) if found and known else (None, None, None)
    compared = Compared(
        arm.name, pair.runs[0].name, pair.runs[1].name, metric.name, ratio, low, high, p,
        verdict_of(low, high, pair.runs[1].plan.margin) if low is not None and high is not None else "undecided",
        _counts(pair.measured, (arm.name, arm.name), metric), allowed, status_of(low, high, allowed),
        runs=len(olds), smallest=smallest_seen(ratio, found.high if found else None, allowed),
    )  # fmt: skip
    return _unless_broken(compared, *(measured.facts[arm.name] for measured in pair.measured))
