"""Comparison of two runs, whose trials are not paired, with the variation between runs of the same setup."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from envmatrix.errors import InputError, StoreError
from envmatrix.plan import Arm, shown_name
from envmatrix.plan.turn_order import turn_length_text
from envmatrix.results import Run, RunFolder
from envmatrix.results.anonymize import is_numbered_host
from envmatrix.stats.array_types import Floats
from envmatrix.stats.attribution.explanation import explain_runs
from envmatrix.stats.attribution.step_time_parts import unpaired_parts
from envmatrix.stats.comparisons import result
from envmatrix.stats.comparisons.result import ArmComparison, Comparison, SteadyComparison
from envmatrix.stats.effect_estimation import estimate
from envmatrix.stats.effects import Contended, verdict_of
from envmatrix.stats.inference.welch import FEWEST_RUNS, Mean, Quotient, compare_with_runs, mean_of_logs, quotient
from envmatrix.stats.measurements import Measurements, read_measurements
from envmatrix.stats.observed_host import observed_host
from envmatrix.stats.primary_metric import primary_metrics
from envmatrix.stats.quality.contention import Waiting, contention_bounds, cpu_waits
from envmatrix.stats.quality.equal_work import work_differences_between_runs
from envmatrix.stats.quality.slow_trials import describe_slow_trials
from envmatrix.stats.steady_state.effect import continued_after_trials, which_steps_text
from envmatrix.stats.steady_state.later_speed import CHANGE, WATCHED
from envmatrix.stats.stopping.alpha_spending import confidence_level

#: Processes that went on for times that differ by a larger factor are not compared.
_ALIKE = 1.25
_BUILD_FACT_PREFIXES = ("package ", "system ", "base_digest")
_HOST_FACTS = ("name", "cpu_model", "cpus", "memory_bytes")


def compare_runs(
    old: RunFolder, new: RunFolder, *, environments: Sequence[str] = (), allowed: float = 0.0, anyway: bool = False,
) -> Comparison:  # fmt: skip
    """Compare the arms that two runs share (or only those of ``environments``), run against run.

    Trials of two runs are not paired. The variation between runs is estimated from runs of the same setup in the folder
    of ``old``; ``new`` is compared with all of them (``compare_with_runs``). With fewer than three there is no verdict.
    Raises InputError if both runs are the same one, or are not comparable. With ``anyway``, the reasons for that become
    cautions.
    """
    pair = _RunPair((old, new), allowed)
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
    arms = pair.arms = _shared_arms(pair, environments)
    later = [pair.later_steps(arm) for arm in arms]
    work_differences = {arm.name: work_differences_between_runs(*measured, arm.name) for arm in arms}
    items = (
        _compare_arm(arm, pair, steady, did_other_work=bool(work_differences[arm.name]))
        for arm, (steady, _) in zip(arms, later, strict=True)
    )
    cautions = (
        "the runs were made at different times: changes of the machine in between are not cancelled out",
        *reasons,
        *(
            f"{shown_name(name)} of {runs[1].name} did other work than {runs[0].name}: {'; '.join(text)}"
            for name, text in work_differences.items()
            if text
        ),
        *(reason for _, reason in later if reason),
        *_program_cautions(runs, measured[1], arms),
        *pair.table_cautions(),
    )
    return Comparison(tuple(items), cautions)


def _shared_arms(pair: _RunPair, environments: Sequence[str]) -> list[Arm]:
    for name in environments:
        for run in pair.runs:
            result.find_arms(run, name)
    arms = [arm for arm in pair.runs[0].plan.arms if arm.name in pair.measured[1].arms and not arm.is_control]
    arms = [arm for arm in arms if not environments or arm.environment in environments]
    if not arms:
        raise InputError(
            "the runs have no environment in common, with the same workload and engine", remedy="compare other runs"
        )
    return arms


def _program_cautions(runs: tuple[Run, Run], measured: Measurements, arms: Sequence[Arm]) -> Iterator[str]:
    """Yield cautions about user programs: files that changed between the runs, and work without a check."""
    names = dict.fromkeys(arm.workload for arm in arms)
    for name in names:
        old_files, new_files = (run.programs.get(name, {}) for run in runs)
        files = sorted(file for file in {*old_files, *new_files} if old_files.get(file) != new_files.get(file))
        if old_files and new_files and files:
            yield f"the program of {name} differs between the runs: {', '.join(files[:8])}"
    yield from result.unchecked_work_cautions(runs[1], measured, names)


class _RunPair:
    """Two runs, and further runs in the older one's folder that are comparable with it; each is read once.

    ``arms`` are compared, with simultaneous intervals; ``allowed`` is the accepted slowdown.
    """

    def __init__(self, folders: tuple[RunFolder, RunFolder], allowed: float) -> None:
        self.folders, self.allowed, self.arms = folders, allowed, list[Arm]()
        self.runs = folders[0].load_for_resume(), folders[1].load_for_resume()
        self.names = self.runs[0].name, self.runs[1].name
        self.measured = (
            read_measurements(folders[0], self.runs[0].plan),
            read_measurements(folders[1], self.runs[1].plan),
        )
        self.metrics = primary_metrics(self.runs[0].plan, self.measured[0], self.runs[0].workloads)

    @cached_property
    def level(self) -> float:
        """The higher of the two runs' confidence levels: the run read more often needs more."""
        pairs = zip(self.runs, self.measured, strict=True)
        return max(confidence_level(run.plan, len(measured.blocks)) for run, measured in pairs)

    def table_cautions(self) -> Iterator[str]:
        """Yield the cautions from each run's own tables about the arms, and which arms have slow trials."""
        names = [arm.name for arm in self.arms]
        for run, measured in zip(self.runs, self.measured, strict=True):
            analysis = estimate(run.plan, measured, workloads=run.workloads, environments=run.environments, metrics=())
            slow = describe_slow_trials(run.plan, measured, analysis.primary, analysis.slow)
            cautions = [
                *result.flag_cautions(analysis, names),
                *(f"{shown_name(name)}: {slow[name]} than the others" for name in names if name in slow),
            ]
            yield from (f"in {run.name} {text}" for text in (*cautions, *result.missing_trials_cautions(run, measured)))

    @cached_property
    def _waits(self) -> list[dict[str, Waiting]]:
        return [dict(cpu_waits(run.plan, seen)) for run, seen in zip(self.runs, self.measured, strict=True)]

    def contended(self, arm: str) -> Contended:
        """Return the possible influence of CPU contention in either run on the ratio of an arm."""
        old, new = (waits.get(arm, Waiting()) for waits in self._waits)
        return contention_bounds({"old": old, "new": new}, ("old",), "new")

    @cached_property
    def _beside(self) -> list[tuple[Run, Measurements]]:
        """Further runs that measured any arm of the older run with the same setup."""
        old, comparable_runs = self.runs[0], []
        for folder, run in runs_in_folder_except_known(self.folders[0], self.runs):
            if any(is_same_setup(old, run, arm) for arm in old.plan.arms):
                with contextlib.suppress(StoreError):  # skip a damaged run
                    measured = read_measurements(folder, run.plan)
                    if not comparability_problems(old, run, (self.measured[0], measured)):
                        comparable_runs.append((run, measured))
        return comparable_runs

    def olds(self, arm: Arm) -> list[Measurements]:
        """Return the numbers of the older run and of the further runs with the same setup."""
        return [self.measured[0], *(seen for run, seen in self._beside if is_same_setup(self.runs[0], run, arm))]

    def mean(self, measured: Measurements, arm: Arm) -> Mean | None:
        """Return the mean log of one run, or None if it has too few trials."""
        logs = result.signed_logs(measured, arm.name, self.metrics[arm.workload])
        return mean_of_logs(logs, max(run.plan.min_blocks for run in self.runs))

    def trial_counts(self, arm: Arm) -> tuple[int, int]:
        """Return how many trials of an arm have a number in each of the two runs."""
        old, new = (result.count_trials(measured, arm.name, self.metrics[arm.workload]) for measured in self.measured)
        return old, new

    def compared(self, olds: Sequence[Mean], new: Mean) -> Quotient:
        """Return the newer run over the older ones; if they are too few, over the first, as if all days were alike."""
        if len(olds) < FEWEST_RUNS:
            return quotient(olds[0], new, len(self.arms), self.level)
        return compare_with_runs(olds, new, len(self.arms), self.level)

    def later_steps(self, arm: Arm) -> tuple[SteadyComparison | None, str]:
        """Compare later steps of an arm in the newer run with those in the older ones, as first steps are.

        Return why there is no comparison, '' if no process went on.
        """
        metric, measured = self.metrics[arm.workload], [*self.olds(arm), self.measured[1]]
        continued = [continued_after_trials(run, arm.name) for run in measured]
        if not metric.is_speed or not (continued[0] or continued[-1]):
            return None, ""
        of_arm, fallback = f" of {arm.shown}", ": first steps are compared"
        if not (continued[0] and continued[-1]):
            name = self.names[0] if continued[0] else self.names[1]
            return None, f"only {name} has a steady effect{of_arm}{fallback}"
        if not all(continued) and len(continued) > FEWEST_RUNS >= sum(continued):
            return None, f"only {sum(continued)} of {len(continued)} runs have a steady effect{of_arm}{fallback}"
        runs = [run for run, is_continued in zip(measured, continued, strict=True) if is_continued]
        seconds = [float(np.nanmedian(run.of(arm.name, WATCHED))) for run in runs]
        if max(seconds) > _ALIKE * min(seconds):
            return None, f"processes{of_arm} went on for {min(seconds):.0f} to {max(seconds):.0f} s of steps{fallback}"
        means = [_later_mean(result.signed_logs(run, arm.name, metric), run.of(arm.name, CHANGE)) for run in runs]
        *olds, new = known = [mean for mean in means if mean]
        if len(known) < len(means):
            return None, ""
        compared, until_s = self.compared(olds, new), min(seconds)
        low, high = (compared.low, compared.high) if len(olds) >= FEWEST_RUNS else (None, None)
        trial = which_steps_text(self.runs[1].workloads.get(arm.workload))
        verdict, status = verdict_of(low, high, self.runs[1].plan.margin), result.status_of(low, high, self.allowed)
        return SteadyComparison(compared.ratio, low, high, verdict, status, until_s / 2, until_s, trial), ""


