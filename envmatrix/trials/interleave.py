"""Trials that live together and take turns: one process runs while all others are stopped (docs/interleaving.md)."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from envmatrix.engines.base import Job, Running, TakesTurns
from envmatrix.errors import EnvmatrixError, NoTrialError, StoreError
from envmatrix.matrix import Design
from envmatrix.plan import Slot
from envmatrix.plan.interleaving import InterleavedGroup, turn_order, turns_after_wave
from envmatrix.results import Trial, trial_of
from envmatrix.system import interrupts
from envmatrix.system.host import parse_cpus
from envmatrix.system.process import Exit
from envmatrix.system.progress import ProgressCallback
from envmatrix.trials import orphans, own_program
from envmatrix.trials.barrier import Gate, GateError, open_gate
from envmatrix.trials.experiment import Experiment
from envmatrix.trials.retry import rebuild_image
from envmatrix.trials.trial import (
    check_image_present,
    make_finished_trial,
    make_job,
    make_unstarted_trial,
    program_folder,
)

#: The length of a process's next turn, (steps set apart, steps that count), by how many turns it has had.
TurnLengths = Callable[[int], tuple[int, int]]


class _NotStartedError(Exception):
    """A trial of the group came to nothing, for no fault of its environment: all of them begin anew."""

    def __init__(self, slot: Slot, cause: NoTrialError) -> None:
        super().__init__(str(cause))
        self.slot, self.cause = slot, cause


@dataclass
class _Process:
    """One trial's process. ``left`` is how many timed steps it has to take (None: it has not come to its gate).

    ``due`` is when it is late for its gate, by the monotonic clock.
    ``is_program``: what waits at the gate stops and continues a program of the user's own, and is not held itself.
    ``apart``: so many steps of each turn count in nothing.
    """

    slot: Slot
    job: Job
    running: Running
    gate: Gate
    due: float
    is_program: bool = False
    apart: int = 1
    started: float = field(default_factory=time.time)
    left: int | None = None
    ran_s: float = 0.0
    turns: int = 0
    timed_out: bool = False
    over: bool = False

    def look(self, readable: Sequence[object]) -> bool:
        """Take in what it said or that it has ended; say whether it is waiting at its gate, or has ended."""
        try:
            self.left = self.gate.left() if self.gate in readable else None
        except GateError:
            self.running.end()  # its log says why, or its exit status
            self.over = True
        self.over = self.over or self.running in readable
        return self.over or self.left is not None

    def stop(self) -> None:
        """Hold it at its gate."""
        if not self.over and not self.is_program:
            with _attribute_errors(self.slot):
                self.running.hold()

    def go_on(self) -> None:
        """Let it run again."""
        if not self.is_program:
            with _attribute_errors(self.slot):
                self.running.release()

    def time_out(self) -> None:
        """Begin to end it: its time is up."""
        self.timed_out = self.over = True
        self.running.end()

    def exit(self) -> Exit:
        """Wait for its end and return how it ended."""
        with _attribute_errors(self.slot):
            return replace(self.running.exit(), timed_out=self.timed_out)


@contextlib.contextmanager
def _attribute_errors(slot: Slot) -> Iterator[None]:
    """Say of which trial a process came to nothing."""
    try:
        yield
    except NoTrialError as error:
        raise _NotStartedError(slot, error) from error


def run_interleaved(
    experiment: Experiment, company: InterleavedGroup, progress: ProgressCallback, lengths: TurnLengths | None = None
) -> list[Trial]:
    """Run trials that take turns, to the end of all of them; ``lengths`` of turns that differ (None: the design's).

    Where one did not come to a trial, what is missing is made again and all begin anew; one that is refused twice is a
    failure of its environment, and the others go on without it. Raises EngineGoneError as ``run_with_rebuild`` does.
    """
    trials_by_name: dict[str, Trial] = {}
    retried: set[str] = set()
    while True:
        try:
            remaining = company.without(trials_by_name)
            new_trials = _run_group(experiment, remaining, lengths) if remaining.slots else []
        except _NotStartedError as error:
            rebuild_image(experiment, error.slot, error.cause, progress)
            if error.slot.trial in retried:
                trials_by_name[error.slot.trial] = make_unstarted_trial(error.slot, error.cause)
            retried.add(error.slot.trial)
            continue
        trials_by_name |= {trial.trial: trial for trial in new_trials}
        return [trials_by_name[slot.trial] for slot in company.slots]


def _run_group(experiment: Experiment, company: InterleavedGroup, lengths: TurnLengths | None) -> list[Trial]:
    """Run trials together; the work folders are gone afterwards."""
    ended_before = orphans.end_processes()
    folder = orphans.work_folder() / experiment.run.name
    try:
        trials = _InterleavedRun(experiment, company, folder, lengths).run()
    finally:
        for slot in company.slots:
            shutil.rmtree(folder / slot.trial, ignore_errors=True)
    first_trial = next((trial.trial for trial in trials if trial.together), None)
    return [replace(trial, ended_before=ended_before) if trial.trial == first_trial else trial for trial in trials]


@contextlib.contextmanager
def _end_all_on_error(processes: Sequence[_Process]) -> Iterator[None]:
    """Where something breaks, let all processes end at the same time."""
    try:
        yield
    except BaseException:
        for process in processes:
            process.running.end()
        raise


def _make_finished_trial(experiment: Experiment, process: _Process, ended: Exit) -> Trial:
    engine = experiment.engines[process.slot.arm.engine]
    if not ended.ok and not process.timed_out and not engine.holds(process.job.prepared):
        raise _NotStartedError(
            process.slot, NoTrialError(f"image {process.job.prepared.image} disappeared during the trial")
        )
    return make_finished_trial(experiment, process.slot, ended, process.job, started=process.started)


def _max_starting(design: Design) -> int:
    """Return how many processes get ready at once: one a CPU.

    More of them are ready no sooner: each then takes so much longer, and drives the others out of the caches.
    """
    return len(parse_cpus(design.cpus)) if design.cpus else len(os.sched_getaffinity(0))


def _start_process(experiment: Experiment, slot: Slot, work: Path, process_count: int, stack: ExitStack) -> _Process:
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    job = make_job(experiment, slot, work, gate=True)
    program = program_folder(experiment, slot, job)
    job = own_program.place_program_files(experiment.engines[slot.arm.engine], job, *program) if program else job
    job = replace(job, env={**job.env, **orphans.trial_mark(experiment.run.name, slot)})
    # The supervisor's own limit is behind those of getting ready (all of them, some at once), all turns, and finishing.
    job = replace(job, limits=replace(job.limits, seconds=(4 * process_count + 1) * job.limits.seconds))
    engine = experiment.engines[slot.arm.engine]
    if not isinstance(engine, TakesTurns):
        raise NotImplementedError(slot.arm.engine)  # ``not_interleaved_reason`` says so before
    check_image_present(engine, job)
    gate = stack.enter_context(open_gate(work))
    workload, design = experiment.run.workloads[slot.arm.workload], experiment.run.design
    running = stack.enter_context(engine.started(job))
    deadline = time.monotonic() + min(_max_starting(design), process_count) * design.trial_limit
    discarded_steps = design.turn_apart if workload.tells_steps else 0
    return _Process(slot, job, running, gate, deadline, bool(workload.command), discarded_steps)


class _InterleavedRun:
    """The waves of a company, and the rounds of each: who lives when, whose turn is when, and how long it is."""

    def __init__(
        self, experiment: Experiment, company: InterleavedGroup, folder: Path, lengths: TurnLengths | None
    ) -> None:
        self.experiment, self.company, self.folder, self.lengths = experiment, company, folder, lengths
        self.limit_s, self.seed, self.steps = (design := experiment.run.design).trial_limit, design.seed, design.turn
        self.slots, self.waves = company.slots, len(company.waves)
        self.broken: list[Trial] = []
        self.round = 0

    def run(self) -> list[Trial]:
        """Run all waves, and those that are kept through all of them."""
        persistent: list[_Process] = []
        trials: list[Trial] = []
        with ExitStack() as stack, _end_all_on_error(persistent):
            self._start_all(self.company.kept, stack, persistent)
            most_alive = len(persistent)
            for number, wave in enumerate(self.company.waves):
                wave_trials = self._run_wave(number, wave, persistent)
                most_alive = max(most_alive, len(persistent) + len(wave_trials))
                trials += wave_trials
            exits = [process.exit() for process in persistent]
        return trials + self._judged(persistent, exits, most_alive) + self.broken

    def _run_wave(self, number: int, slots: Sequence[Slot], persistent: Sequence[_Process]) -> list[Trial]:
        wave: list[_Process] = []
        is_last = number + 1 == self.waves
        with ExitStack() as stack:
            self._start_all(slots, stack, wave)
            alive = [*persistent, *wave]
            with _end_all_on_error(alive):
                self._take_turns(alive, number)
                to_finish = alive if is_last else wave
                _finish([process for process in to_finish if not process.over], self.limit_s * len(self.slots))
                exits = [process.exit() for process in wave]
        return self._judged(wave, exits, len(alive))  # now that their logs are whole

    def _take_turns(self, processes: Sequence[_Process], wave: int) -> None:
        """Let all processes take their turns.

        A trial's limit holds for all its turns together. Getting ready, which as many do at once as there are CPUs,
        may take so many times the limit, and finishing, which all do side by side, as many as there are processes.
        """
        while order := self._next_round(processes, wave):
            for process in order:
                _take_turn(process, *self._turn_length(process), self.limit_s)
            self.round += 1

    def _turn_length(self, process: _Process) -> tuple[int, int]:
        """Return how many steps of a process's next turn are set apart, and how many count."""
        if self.lengths:
            return self.lengths(process.turns)
        return (0, process.left or 0) if self.company.one_turn else (process.apart, self.steps)

    def _next_round(self, processes: Sequence[_Process], wave: int) -> list[_Process]:
        """Return the processes that have steps left in this wave, in this round's order."""
        processes_by_trial = {process.slot.trial: process for process in processes if self._has_turn(process, wave)}
        block = self.slots[0].block
        order = turn_order(self.seed, block, self.round, [slot.trial for slot in self.slots])
        return [processes_by_trial[trial] for trial in order if trial in processes_by_trial]

    def _has_turn(self, process: _Process, wave: int) -> bool:
        if not process.left or process.over:
            return False
        if process.slot not in self.company.kept:
            return True
        whole = process.turns + -(-process.left // self.steps)
        return process.turns < turns_after_wave(wave, self.waves, whole)

    def _start_all(self, slots: Sequence[Slot], stack: ExitStack, processes: list[_Process]) -> None:
        """Start trials, and wait until all are ready; those that cannot be started as they are say so in a trial."""
        at_once = _max_starting(self.experiment.run.design)
        with _end_all_on_error(processes):
            for slot in slots:
                if reason := self.experiment.run.skipped.get(slot.arm.name):
                    self.broken.append(trial_of(slot, "skipped", reason))
                    continue
                _wait_until_held(_starting_processes(processes), most=at_once - 1)
                try:
                    work = self.folder / slot.trial
                    processes.append(_start_process(self.experiment, slot, work, len(self.slots), stack))
                except NoTrialError as error:
                    raise _NotStartedError(slot, error) from error
                except StoreError:
                    raise
                except EnvmatrixError as error:
                    self.broken.append(make_unstarted_trial(slot, error))
            _wait_until_held(_starting_processes(processes))

    def _judged(self, processes: Sequence[_Process], exits: Sequence[Exit], process_count: int) -> list[Trial]:
        trials = [_make_finished_trial(self.experiment, *pair) for pair in zip(processes, exits, strict=True)]
        waves = self.waves if self.waves > 1 else None
        return [replace(trial, together=process_count, waves=waves, ended_before=0) for trial in trials]


def _starting_processes(processes: Sequence[_Process]) -> list[_Process]:
    return [process for process in processes if process.left is None and not process.over]


def _wait_until_held(processes: Sequence[_Process], most: int = 0) -> None:
    """Wait until all but ``most`` processes are held at their gates or have ended; those that are late are ended."""
    waiting = list(processes)
    while len(waiting) > most:
        files = [file for process in waiting for file in (process.running, process.gate)]
        due = min(process.due for process in waiting)
        readable = interrupts.wait_readable(files, max(0.0, due - time.monotonic()))
        arrived = [process for process in waiting if process.look(readable)]
        for process in arrived:
            process.stop()
        for process in waiting if not readable else ():
            if process.due <= due:
                process.time_out()
        waiting = [process for process in waiting if process not in arrived and not process.over]


def _take_turn(process: _Process, discarded_steps: int, timed_steps: int, limit_s: float) -> None:
    process.gate.go(discarded_steps, timed_steps)
    process.turns += 1
    began = time.monotonic()
    process.due = began + limit_s - process.ran_s
    process.go_on()
    _wait_until_held([process])
    process.ran_s += time.monotonic() - began


def _finish(processes: Sequence[_Process], seconds: float) -> None:
    """Let processes that have had all turns finish, side by side; those that are late are ended."""
    for process in processes:
        process.gate.end()
        process.go_on()
    deadline = time.monotonic() + seconds
    waiting = list(processes)
    while waiting:
        exited = interrupts.wait_readable(
            [process.running for process in waiting], max(0.0, deadline - time.monotonic())
        )
        for process in waiting if not exited else ():
            process.time_out()
        waiting = [process for process in waiting if process.running not in exited] if exited else []
