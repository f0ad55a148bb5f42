"""The loop of a search: it decides the next step from the files on disk and runs it in the study's folder."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from envmatrix.durations_and_sizes import TIME_MARGIN, as_duration, as_hours, is_too_long_to_suggest
from envmatrix.errors import EnvmatrixError, InputError, NothingRanError
from envmatrix.launchers.catalog import DEFAULT, LAUNCHERS
from envmatrix.matrix import Matrix
from envmatrix.matrix.additions import with_only_design
from envmatrix.plan import Slot
from envmatrix.report.formatting import format_count
from envmatrix.results.folder import RunFolder
from envmatrix.runner.loop import RunEnding
from envmatrix.runner.loop import run as run_trials
from envmatrix.runner.progress import LineProgress
from envmatrix.runner.running_estimate import RunningEstimate
from envmatrix.search.answer import find_expected_best, settings_text
from envmatrix.search.next_trials import MIN_BLOCKS, REFERENCES, Budget, Proposal, Search
from envmatrix.search.space import Space
from envmatrix.search.step_results import Step, count_trials, no_op_levels, read_step, running_and_gap_s, spent_s
from envmatrix.search.study_folder import Place, Study, StudyFolder
from envmatrix.system.progress import ProgressCallback, duration_text, report_once
from envmatrix.trials.experiment_setup import Experiment, create_experiment, reopen_experiment
from envmatrix.trials.new_run_options import NewRun
from envmatrix.trials.resume_overrides import apply_resume_changes, record_interim_reading

#: Budget of steps that end after their blocks (seconds): never reached.
_UNLIMITED_S = 7 * 24 * 3600.0
#: A candidate's trial is stopped if it takes so many times as long as the baseline's.
_LIMIT_FACTOR, _MIN_LIMIT_S = 4.0, 10.0
#: Overhead of a confirmation, as a factor on the time of its trials.
_OVERHEAD_FACTOR = 1.2
#: Default budget, as a multiple of the time that the fewest trials take.
_BUDGET_MARGIN = 1.15
#: Keys of a design that concern the whole search.
_NOT_OF_A_STEP = {
    "name", "description", "factors", "cumulative", "application", "reference_values", "race", "claims_first",
    "read_once",
}  # fmt: skip
#: A confirmation is extended if the time left is so many times its budget.
_MIN_EXTENSION = 1.01

Watch = Callable[[Experiment, str], AbstractContextManager[LineProgress]]


@dataclass
class RunningSearch:
    """A search in progress: its study, space and finished steps, and when it began or was resumed."""

    folder: StudyFolder
    study: Study
    matrix: Matrix
    search: Search
    progress: ProgressCallback
    steps: list[Step] = field(default_factory=list)
    sessions: tuple[float, ...] = ()

    @cached_property
    def say_once(self) -> ProgressCallback:
        """Progress callback that reports each preparation message once, as most steps repeat them."""
        return report_once(self.progress)

    @property
    def space(self) -> Space:
        """The space that is searched."""
        return self.search.space

    @property
    def budget_s(self) -> float:
        """Seconds for the whole search: the requested budget, or the time that a confirmation needs."""
        if self.study.asked or not self.steps:
            return self.study.budget
        first_step = self.steps[:1]  # complete before anything reads the budget
        return max(
            self.study.budget,
            minimum_time_s(self.search, spent_s(first_step, self.sessions) / max(1, count_trials(first_step))),
        )

    @property
    def left_s(self) -> float:
        """Seconds of the budget that are left."""
        return max(0.0, self.budget_s - spent_s(self.steps, self.sessions))

    @property
    def trial_s(self) -> float:
        """Mean seconds of a trial, with its overhead."""
        trials = count_trials(self.steps)
        return spent_s(self.steps, self.sessions) / trials if trials else self.study.trial_s or 1.0

    @property
    def left_trial_time_s(self) -> float:
        """Seconds left for trials alone, without the gaps between them, as a run counts its budget."""
        running, gap = running_and_gap_s((span for step in self.steps for span in step.spans), self.sessions)
        return self.left_s * (running / (running + gap) if running else 1.0)

    @property
    def peaks(self) -> dict[str, int]:
        """Workload -> the peak memory of a process so far, in bytes."""
        peak_bytes: Counter[str] = Counter()
        for step in self.steps:
            peak_bytes |= Counter(step.peaks)  # the larger of both
        return dict(peak_bytes)

    def begin_session(self, at: float) -> None:
        """Record that the search starts or resumes ``at`` this time (seconds since the epoch)."""
        self.folder.note_session(at)
        self.sessions = self.folder.sessions()

    def add_step(self, folder: RunFolder) -> None:
        """Read a finished step."""
        self.steps.append(read_step(folder, self.space))

    def trial_budget(self) -> Budget:
        """Return the budget in trials."""
        return Budget(self.budget_s / self.trial_s, self.left_s / self.trial_s)

    def next_step(self) -> Proposal | None:
        """Return the next step, determined only by the files on disk."""
        batches = [step.batch for step in self.steps]
        return self.search.next_step(batches, self.trial_budget(), no_op_levels(self.space, self.steps))


def minimum_time_s(search: Search, trial_s: float) -> float:
    """Return the least seconds that a search needs if a trial takes ``trial_s``, with a margin."""
    return search.fewest_trials() * trial_s * _BUDGET_MARGIN


def check_budget(search: Search, budget_s: float, trial_s: float, name: str = "") -> None:
    """Raise an InputError if the budget is too small to confirm anything; its remedy is one that suffices.

    ``name``: the search, if it has begun and can be resumed.
    """
    needed_s = search.fewest_trials() * trial_s
    if needed_s > budget_s:
        first_trials = len(search.first) + REFERENCES
        budget_option = f"--budget {as_duration(max(60.0, needed_s * TIME_MARGIN))}"
        advice = f"continue with `envmatrix resume {name} {budget_option}`" if name else f"use {budget_option}"
        advice = (
            f"that is about {as_hours(needed_s)}: use a shorter program" if is_too_long_to_suggest(needed_s) else advice
        )
        raise InputError(
            f"a budget of {as_duration(budget_s)} cannot confirm anything: at {trial_s:.1f} s a trial, a "
            f"search needs {search.fewest_trials()} trials ({first_trials} to see each level once, a screen, "
            f"{MIN_BLOCKS} fresh blocks)",
            remedy=f"{advice}, or start another search with fewer factors: --factors A,B",
        )


def announce(search: Search, study: Study, progress: ProgressCallback) -> None:
    """Report what is searched and, if the length of a trial is unknown, how long a trial may take."""
    space, fewest = search.space, search.fewest_trials()
    left_out_counts = ((space.equal, "equal"), (space.impossible, "impossible"))
    left_out_texts = [f"{number} {reason}" for number, reason in left_out_counts if number]
    left_out = f" ({' and '.join(left_out_texts)} left out)" if left_out_texts else ""
    progress(f"searching {format_count(len(space.codes) - 1, 'configuration')} of {', '.join(space.factors)}{left_out}")
    if study.trial_s is None and study.asked:
        longest_s = study.budget * search.width / fewest
        longest = as_duration(longest_s) if longest_s >= 10 else f"{longest_s:.2g} s"
        side_by_side = f", {search.width} at the same time" if search.width > 1 else ""
        progress(
            f"this needs at least {fewest} trials{side_by_side}: {as_duration(study.budget)} is enough if a "
            f"trial takes up to {longest}"
        )


def run_search(tuning: RunningSearch, watch: Watch, *, engine: str) -> RunEnding | None:
    """Run steps until the search is over or interrupted; return how the interrupted step ended, None if over.

    Raises NothingRanError if the baseline fails, InputError if the budget turns out to be too small.
    """
    with _name_search_in_errors(tuning.study.name):
        for number, folder in enumerate(folders := tuning.folder.steps(), 1):
            if number == len(folders):  # it may have been killed halfway
                record_interim_reading(folder)  # its interval may have been read: count that as an interim analysis
                experiment = _extend_confirmation(
                    tuning, reopen_experiment(folder, Path(tuning.matrix.path), tuning.say_once)
                )
                ending = _run_step(tuning, experiment, number, watch)
                if ending.interrupted:
                    return ending
                if number == 1:  # the cause of a later failure may be fixed by now
                    _check_baseline(tuning, ending)
            else:
                tuning.add_step(folder)
        return _run_further_steps(tuning, watch, engine)


def _run_further_steps(tuning: RunningSearch, watch: Watch, engine: str) -> RunEnding | None:
    """Run further steps until the search is over or interrupted."""
    while step := tuning.next_step():
        number = len(tuning.steps) + 1
        if number == 2:  # the length of a trial is known now
            check_budget(tuning.search, tuning.budget_s, tuning.trial_s, tuning.study.name)
            if tuning.budget_s > tuning.study.budget:
                fewest = f"{tuning.search.fewest_trials()} trials of {tuning.trial_s:.1f} s"
                tuning.progress(
                    f"no --budget was given: using {as_duration(tuning.budget_s)} (a search needs at least {fewest})"
                )
        _announce_step(tuning, step, number)
        ending = _run_step(tuning, _begin_step(tuning, step, number, engine), number, watch)
        if ending.interrupted:
            return ending
        _check_baseline(tuning, ending)
    return None


@contextmanager
def _name_search_in_errors(name: str) -> Iterator[None]:
    """Make the remedy of an error name the search to resume, not one of its steps."""
    try:
        yield
    except EnvmatrixError as error:
        step = rf"envmatrix resume \d+-\w+-{re.escape(name)}"
        error.remedy = re.sub(step, f"envmatrix resume {name}", error.remedy)
        raise


def _extend_confirmation(tuning: RunningSearch, experiment: Experiment) -> Experiment:
    """Extend a confirmation if the search has a longer budget now."""
    plan, left_s = experiment.plan, tuning.left_trial_time_s
    if experiment.run.design.name != "confirm" or left_s <= _MIN_EXTENSION * plan.budget_s:
        return experiment
    blocks = max(plan.max_blocks, int(tuning.trial_budget().left / (1 + REFERENCES)))
    return apply_resume_changes(experiment, budget=left_s, max_blocks=blocks, command=("tune", tuning.study.name))


def _begin_step(tuning: RunningSearch, step: Proposal, number: int, engine: str) -> Experiment:
    study, space = tuning.study, tuning.space
    baseline_levels = tuning.matrix.environments[study.design.baseline].levels
    names = {space.name(row): {**baseline_levels, **space.all_levels(row)} for row in step.rows}
    design = _step_design(tuning, step, number, names)
    added = {name: levels for name, levels in names.items() if name not in space.named}
    matrix = with_only_design(tuning.matrix, step.phase, design, added)
    location = study.place or Place(launcher=DEFAULT)
    looked_at = () if study.trial_s is None else ("--",)  # the search is of a program without a matrix.yaml to edit
    label = f"{number:03d}-{step.phase}-{study.name}"  # unique among runs
    command = ("tune", study.name, label, "--matrix", tuning.matrix.path, *looked_at)
    new_run = NewRun(tuning.folder.path, label, location.launcher, location.options, command, progress=tuning.say_once)
    step_design = matrix.designs[step.phase]
    return create_experiment(
        matrix, step_design, (engine,), new_run, location.host, parts=step.parts, references_suffice=True
    )


def _step_design(
    tuning: RunningSearch, step: Proposal, number: int, names: Mapping[str, Mapping[str, str]]
) -> dict[str, object]:
    study = tuning.study
    fields = study.design.model_dump(mode="json", exclude_defaults=True, exclude=_NOT_OF_A_STEP)
    confirms = step.phase == "confirm"
    needed_s = MIN_BLOCKS * (1 + REFERENCES) * tuning.trial_s * _OVERHEAD_FACTOR
    walls = [past_step.baseline_s for past_step in tuning.steps if past_step.baseline_s]
    limit_s = min(study.design.trial_limit, max(_MIN_LIMIT_S, _LIMIT_FACTOR * max(walls))) if walls else None
    fields |= {
        "environments": list(names),
        "seed": study.design.seed + number,
        "max_blocks": step.blocks,
        "budget": max(tuning.left_trial_time_s, needed_s) if confirms else _UNLIMITED_S,
        **({"min_blocks": MIN_BLOCKS} if confirms else {"target": 0.0001}),
        **({"trial_limit": limit_s} if limit_s else {}),
    }
    factors = tuning.matrix.factors
    levels = [factors[factor].levels[level] for cell in names.values() for factor, level in cell.items()]
    if confirms and not all(level.turns for level in levels):
        fields["schedule"] = "sequential"  # otherwise its trials have one copy of the baseline, not two
    if not confirms:
        fields.pop("min_blocks", None)
    is_local = study.place is None or study.place.launcher == DEFAULT
    if not (confirms and is_local) or fields.get("schedule") == "sequential":
        fields.pop("steady", None)  # only interleaved processes on this machine can go on
    return {key: list(value) if isinstance(value, tuple) else value for key, value in fields.items()}


def _run_step(tuning: RunningSearch, experiment: Experiment, number: int, watch: Watch) -> RunEnding:
    """Run the rest of a step and read its results."""
    label = f"{experiment.run.design.name} ({number})"
    with watch(experiment, label) as observer:
        launcher = LAUNCHERS.make(experiment.run.launcher).open(experiment, observer.progress, None)
        try:
            ending = run_trials(experiment, launcher, observer, observer.progress, tuning.peaks)
        finally:
            experiment.folder.unlock()
    tuning.add_step(experiment.folder)
    return ending


def _check_baseline(tuning: RunningSearch, ending: RunEnding) -> None:
    """Raise NothingRanError if the baseline failed in the first step, or in two steps in a row.

    A single later failure is only reported: the search learns nothing from that step and continues.
    """
    failed = [not np.isfinite(step.batch.scores[:REFERENCES]).any() for step in tuning.steps[-2:]]
    if not failed[-1]:
        return
    folder = tuning.folder.steps()[-1]
    if all(failed):
        new_search_text = f"start another search (another --name, or remove {tuning.folder.path})"
        remedy_text = f"`envmatrix resume {tuning.study.name}`" if len(failed) > 1 else new_search_text
        raise NothingRanError(
            f"the baseline fails, so there is nothing to compare with: {ending.why or 'no successful trial'}",
            remedy=f"see its logs in {folder.logs}, fix this, then: {remedy_text}",
        )
    tuning.progress(f"the baseline failed in this step, so the step is not used; its logs are in {folder.logs}")


def _announce_step(tuning: RunningSearch, step: Proposal, number: int) -> None:
    """Report the progress of the search and the next step."""
    seen_count = len({row for past_step in tuning.steps for row in past_step.batch.rows})
    row, ratio = find_expected_best(tuning.search, tuning.steps) if tuning.steps else (0, 1.0)
    settings = settings_text(tuning.space.levels_unlike_baseline(row))
    best_text = f"best so far {settings}: the model expects {ratio:.2f}x, not confirmed"
    work_text = (
        f"{step.blocks} blocks of it" if step.phase == "confirm" else format_count(len(step.rows), "configuration")
    )
    work_text += f" in {step.blocks} blocks at the same time" if step.phase != "confirm" and step.blocks > 1 else ""
    tuning.progress(
        f"{step.phase} ({number}): {work_text}; {seen_count:,} of {len(tuning.space.codes) - 1:,} tried; "
        f"{best_text if row else 'none ahead so far'}; {duration_text(tuning.left_s)} left"
    )


class StepProgress(LineProgress):
    """Reports failures at once, long trials from time to time, and every fifth block of a confirmation."""

    def __init__(
        self, experiment: Experiment, label: str, *, quiet: bool, tell: ProgressCallback, show_output: bool
    ) -> None:
        super().__init__(experiment, quiet=quiet, tell=tell, show_output=show_output)
        self.label = label

    def where(self, slot: Slot) -> str:
        """Return the step and trial as text."""
        arms = len(self.plan.arms_of(slot.block))
        return f"{self.label}, trial {slot.position + 1} of {arms}: {slot.arm.environment}"

    def block_ended(self, block: int, estimate: RunningEstimate, left_s: float, left: float) -> None:
        """Report the progress of a confirmation, without its estimate, which is reported only at the end."""
        if not self.quiet and self.plan.max_blocks > 1 and block % 5 == 4:
            time_left = duration_text(self.until_end_s(block, left_s, left))
            self.progress(f"{self.label}: {block + 1} of up to {self.plan.max_blocks} blocks, {time_left} left")


def watch_step(
    experiment: Experiment, label: str, *, quiet: bool, tell: ProgressCallback, show_output: bool = False
) -> closing[StepProgress]:
    """Show the progress of a step while the context is open."""
    return closing(StepProgress(experiment, label, quiet=quiet, tell=tell, show_output=show_output))