def _later_mean(logs: Floats, changes: Floats) -> Mean | None:
    """Return the mean log of the later speed: that of all trials plus the mean change; None below two changes."""
    trials, both = np.isfinite(logs), np.isfinite(logs) & np.isfinite(changes)
    count, groups = int(trials.sum()), int(both.sum())
    if groups < 2:
        return None
    # Trials of processes that went on are in both means: their variance is that of their part of the sum.
    shared = groups * float((logs[both] / count + changes[both] / groups).var(ddof=1))
    rest = (count - groups) / count**2 * float(logs[trials].var(ddof=1))
    return Mean(float(logs[trials].mean() + changes[both].mean()), math.sqrt(shared + rest), groups)


def _compare_arm(arm: Arm, pair: _RunPair, steady: SteadyComparison | None, *, did_other_work: bool) -> ArmComparison:
    """Compare one arm of two runs using the variation between runs; with fewer than three there is no interval."""
    metric, new = pair.metrics[arm.workload], pair.mean(pair.measured[1], arm)
    means_and_measured = [(mean, measured) for measured in pair.olds(arm) if (mean := pair.mean(measured, arm))]
    olds, compared = [mean for mean, _ in means_and_measured], None
    if new and olds and means_and_measured[0][1] is pair.measured[0]:
        compared = pair.compared(olds, new)
    judged = compared if len(olds) >= FEWEST_RUNS else None
    low, high, p = (judged.low, judged.high, judged.p) if judged else (None, None, None)
    ratio, most = (compared.ratio, compared.high) if compared else (None, None)
    item = ArmComparison(
        arm.name, *pair.names, metric.name, ratio, low, high, p, verdict_of(low, high, pair.runs[1].plan.margin),
        pair.trial_counts(arm), pair.allowed, result.status_of(low, high, pair.allowed),
        runs=len(olds), smallest=result.smallest_detectable_slowdown(ratio, most, pair.allowed),
        other="" if metric.is_speed else metric.label, steady=steady,
    )  # fmt: skip
    before, now = (measured.facts[arm.name] for measured in pair.measured)
    contention = pair.contended(arm.name) if metric.is_speed else Contended()
    item = result.concluded(item, (before, now), contention, did_other_work=did_other_work)
    if did_other_work or item.unsure or item.other or item.verdict not in ("faster", "slower"):
        return item
    measured = [of_run for _, of_run in means_and_measured]
    parts = unpaired_parts(arm, pair.names, measured, pair.measured[1], len(pair.arms), pair.level)
    is_faster = item.verdict == "faster"
    return replace(item, why=explain_runs(parts, pair.runs[1], pair.measured, faster=is_faster) if parts else None)


