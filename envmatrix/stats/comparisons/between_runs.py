"""Comparison of two runs, whose trials are not paired, with the variation between runs of the same setup."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from envmatrix.errors import InputError, StoreError
from envmatrix.plan import Arm, shown_name
from envmatrix.results import Run, RunFolder
from envmatrix.results.anonymize import is_numbered_host
from envmatrix.stats.analysis import estimate
from envmatrix.stats.attribution.explanation import explain_runs
from envmatrix.stats.comparisons.result import (
    ArmComparison,
    Comparison,
    SteadyComparison,
    arm_logs,
    find_arms,
    flag_cautions,
    missing_trials_cautions,
    non_speed_label,
    smallest_detectable_slowdown,
    status_of,
    trial_counts,
    unchecked_work_cautions,
    unless_contended,
    with_steady,
    withdraw_if_fails_more,
    withdraw_if_other_work,
)
from envmatrix.stats.comparisons.run_to_run import (
    FEWEST_RUNS,
    compare_with_runs,
    describe_schedule,
    is_same_schedule,
    is_same_setup,
    run_identity,
    sibling_runs,
)
from envmatrix.stats.comparisons.steady import Rules, compare_later_steps
from envmatrix.stats.comparisons.unpaired_parts import unpaired_parts
from envmatrix.stats.effects import Contended, verdict_of
from envmatrix.stats.inference.welch import Mean, mean_of_logs, quotient
from envmatrix.stats.measurements import Measurements, read_measurements
from envmatrix.stats.metrics import Metric
from envmatrix.stats.observed_host import observed_host
from envmatrix.stats.primary_metric import primary_metrics
from envmatrix.stats.quality.contention import Waiting, contended, cpu_waits
from envmatrix.stats.quality.equal_work import work_differences_between_runs
from envmatrix.stats.quality.slow_trials import describe_slow_trials
from envmatrix.stats.steady_state.effect import steps_of_trial
from envmatrix.stats.stopping.alpha_spending import confidence_level


def compare_runs(
    old: RunFolder, new: RunFolder, *, environments: Sequence[str] = (), allowed: float = 0.0, anyway: bool = False,
) -> Comparison:  # fmt: skip
    """Compare the arms that two runs share (or only those of ``environments``), run against run.

    Trials of two runs are not paired. The variation between runs is estimated from runs of the same setup in the folder
    of ``old``; ``new`` is compared with all of them (``run_to_run``). With fewer than three there is no verdict. Raises
    InputError if both runs are the same one, or are not comparable. With ``anyway``, the reasons for that become
    cautions.
    """
    pair = _RunPair((old, new), (old.load_for_resume(), new.load_for_resume()))
    runs, measured = pair.runs, pair.measured
    if run_identity(runs[0]) == run_identity(runs[1]):
        raise InputError(
            f"cannot compare {runs[0].name} with itself, or with a copy of it",
            remedy=f"compare two of its environments: envmatrix compare {runs[0].name} --environments OLD,NEW; or "
            "pass another run",
        )
    reasons = comparability_problems(*runs, measured)
    if reasons and not anyway:
        raise InputError(
            f"runs {runs[0].name} and {runs[1].name} are not comparable: {'; '.join(reasons)}",
            remedy="measure both on one machine with one version of the benchmark, or compare anyway: --anyway "
            "(Python: anyway=True)",
        )
    arms = _shared_arms(pair, environments)
    work_differences = {arm.name: work_differences_between_runs(*measured, arm.name) for arm in arms}
    later = [pair.later_steps(arm, len(arms), allowed) for arm in arms]
    items = [
        withdraw_if_other_work(_compare_arm(arm, pair, len(arms), allowed, steady), bool(work_differences[arm.name]))
        for arm, (steady, _) in zip(arms, later, strict=True)
    ]
    work_cautions = (
        f"{shown_name(name)} of {runs[1].name} did other work than {runs[0].name}: {'; '.join(text)}"
        for name, text in work_differences.items()
        if text
    )
    return Comparison(
        tuple(items),
        (
            "the runs were made at different times: changes of the machine in between are not cancelled out",
            *reasons,
            *work_cautions,
            *(reason for _, reason in later if reason),
            *_program_cautions(runs, measured[1], arms),
            *pair.table_cautions(arms),
        ),
    )


def _shared_arms(pair: _RunPair, environments: Sequence[str]) -> list[Arm]:
    for name in environments:
        for run in pair.runs:
            find_arms(run, name)
    arms = [arm for arm in pair.runs[0].plan.arms if arm.name in pair.measured[1].arms and not arm.is_control]
    arms = [arm for arm in arms if not environments or arm.environment in environments]
    if not arms:
        raise InputError(
            "the runs have no environment in common, with the same workload and engine", remedy="compare other runs"
        )
    return arms


def comparability_problems(old: Run, new: Run, measured: tuple[Measurements, Measurements]) -> tuple[str, ...]:
    """Return why two runs are not comparable: another machine, schedule, benchmark, workload or data set."""
    one, two = (observed_host(run.host, measurements) for run, measurements in zip((old, new), measured, strict=True))
    problems = [
        f"the hosts differ in {key}: {old_value} and {new_value}"
        for key, old_value, new_value in (
            ("name", one.name, two.name),
            ("cpu_model", one.cpu_model, two.cpu_model),
            ("cpus", list(one.cpus), list(two.cpus)),
            ("memory_bytes", one.memory_bytes, two.memory_bytes),
        )
        if old_value != new_value and None not in (old_value, new_value)
        if not (key == "name" and (is_numbered_host(str(old_value)) or is_numbered_host(str(new_value))))
    ]
    if not is_same_schedule(old, new):
        problems.append(f"the schedules differ: {describe_schedule(old)} and {describe_schedule(new)}")
    if old.bench_digest != new.bench_digest:
        problems.append("the benchmark itself differs")
    works = [{d for fact in one.facts.values() for d in fact.work} for one in measured]
    if works[0] and works[1] and works[0].isdisjoint(works[1]):
        problems.append("the workloads differ")
    data = [{d for fact in one.facts.values() for d in fact.data} for one in measured]
    if data[0] and data[1] and data[0].isdisjoint(data[1]):
        problems.append("the data sets differ")
    return tuple(problems)


def _program_cautions(runs: tuple[Run, Run], measured: Measurements, arms: Sequence[Arm]) -> Iterator[str]:
    """Yield cautions about user programs: files that changed between the runs, and work without a check."""
    names = dict.fromkeys(arm.workload for arm in arms)
    for name in names:
        old_files, new_files = (run.programs.get(name, {}) for run in runs)
        files = sorted(file for file in {*old_files, *new_files} if old_files.get(file) != new_files.get(file))
        if old_files and new_files and files:
            yield f"the program of {name} differs between the runs: {', '.join(files[:8])}"
    yield from unchecked_work_cautions(runs[1], measured, names)


class _RunPair:
    """Two runs, and further runs in the older one's folder that are comparable with it; each is read once."""

    def __init__(self, folders: tuple[RunFolder, RunFolder], runs: tuple[Run, Run]) -> None:
        self.folders, self.runs = folders, runs
        self.measured = (
            read_measurements(folders[0], runs[0].plan),
            read_measurements(folders[1], runs[1].plan),
        )

    @property
    def level(self) -> float:
        """The higher of the two runs' confidence levels: the run read more often needs more."""
        pairs = zip(self.runs, self.measured, strict=True)
        return max(confidence_level(run.plan, len(measured.blocks)) for run, measured in pairs)

    def table_cautions(self, arms: Sequence[Arm]) -> Iterator[str]:
        """Yield the cautions from each run's own tables about the arms, and which arms have slow trials."""
        names = [arm.name for arm in arms]
        for run, measured in zip(self.runs, self.measured, strict=True):
            analysis = estimate(run.plan, measured, workloads=run.workloads, environments=run.environments, metrics=())
            slow = describe_slow_trials(run.plan, measured, analysis.primary, analysis.slow)
            cautions = [
                *flag_cautions(analysis, names),
                *(f"{shown_name(name)}: {slow[name]} than the others" for name in names if name in slow),
            ]
            yield from (f"in {run.name} {text}" for text in (*cautions, *missing_trials_cautions(run, measured)))

    @cached_property
    def _waits(self) -> tuple[Mapping[str, Waiting], ...]:
        return tuple(cpu_waits(run.plan, seen) for run, seen in zip(self.runs, self.measured, strict=True))

    def contended(self, arm: str) -> Contended:
        """Return the possible influence of CPU contention in either run on the ratio of an arm."""
        old, new = (waits.get(arm, Waiting()) for waits in self._waits)
        return contended({"old": old, "new": new}, ("old",), "new")

    @cached_property
    def beside(self) -> tuple[tuple[Run, Measurements], ...]:
        """Further runs that measured any arm of the older run with the same setup."""
        old = self.runs[0]
        comparable_runs = []
        for folder, run in sibling_runs(self.folders[0], self.runs):
            if any(is_same_setup(old, run, arm) for arm in old.plan.arms):
                with contextlib.suppress(StoreError):  # skip a damaged run
                    measured = read_measurements(folder, run.plan)
                    comparable_runs += (
                        [] if comparability_problems(old, run, (self.measured[0], measured)) else [(run, measured)]
                    )
        return tuple(comparable_runs)

    def olds(self, arm: Arm) -> list[Measurements]:
        """Return the numbers of the older run and of the further runs with the same setup."""
        same_setup_runs = [measured for run, measured in self.beside if is_same_setup(self.runs[0], run, arm)]
        return [self.measured[0], *same_setup_runs]

    def means(self, arm: Arm, metric: Metric) -> list[Mean]:
        """Return the means of these runs, without those that have too few trials."""
        run_means = (self.mean(measured, arm, metric) for measured in self.olds(arm))
        return [mean for mean in run_means if mean]

    @cached_property
    def metrics(self) -> Mapping[str, Metric]:
        """The primary metric of each workload."""
        return primary_metrics(self.runs[0].plan, self.measured[0], self.runs[0].workloads)

    def later_steps(self, arm: Arm, family: int, allowed: float) -> tuple[SteadyComparison | None, str]:
        """Return the comparison of later steps of an arm, or why there is none."""
        old, new = self.runs
        rules = Rules(family, self.level, allowed, new.plan.margin)
        measured, trial = [*self.olds(arm), self.measured[1]], steps_of_trial(new.workloads.get(arm.workload))
        return compare_later_steps(arm, self.metrics[arm.workload], measured, (old.name, new.name), rules, trial)

    def mean(self, measured: Measurements, arm: Arm, metric: Metric) -> Mean | None:
        """Return the mean log of one run, or None if it has too few trials."""
        return mean_of_logs(arm_logs(measured, arm.name, metric), max(run.plan.min_blocks for run in self.runs))


