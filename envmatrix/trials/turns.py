"""Trials that live together and take turns: one process runs while all others are stopped (docs/statistics.md)."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from envmatrix import interrupts
from envmatrix.engines.base import Job, Running, TakesTurns
from envmatrix.errors import EnvmatrixError, NoTrialError, StoreError
from envmatrix.plan import Slot
from envmatrix.plan.turns import APART, turn_order
from envmatrix.process import Exit
from envmatrix.say import Say
from envmatrix.store import Trial, trial_of
from envmatrix.trials import leftovers
from envmatrix.trials.experiment import Experiment
from envmatrix.trials.gate import Gate, GateError, opened
from envmatrix.trials.sure import restore
from envmatrix.trials.trial import judged, make_job, refused


class _NotStartedError(Exception):
    """A trial of the group came to nothing, for no fault of its environment: all of them begin anew."""

    def __init__(self, slot: Slot, cause: NoTrialError) -> None:
        super().__init__(str(cause))
        self.slot, self.cause = slot, cause


@dataclass
class _Process:
    """One trial's process. ``left`` is how many timed steps it has to take (None: it has not come to its gate)."""

    slot: Slot
    job: Job
    running: Running
    gate: Gate
    started: float = field(default_factory=time.time)
    left: int | None = None
    ran_s: float = 0.0
    timed_out: bool = False
    over: bool = False

    def look(self, ready: Sequence[object]) -> bool:
        """Take in what it said or that it has ended; say whether it is waiting at its gate, or has ended."""
        try:
            self.left = self.gate.left() if self.gate in ready else None
        except GateError:
            self.running.end()  # its log says why, or its exit status
            self.over = True
        self.over = self.over or self.running in ready
        return self.over or self.left is not None

    def stop(self) -> None:
        """Hold it at its gate."""
        if not self.over:
            with _of(self.slot):
                self.running.hold()

    def go_on(self) -> None:
        """Let it run again."""
        with _of(self.slot):
            self.running.release()

    def time_out(self) -> None:
        """Begin to end it: its time is up."""
        self.timed_out = self.over = True
        self.running.end()

    def exit(self) -> Exit:
        """Wait for its end and return how it ended."""
        with _of(self.slot):
            return replace(self.running.exit(), timed_out=self.timed_out)


@contextlib.contextmanager
def _of(slot: Slot) -> Iterator[None]:
    """Say of which trial a process came to nothing."""
    try:
        yield
    except NoTrialError as error:
        raise _NotStartedError(slot, error) from error


def run_together(experiment: Experiment, slots: Sequence[Slot], say: Say) -> list[Trial]:
    """Run trials that take turns, to the end of all of them.

    Where one did not come to a trial, what is missing is made again and all begin anew; one that is refused twice is a
    failure of its environment, and the others go on without it. Raises EngineGoneError as ``run_surely`` does.
    """
    found: dict[str, Trial] = {}
    tried: set[str] = set()
    while True:
        try:
            left = [slot for slot in slots if slot.trial not in found]
            done = _run_group(experiment, left) if left else []
        except _NotStartedError as error:
            restore(experiment, error.slot, error.cause, say)
            if error.slot.trial in tried:
                found[error.slot.trial] = refused(error.slot, error.cause)
            tried.add(error.slot.trial)
            continue
        found |= {trial.trial: trial for trial in done}
        return [found[slot.trial] for slot in slots]


def _run_group(experiment: Experiment, slots: Sequence[Slot]) -> list[Trial]:
    """Run trials together; the work folders are gone afterwards."""
    ended_before = leftovers.end_processes()
    folder = leftovers.folder() / experiment.run.name
    try:
        with ExitStack() as stack:
            processes, broken = _started(experiment, slots, folder, stack)
            exits = _ended(processes, experiment.run.design.trial_limit, _Turns(experiment, slots))
            trials = [_judged(experiment, process, exits[process.slot.trial]) for process in processes]
    finally:
        for slot in slots:
            shutil.rmtree(folder / slot.trial, ignore_errors=True)
    together = max(1, len(processes))
    trials = [replace(trial, together=together, ended_before=0) for trial in trials]
    return [replace(trial, ended_before=ended_before) for trial in trials[:1]] + trials[1:] + broken


def _judged(experiment: Experiment, process: _Process, ended: Exit) -> Trial:
    engine = experiment.engines[process.slot.arm.engine]
    if not ended.ok and not process.timed_out and not engine.holds(process.job.prepared):
        raise _NotStartedError(process.slot, NoTrialError(f"image {process.job.prepared.image} went away while it ran"))
    return judged(experiment, process.slot, ended, process.job, started=process.started)