def comparability_problems(old: Run, new: Run, measured: tuple[Measurements, Measurements]) -> tuple[str, ...]:
    """Return why two runs are not comparable: another machine, schedule, benchmark, workload or data set."""
    hosts = [observed_host(run.host, measurements) for run, measurements in zip((old, new), measured, strict=True)]
    problems = []
    for key in _HOST_FACTS:
        one, two = (getattr(host, key) for host in hosts)
        is_anonymous = key == "name" and (is_numbered_host(one) or is_numbered_host(two))
        if one != two and None not in (one, two) and not is_anonymous:
            problems.append(f"the hosts differ in {key}: {_fact_text(one)} and {_fact_text(two)}")
    if not is_same_interleaving(old, new):
        problems.append(f"the schedules differ: {_describe_schedule(old)} and {_describe_schedule(new)}")
    if old.bench_digest != new.bench_digest:
        problems.append("the benchmark itself differs")
    for name, text in (("work", "the workloads differ"), ("data", "the data sets differ")):
        seen = [{value for fact in one.facts.values() for value in getattr(fact, name)} for one in measured]
        if seen[0] and seen[1] and seen[0].isdisjoint(seen[1]):
            problems.append(text)
    return tuple(problems)


def _fact_text(value: object) -> str:
    return str(list(value) if isinstance(value, tuple) else value)


