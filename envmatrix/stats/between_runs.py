"""Compare two runs, whose trials nothing pairs, with what runs of one thing differ by."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from envmatrix.errors import InputError, StoreError
from envmatrix.plan import Arm, shown_name
from envmatrix.results import Run, RunFolder
from envmatrix.results.anonymize import is_numbered
from envmatrix.stats.alpha_spending import level_at
from envmatrix.stats.analysis import estimate
from envmatrix.stats.comparison import (
    Compared,
    Comparison,
    counts,
    lacking,
    logs_in,
    named,
    other_than_speed,
    smallest_seen,
    status_of,
    unchecked_works,
    unless_broken,
    unless_contended,
    unless_other_work,
    weaker,
)
from envmatrix.stats.contention import Waiting, contended, cpu_waits
from envmatrix.stats.effects import Contended, verdict_of
from envmatrix.stats.equal_work import other_work
from envmatrix.stats.measurements import Measurements, read_measurements
from envmatrix.stats.metrics import Metric
from envmatrix.stats.observed_host import seen_host
from envmatrix.stats.primary_metric import primary_metrics
from envmatrix.stats.run_to_run import (
    FEWEST_RUNS,
    against,
    identity,
    runs_beside,
    same_schedule,
    same_thing,
    schedule_of,
)
from envmatrix.stats.slow_trials import described
from envmatrix.stats.welch import Mean, mean_of, quotient


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
    it cannot be said whether new is slower. Raises InputError for one run with itself, and when the runs are not
    comparable, unless ``anyway``: then the reasons are cautions.
    """
    pair = _Pair((old, new), (old.load_here(), new.load_here()))
    runs, measured = pair.runs, pair.measured
    if identity(runs[0]) == identity(runs[1]):
        raise InputError(
            f"{runs[0].name} is to be compared with itself, or with a copy of it",
            remedy=f"two environments of it: envmatrix compare {runs[0].name} --environments OLD,NEW; or name another",
        )
    reasons = differences(*runs, measured)
    if reasons and not anyway:
        raise InputError(
            f"runs {runs[0].name} and {runs[1].name} are not comparable: {'; '.join(reasons)}",
            remedy="make both on one machine with one version of the benchmark, or compare them --anyway "
            "(from Python: anyway=True)",
        )
    for name in environments:
        for run in runs:
            named(run, name)
    arms = [arm for arm in runs[0].plan.arms if arm.name in measured[1].arms and not arm.is_control]
    arms = [arm for arm in arms if not environments or arm.environment in environments]
    if not arms:
        raise InputError("the runs share no environment of one workload and engine", remedy="compare other runs")
    metrics = primary_metrics(runs[0].plan, measured[0], runs[0].workloads)
    work = {arm.name: other_work(*measured, arm.name) for arm in arms}
    items = [
        unless_other_work(_across(arm, metrics[arm.workload], pair, len(arms), allowed), bool(work[arm.name]))
        for arm in arms
    ]
    apart = "the runs were made at different times: a change of the machine since the older ones is not cancelled"
    differ = (f"{shown_name(name)} of {runs[1].name} did not do the work of {runs[0].name}: {'; '.join(text)}"
              for name, text in work.items() if text)  # fmt: skip
    return Comparison(
        tuple(items), (apart, *reasons, *differ, *_of_programs(runs, measured[1], arms), *pair.weaker(arms))
    )


def differences(old: Run, new: Run, measured: tuple[Measurements, Measurements]) -> tuple[str, ...]:
    """Return what makes two runs not comparable: another machine, schedule, benchmark or workload."""
    one, two = (seen_host(run.host, seen) for run, seen in zip((old, new), measured, strict=True))
    found = [
        f"{key} of the hosts differ: {then} and {now}"
        for key, then, now in (
            ("name", one.name, two.name),
            ("cpu_model", one.cpu_model, two.cpu_model),
            ("cpus", list(one.cpus), list(two.cpus)),
            ("memory_bytes", one.memory_bytes, two.memory_bytes),
        )
        if then != now and None not in (then, now)
        if not (key == "name" and (is_numbered(str(then)) or is_numbered(str(now))))
    ]
    if not same_schedule(old, new):
        found.append(f"the schedules differ: {schedule_of(old)} and {schedule_of(new)}")
    if old.bench_digest != new.bench_digest:
        found.append("the benchmark itself differs")
    works = [{d for fact in one.facts.values() for d in fact.work} for one in measured]
    if works[0] and works[1] and works[0].isdisjoint(works[1]):
        found.append("the workloads differ")
    data = [{d for fact in one.facts.values() for d in fact.data} for one in measured]
    if data[0] and data[1] and data[0].isdisjoint(data[1]):
        found.append("the data sets differ")
    return tuple(found)


def _of_programs(runs: tuple[Run, Run], measured: Measurements, arms: Sequence[Arm]) -> Iterator[str]:
    """Yield what is to be said of own programs: files that are others in the newer run, and work without a check."""
    names = dict.fromkeys(arm.workload for arm in arms)
    for name in names:
        then, now = (run.programs.get(name, {}) for run in runs)
        files = sorted(file for file in {*then, *now} if then.get(file) != now.get(file))
        if then and now and files:
            yield f"the program of {name} is not the same in both runs: {', '.join(files[:8])}"
    yield from unchecked_works(runs[1], measured, names)


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
                *weaker(analysis, names),
                *(f"{shown_name(name)}: {slow[name]} than its others" for name in names if name in slow),
            ]
            yield from (f"in {run.name} {text}" for text in (*said, *lacking(run, measured)))

    @cached_property
    def _waits(self) -> tuple[Mapping[str, Waiting], ...]:
        return tuple(cpu_waits(run.plan, seen) for run, seen in zip(self.runs, self.measured, strict=True))

    def contended(self, arm: str) -> Contended:
        """Return what CPU contention in either run can have done to the ratio of an arm."""
        old, new = (waits.get(arm, Waiting()) for waits in self._waits)
        return contended({"old": old, "new": new}, ("old",), "new")

    @cached_property
    def beside(self) -> tuple[tuple[Run, Measurements], ...]:
        """Further runs of what the older one measured, for any of its arms."""
        old = self.runs[0]
        found = []
        for folder, run in runs_beside(self.folders[0], self.runs):
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
        return mean_of(logs_in(measured, arm.name, metric), max(run.plan.min_blocks for run in self.runs))


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
        counts(pair.measured, (arm.name, arm.name), metric), allowed, status_of(low, high, allowed),
        runs=len(olds), smallest=smallest_seen(ratio, found.high if found else None, allowed),
        other=other_than_speed(metric),
    )  # fmt: skip
    before, now = (measured.facts[arm.name] for measured in pair.measured)
    compared = unless_broken(compared, before, now)
    return unless_contended(compared, pair.contended(arm.name)) if metric.is_speed else compared
