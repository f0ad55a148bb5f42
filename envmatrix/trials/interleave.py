"""Trials that live together and take turns on this machine: what the block runner starts, and what came of it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from envmatrix.block import turn_gate
from envmatrix.block.interleave import Ended, Interleaving, Member, Running, Schedule, TurnLengths
from envmatrix.block.process import Exit
from envmatrix.block.program_overlay import remove_folder
from envmatrix.build.cache import disk_errors
from envmatrix.engines.base import Job, TakesTurns
from envmatrix.errors import EnvmatrixError, NoTrialError, StoreError
from envmatrix.matrix import Design
from envmatrix.plan import Slot
from envmatrix.plan.turn_order import InterleavedGroup
from envmatrix.results import Trial, trial_of
from envmatrix.system.atomic_files import full_disk_errors
from envmatrix.system.host import parse_cpus
from envmatrix.system.progress import ProgressCallback
from envmatrix.trials import orphans
from envmatrix.trials.execution import (
    check_image_present,
    make_finished_trial,
    make_job_in_new_folder,
    make_unstarted_trial,
)
from envmatrix.trials.experiment_setup import Experiment
from envmatrix.trials.missing_image_retry import rebuild_image


class _NotStartedError(Exception):
    """A trial did not start through no fault of its environment: the whole group starts again."""

    def __init__(self, slot: Slot, cause: NoTrialError) -> None:
        super().__init__(str(cause))
        self.slot, self.cause = slot, cause


@contextlib.contextmanager
def _attribute_errors(slot: Slot) -> Iterator[None]:
    """Attach the trial to an error that prevented its start."""
    try:
        yield
    except NoTrialError as error:
        raise _NotStartedError(slot, error) from error


@dataclass(frozen=True)
class _Process:
    """The process of one trial, whose errors say which trial it was."""

    slot: Slot
    job: Job
    running: Running
    started: float = field(default_factory=time.time)

    def fileno(self) -> int:
        """Return the file descriptor that becomes readable when it ends."""
        return self.running.fileno()

    def hold(self) -> None:
        """Pause all its processes."""
        with _attribute_errors(self.slot):
            self.running.hold()

    def release(self) -> None:
        """Resume all its processes."""
        with _attribute_errors(self.slot):
            self.running.release()

    def end(self) -> None:
        """Start ending it without waiting."""
        self.running.end()

    def exit(self) -> Exit:
        """Wait for the process to end and return its exit."""
        with _attribute_errors(self.slot):
            return self.running.exit()


def run_interleaved(
    experiment: Experiment,
    company: InterleavedGroup,
    progress: ProgressCallback,
    lengths: TurnLengths | None = None,
    later_s: float | None = None,
) -> list[Trial]:
    """Run interleaved trials until all have ended. ``lengths``: varying turn lengths (None: the design's).

    ``later_s``: their processes go on afterwards, each for so many seconds of steps (None: they end).
    If a trial cannot start, rebuild what is missing and start the group again. A second failure counts for its
    environment, and the others continue without it. Raises EngineGoneError like ``run_with_rebuild``.
    """
    trials_by_name: dict[str, Trial] = {}
    retried: set[str] = set()
    while True:
        try:
            remaining = company.without(trials_by_name)
            new_trials = _run_group(experiment, remaining, lengths, later_s) if remaining.slots else []
        except _NotStartedError as error:
            rebuild_image(experiment, error.slot, error.cause, progress)
            if error.slot.trial in retried:
                trials_by_name[error.slot.trial] = make_unstarted_trial(error.slot, error.cause)
            retried.add(error.slot.trial)
            continue
        trials_by_name |= {trial.trial: trial for trial in new_trials}
        return [trials_by_name[slot.trial] for slot in company.slots]


def _run_group(
    experiment: Experiment, company: InterleavedGroup, lengths: TurnLengths | None, later_s: float | None
) -> list[Trial]:
    """Run trials together, and remove their work folders."""
    ended_before = orphans.end_processes()
    folder = orphans.work_folder() / experiment.run.name
    try:
        trials = _Company(experiment, company).run(lengths, later_s)
    finally:
        for slot in company.slots:
            remove_folder(folder / slot.trial)
    first_trial = next((trial.trial for trial in trials if trial.together), None)
    return [replace(trial, ended_before=ended_before) if trial.trial == first_trial else trial for trial in trials]


class _Company:
    """Start the trials of a group if the block runner asks for them, and make their results at their end."""

    def __init__(self, experiment: Experiment, company: InterleavedGroup) -> None:
        self.experiment, self.company = experiment, company
        self.slots = {slot.trial: slot for slot in company.slots}
        self.processes: dict[str, _Process] = {}
        self.broken: list[Trial] = []

    def run(self, lengths: TurnLengths | None, later_s: float | None) -> list[Trial]:
        """Run all of them; those that cannot be started as they are say so in a trial."""
        ended = Interleaving(self._schedule(), self._start, lengths, later_s=later_s).run()
        return [self._make_trial(self.processes[name], how) for name, how in ended.items()] + self.broken

    def _schedule(self) -> Schedule:
        design, company = self.experiment.run.design, self.company
        return Schedule(
            batches=tuple(tuple(slot.trial for slot in wave) for wave in company.waves),
            seed=design.seed,
            block=company.slots[0].block,
            steps=0 if company.one_turn else design.turn,
            limit_s=design.trial_limit,
            at_once=cpus_of(design) or len(os.sched_getaffinity(0)),
            kept=tuple(slot.trial for slot in company.kept),
        )

    def _start(self, name: str, stack: ExitStack) -> Member | None:
        slot = self.slots[name]
        if reason := self.experiment.run.skipped.get(slot.arm.name):
            self.broken.append(trial_of(slot, "skipped", reason))
            return None
        try:
            with _attribute_errors(slot):
                return self._start_member(slot, stack)
        except StoreError:
            raise
        except EnvmatrixError as error:
            self.broken.append(make_unstarted_trial(slot, error))
            return None

    def _start_member(self, slot: Slot, stack: ExitStack) -> Member:
        engine, job = self.experiment.engines[slot.arm.engine], make_job_in_new_folder(self.experiment, slot, gate=True)
        if not isinstance(engine, TakesTurns):
            raise NotImplementedError(slot.arm.engine)  # ``interleaving_eligibility`` excludes this
        # The supervisor's own limit is behind those of getting ready (some at once), turns, finishing, and going on.
        seconds = (6 * len(self.slots) + 1) * job.limits.seconds
        job = replace(job, limits=replace(job.limits, seconds=seconds))
        check_image_present(engine, job)
        with disk_errors(job.mounts.work), full_disk_errors(job.mounts.work):
            gate = stack.enter_context(turn_gate.open_gate(job.mounts.work))
        process = _Process(slot, job, stack.enter_context(engine.started(job)))
        self.processes[slot.trial] = process
        workload = self.experiment.run.workloads[slot.arm.workload]
        apart = self.experiment.run.design.turn_apart if workload.tells_steps else 0
        return Member(slot.trial, process, gate, pauses_itself=bool(workload.command), apart=apart)

    def _make_trial(self, process: _Process, ended: Ended) -> Trial:
        slot, job, how = process.slot, process.job, ended.exit
        if not how.ok and not how.timed_out and not self.experiment.engines[slot.arm.engine].holds(job.prepared):
            raise _NotStartedError(slot, NoTrialError(f"image {job.prepared.image} went away while it ran"))
        trial = make_finished_trial(self.experiment, slot, how, job, started=process.started)
        waves = len(self.company.waves) if len(self.company.waves) > 1 else None
        trial = replace(trial, together=ended.together, waves=waves, ended_before=0)
        return replace(trial, later_s=ended.later_s, later_failed=ended.later_failed)


def cpus_of(design: Design) -> int:
    """Return how many CPUs a design confines its trials to, 0: it leaves that open."""
    return len(parse_cpus(design.cpus)) if design.cpus else 0