def run_identity(run: Run) -> tuple[str, str]:
    """Return a key that a run shares with copies of its folder, whose trials are no further measurements."""
    return run.name, run.created


def runs_in_folder_except_known(old: RunFolder, known_runs: Iterable[Run]) -> list[tuple[RunFolder, Run]]:
    """Return the runs in the same folder as ``old``, each once, without those in ``known_runs``.

    Unreadable runs are skipped.
    """
    seen, siblings = {run_identity(run) for run in known_runs}, []
    for path in sorted(old.path.resolve().parent.iterdir()):
        with contextlib.suppress(StoreError, OSError):
            if (path / "run.json").is_file():
                run = RunFolder(path).load_for_resume()
                if run_identity(run) not in seen:
                    seen.add(run_identity(run))
                    siblings.append((RunFolder(path), run))
    return siblings


def is_same_setup(one: Run, other: Run, arm: Arm) -> bool:
    """Return whether two runs have the same setup for ``arm``: environment, image, workload, program and benchmark."""
    same_conditions = one.bench_digest == other.bench_digest and is_same_interleaving(one, other)
    return same_conditions and _measured_setup(one, arm) == _measured_setup(other, arm)


def is_same_interleaving(one: Run, other: Run) -> bool:
    """Return whether two runs measured trials in the same way; interleaved and separate trials are not comparable."""
    schedules = [
        (design.schedule, design.schedule == "turns" and (design.turn, design.turn_apart))
        for design in (one.design, other.design)
    ]
    return schedules[0] == schedules[1]


def _describe_schedule(run: Run) -> str:
    """Return how a run measured its trials: one after the other, or turns of steps or of a fraction of a second."""
    if run.design.schedule != "turns":
        return "one trial after the other"
    kinds = sorted({workload.tells_steps for workload in run.workloads.values()}, reverse=True) or [True]
    apart_text = f", {run.design.turn_apart} before them set apart" if kinds[0] else ""
    return f"turns of {' or '.join(turn_length_text(run.design.turn, steps=kind) for kind in kinds)}{apart_text}"


def _measured_setup(run: Run, arm: Arm) -> tuple[object, ...]:
    environment = run.environments.get(arm.runs)
    has_arm = any(run_arm.name == arm.name and run_arm.runs == arm.runs for run_arm in run.arms)
    if environment is None or not has_arm:
        return ()
    facts = run.images.get(f"{environment.image_key}@{arm.engine}", {})
    build_facts = {name: value for name, value in facts.items() if name.startswith(_BUILD_FACT_PREFIXES)}
    workload_and_program = run.workloads.get(arm.workload), run.programs.get(arm.workload)
    return replace(environment, description="", own_levels=None), build_facts, workload_and_program