def _compare_arm(
    arm: Arm, pair: _RunPair, family: int, allowed: float, steady: SteadyComparison | None
) -> ArmComparison:
    """Compare one arm of two runs using the variation between runs; with fewer than three there is no interval."""
    metric = pair.metrics[arm.workload]
    olds, new = pair.means(arm, metric), pair.mean(pair.measured[1], arm, metric)
    has_enough_runs = len(olds) >= FEWEST_RUNS
    result = None
    if olds and new and pair.mean(pair.measured[0], arm, metric):
        result = (
            compare_with_runs(olds, new, family, pair.level)
            if has_enough_runs
            else quotient(olds[0], new, family, pair.level)
        )
    ratio = result.ratio if result else None
    low, high, p = (result.low, result.high, result.p) if result and has_enough_runs else (None, None, None)
    comparison = ArmComparison(
        arm.name,
        pair.runs[0].name,
        pair.runs[1].name,
        metric.name,
        ratio,
        low,
        high,
        p,
        verdict_of(low, high, pair.runs[1].plan.margin) if low is not None and high is not None else "undecided",
        trial_counts(pair.measured, (arm.name, arm.name), metric),
        allowed,
        status_of(low, high, allowed),
        runs=len(olds),
        smallest=smallest_detectable_slowdown(ratio, result.high if result else None, allowed),
        other=non_speed_label(metric),
    )
    before, now = (measured.facts[arm.name] for measured in pair.measured)
    comparison = withdraw_if_fails_more(with_steady(comparison, steady), before, now)
    if not metric.is_speed:
        return comparison
    comparison = unless_contended(comparison, pair.contended(arm.name))
    if comparison.unsure or comparison.verdict not in ("faster", "slower"):
        return comparison
    olds_measured = [one for one in pair.olds(arm) if pair.mean(one, arm, metric)]
    names = (pair.runs[0].name, pair.runs[1].name)
    parts = unpaired_parts(arm, names, olds_measured, pair.measured[1], family, pair.level)
    is_faster = comparison.verdict == "faster"
    why = explain_runs(parts, pair.runs[1], pair.measured, faster=is_faster) if parts else None
    return replace(comparison, why=why)