def _started(
    experiment: Experiment, slots: Sequence[Slot], folder: Path, stack: ExitStack
) -> tuple[list[_Process], list[Trial]]:
    """Start all trials; return their processes, and the trials of those that could not be started as they are."""
    processes: list[_Process] = []
    broken: list[Trial] = []
    for slot in slots:
        reason = experiment.run.skipped.get(slot.arm.name)
        if reason:
            broken.append(trial_of(slot, "skipped", reason))
            continue
        try:
            processes.append(_start(experiment, slot, folder / slot.trial, len(slots), stack))
        except NoTrialError as error:
            raise _NotStartedError(slot, error) from error
        except StoreError:
            raise
        except EnvmatrixError as error:
            broken.append(refused(slot, error))
    return processes, broken


def _start(experiment: Experiment, slot: Slot, work: Path, together: int, stack: ExitStack) -> _Process:
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    job = make_job(experiment, slot, work, gate=True)
    job = replace(job, env={**job.env, **leftovers.mark(experiment.run.name, slot)})
    # The warden's own limit is behind those of ``_ended``: getting ready, all turns, and finishing.
    job = replace(job, limits=replace(job.limits, seconds=(3 * together + 1) * job.limits.seconds))
    engine = experiment.engines[slot.arm.engine]
    if not isinstance(engine, TakesTurns):
        raise NotImplementedError(slot.arm.engine)  # ``alone`` says so before
    gate = stack.enter_context(opened(work))
    return _Process(slot, job, stack.enter_context(engine.started(job)), gate)


class _Turns:
    """The rounds of a group: whose turn is when, and how long it is."""

    def __init__(self, experiment: Experiment, slots: Sequence[Slot]) -> None:
        self.seed, self.steps = experiment.run.design.seed, experiment.run.design.turn
        self.block = slots[0].block if slots else 0
        self.trials = [slot.trial for slot in slots]

    def of_round(self, number: int, processes: Sequence[_Process]) -> list[_Process]:
        """Return the processes that have steps left, in this round's order."""
        there = {process.slot.trial: process for process in processes if process.left and not process.over}
        order = turn_order(self.seed, self.block, number, self.trials)
        return [there[trial] for trial in order if trial in there]


def _ended(processes: Sequence[_Process], limit_s: float, turns: _Turns) -> dict[str, Exit]:
    """Let all processes get ready, take their turns and finish; return how each ended.

    A trial's limit holds for all its turns together. Getting ready and finishing, which all do side by side, may each
    take as many times the limit as there are processes.
    """
    together_s = limit_s * len(processes)
    try:
        _wait(processes, together_s)
        number = 0
        while order := turns.of_round(number, processes):
            for process in order:
                _take_turn(process, turns.steps, limit_s)
            number += 1
        _finish([process for process in processes if not process.over], together_s)
        return {process.slot.trial: process.exit() for process in processes}
    except BaseException:
        for process in processes:  # all end at the same time
            process.running.end()
        raise


def _wait(processes: Sequence[_Process], seconds: float) -> None:
    """Wait until every process is held at its gate or has ended; those that are late are ended."""
    deadline = time.monotonic() + seconds
    waiting = list(processes)
    while waiting:
        files = [file for process in waiting for file in (process.running, process.gate)]
        ready = interrupts.wait(files, max(0.0, deadline - time.monotonic()))
        if not ready:
            for process in waiting:
                process.time_out()
            return
        there = [process for process in waiting if process.look(ready)]
        for process in there:
            process.stop()
        waiting = [process for process in waiting if process not in there]


def _take_turn(process: _Process, steps: int, limit_s: float) -> None:
    process.gate.go(APART, steps)
    began = time.monotonic()
    process.go_on()
    _wait([process], limit_s - process.ran_s)
    process.ran_s += time.monotonic() - began


def _finish(processes: Sequence[_Process], seconds: float) -> None:
    """Let processes that have had all turns finish, side by side; those that are late are ended."""
    for process in processes:
        process.gate.end()
        process.go_on()
    deadline = time.monotonic() + seconds
    waiting = list(processes)
    while waiting:
        ended = interrupts.wait([process.running for process in waiting], max(0.0, deadline - time.monotonic()))
        for process in waiting if not ended else ():
            process.time_out()
        waiting = [process for process in waiting if process.running not in ended] if ended else []
