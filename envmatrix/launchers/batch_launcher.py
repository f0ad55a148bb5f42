"""Base of launchers for batch systems: each block is one job on one host, and its files decide what is done."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from envmatrix.block import interrupts
from envmatrix.block.block_instructions import Part
from envmatrix.errors import EngineError
from envmatrix.launchers.base import Ask, Launcher, LauncherKind, Work, refuse_engines_without_commands
from envmatrix.launchers.batch_system import BatchSystem, QueuedJob, SilentError, Submission, names_of
from envmatrix.launchers.block_launcher import BlockLauncher, Trials, common_host
from envmatrix.launchers.block_orders import block_seconds, job_prefix
from envmatrix.launchers.block_start import stopped_loss
from envmatrix.launchers.pending_block import Loss, PendingBlock
from envmatrix.plan import Slot
from envmatrix.plan.export_lines import posix_quote
from envmatrix.results import Trial, trial_of, write_whole
from envmatrix.system.host import Host
from envmatrix.system.progress import ProgressCallback
from envmatrix.trials.experiment_setup import Experiment

if TYPE_CHECKING:
    from envmatrix.engines.base import Engine
    from envmatrix.matrix import Design
    from envmatrix.results.run_model import LauncherOptions

#: Seconds between checks of the files.
_FILES_S = 0.5
#: Checks without the job after which it counts as ended, because files can appear late over NFS.
SETTLE = 3


class BatchKind(LauncherKind):
    """A value of ``--launcher`` for a batch system."""

    takes_turns = True
    system: type[BatchSystem]

    def unavailable(self) -> str | None:
        """Return that the batch system's commands are missing or that it does not answer; None if it can be used."""
        missing = [f"`{command}`" for command in self.system.commands if shutil.which(command) is None]
        if missing:
            return f"no {' and '.join(missing)} on PATH: run envmatrix on a submit host of {self.system.title}"
        silence = self.system().silence()
        return f"its master does not answer: {silence}" if silence else None

    def width(self, design: Design, asked: LauncherOptions, span: int) -> int:
        """Return how many blocks run at the same time."""
        return self.system(asked).width

    def check_and_find_host(
        self, design: Design, asked: LauncherOptions, engines: Sequence[Engine], span: int, progress: ProgressCallback
    ) -> Host:
        """Check that there are hosts that fit and answer, all with the same CPU layout."""
        refuse_engines_without_commands(self.name, engines)
        if reason := self.unavailable():
            raise EngineError(
                f"{self.system.title} cannot be used: {reason}",
                remedy=f"run envmatrix where `{self.system.commands[-1]}` works",
            )
        return common_host(self.system(asked).hosts(progress), f"narrow them with {self.system.narrow}")

    def open(self, experiment: Experiment, progress: ProgressCallback, ask: Ask | None) -> Launcher:
        """Return the launcher that submits the run's blocks."""
        system = self.system(experiment.run.launcher_options)
        return BatchLauncher(self.name, system, experiment, progress, ask)


class BatchLauncher(BlockLauncher):
    """Runs every block as one job; a host that cannot run one is left out, and its block goes to another."""

    def __init__(
        self, name: str, system: BatchSystem, experiment: Experiment, progress: ProgressCallback, ask: Ask | None
    ) -> None:
        super().__init__(experiment, progress)
        self.name = name
        self._system = system
        self._ask = ask
        self._prefix = job_prefix(experiment)
        self._left_out: dict[str, str] = {}
        self._silent = False
        self._wait_s = self._next_look = 0.0

    @property
    def width(self) -> int:
        """How many blocks run at the same time."""
        return self._system.width

    def _jobs(self) -> list[str]:
        return [pending.job for pending in self._pending_blocks.values() if pending.job and self._system.outlives]

    def out(self) -> str:
        """Return a line about the jobs that continue."""
        names = self._jobs()
        return f"job(s) {', '.join(names)} go on in {self._system.title}" if names else ""

    def interrupted(self) -> None:
        """Ask whether to cancel the jobs; if nobody can answer they continue, and ``resume`` collects them."""
        names = self._jobs()
        if names and self._ask and self._ask(f"cancel {len(names)} {self._system.title} job(s) of this run?"):
            self._say(f"cancelled job(s) {self._cancel_all()}; trials that have ended are kept")
        elif names:
            self._say(f"{self.out()}; `envmatrix resume` collects what they finish")

    def _cancel_all(self) -> str:
        names = self._jobs()
        if names:
            self._system.delete(names)
        for pending in self._pending_blocks.values():
            pending.files.note_end(pending.attempt, "CANCELLED", excused=True)
        return ", ".join(names)

    def _ended(self, message: str, remedy: str) -> EngineError:
        """Cancel all jobs and return the error that ends the run."""
        names = self._cancel_all()
        return super()._ended(f"{message}; cancelled job(s) {names}" if names else message, remedy)

    def trials(self, blocks: Iterable[list[Slot]], work: Work) -> Iterator[Trial]:
        """Collect the results of earlier jobs, then keep jobs in the queue until there are no more blocks."""
        try:
            yield from self._adopt(work)
            yield from self._rounds(blocks, work)
        finally:
            self._system.close()

    def _adopt(self, work: Work) -> Trials:
        """Collect the trials that ended after envmatrix stopped; watch the jobs that still run."""
        queue = self._queue()
        if queue is None:
            raise EngineError(
                f"{self._system.title} does not answer", remedy="when it works here again: `envmatrix resume`"
            )
        for pending in self._known_blocks(work):
            if state := self._job_named(pending, queue):
                self._pick_up(pending, runs=True)
                if pending.slots:
                    self._watch(pending, state.job)
                    self._say(
                        f"block {pending.block}: job {state.job} of an earlier start is still there; waiting for it"
                    )
            elif pending.attempt and not pending.files.has_ended(pending.attempt):
                self._note_unwatched(pending, queue)
            yield from self._collect(pending, work)

    def _note_unwatched(self, pending: PendingBlock, queue: Sequence[QueuedJob]) -> None:
        """Record how the job of an earlier start ended."""
        self._pick_up(pending, runs=False)

    def _take(self, block: list[Slot], work: Work) -> Trials:
        waiting = len(self._backlog)
        yield from super()._take(block, work)
        if len(self._backlog) > waiting:
            self._next_look = 0.0

    def _collect(self, pending: PendingBlock, work: Work) -> Trials:
        yield from super()._collect(pending, work)
        if not pending.slots and not self._system.outlives:
            self._system.delete([pending.job])

    def _step(self, work: Work) -> Trials:
        for pending in list(self._pending_blocks.values()):
            yield from self._collect(pending, work)
        if time.monotonic() >= self._next_look and (self._pending_blocks or self._backlog):
            yield from self._look(work)
        if self._working or self._backlog:
            interrupts.wait_readable([], _FILES_S)

    def _look(self, work: Work) -> Trials:
        """Check the queue: submit waiting blocks, follow jobs, and handle those that ended early."""
        shortest_s, longest_s = self._system.polls
        self._wait_s = min(longest_s, max(shortest_s, 1.5 * self._wait_s))
        self._next_look = time.monotonic() + self._wait_s
        try:
            queue = self._queue()
            if queue is not None:
                yield from self._submit_backlog(queue, work)
                for pending in list(self._pending_blocks.values()):
                    yield from self._follow(pending, self._state(pending, queue), work)
            self._note(silent=queue is None)
        except SilentError:  # any command may be the first to find that it does not answer
            self._note(silent=True)
        if self._silent:
            self._look_soon()

    def _look_soon(self) -> None:
        self._wait_s = self._system.polls[0]
        self._next_look = time.monotonic() + self._wait_s

    def _note(self, *, silent: bool) -> None:
        title = self._system.title
        if silent != self._silent:
            self._say(f"{title} does not answer; running jobs go on, waiting" if silent else f"{title} answers again")
        self._silent = silent

    def _queue(self) -> list[QueuedJob] | None:
        """Return this run's jobs in the queue; None if the batch system does not answer."""
        jobs = self._system.jobs()
        return None if jobs is None else [job for job in jobs if job.name.startswith(self._prefix)]

    def _job_named(self, pending: PendingBlock, queue: Sequence[QueuedJob]) -> QueuedJob | None:
        name = f"{self._prefix}{pending.files.path.name}"
        return next((job for job in queue if job.name == name and job.alive), None)

    def _state(self, pending: PendingBlock, queue: Sequence[QueuedJob]) -> QueuedJob | None:
        """Return the state of a block's job, None if the batch system does not know it."""
        return self._job_named(pending, queue)

    def _submit_backlog(self, queue: Sequence[QueuedJob], work: Work) -> Trials:
        """Submit the waiting blocks that can run now."""
        for pending in list(self._backlog):
            home = pending.files.node
            if home in self._left_out:
                self._backlog.remove(pending)
                self._say(f"block {pending.block} was begun on host {home}, which is left out; `resume` goes on later")
            elif self._system.takes(home, self._left_out):
                self._backlog.remove(pending)
                yield from self._submit(pending, work)

    def _submit(self, pending: PendingBlock, work: Work) -> Trials:
        parts = yield from self._begin(pending, work)
        if not parts:
            return
        script, folder = pending.files.script(pending.attempt), pending.files.path
        write_whole(script, self._script(pending, parts))
        job = Submission(
            name=f"{self._prefix}{folder.name}",
            title=f"envmatrix run {self._experiment.run.name}, block {pending.block}",
            script=script,
            log=folder / f"{self.name}-{pending.attempt}.log",
            seconds=int(float(str(self._system.asked.get("time") or block_seconds(parts))) + 0.5),
            cpus=len(self._experiment.run.host.cpus),
            block=pending.block,
            home=pending.files.node,
            avoid=tuple(sorted(self._left_out)),
        )
        self._watch(pending, self._system.submit(job))
        self._say(f"block {pending.block}{self._system.submitted.format(job=pending.job)}")

    def _watch(self, pending: PendingBlock, job: str) -> None:
        """Record that a block's job is in the queue."""
        pending.job, pending.submitted, pending.held = job, time.time(), False
        pending.finished = pending.gone = 0
        pending.told = pending.seen = ""
        self._pending_blocks[pending.block] = pending
        self._look_soon()

    def _script(self, pending: PendingBlock, parts: Sequence[Part]) -> str:
        system = self._system
        exports = [(name, os.environ.get(name, default)) for name, default in system.exports]
        lines = [
            "#!/bin/sh",
            *(f"export {name}={posix_quote(value)}" for name, value in exports),
            *system.sets,
            *self._write_order(pending, parts, system.who, names_of(system.asked, "modules")),
        ]
        return "\n".join([*lines, ""])

    def _follow(self, pending: PendingBlock, state: QueuedJob | None, work: Work) -> Trials:
        if state and state.alive and not pending.files.stop_status_node_and_path(pending.attempt):
            pending.gone = 0
            self._attend(pending, state)
            return
        pending.gone += 1
        self._look_soon()
        if pending.gone >= SETTLE:
            yield from self._collect(pending, work)
            if pending.slots:
                self._set_aside(pending, self._loss(pending, state))

    def _attend(self, pending: PendingBlock, state: QueuedJob) -> None:
        """Report a change of a job's state; take back a block whose job can never start."""
        if state.failed:
            reason = self._system.failure(state)
            self._system.delete([pending.job])
            self._set_aside(pending, Loss("UNKNOWN", f"it could not start: {reason}"))
        elif state.state and (line := self._line(state)) != pending.told:
            pending.told = line
            self._say(f"block {pending.block}: job {state.job} {line}")
            self._look_soon()

    def _line(self, state: QueuedJob) -> str:
        if state.release:
            return f"is held; `{state.release}` lets it run"
        return f"is {state.state} on {state.host}" if state.host else f"is {state.state}"

    def _loss(self, pending: PendingBlock, state: QueuedJob | None) -> Loss:
        """Return why a job ended before its trials did."""
        stopped = pending.files.stop_status_node_and_path(pending.attempt)
        return stopped_loss(*stopped) if stopped else self._system.loss(pending.job)

    def _set_aside(self, pending: PendingBlock, loss: Loss) -> None:
        """Take back a block whose job has ended: it is submitted again, or left to ``resume``."""
        self._pending_blocks.pop(pending.block, None)
        label = self._system.label.format(job=pending.job)
        self._say(f"block {pending.block}: {label} ended with {len(pending.slots)} trial(s) not done: {loss.text}")
        pending.files.note_end(pending.attempt, loss.cause, excused=loss.excused)
        if loss.bad_node and loss.bad_node not in self._left_out:
            self._left_out[loss.bad_node] = loss.text
            self._say(f"{self._system.place} {loss.bad_node} is left out: {loss.text}")
        if not loss.give_up:
            self._send_again(pending, loss.text, blamed=self._system.outlives or not loss.excused)
            self._next_look = 0.0

    def _lost_trial(self, slot: Slot, pending: PendingBlock) -> Trial:
        cause = pending.files.last_cause()
        reason = f"its job ended twice while it ran ({cause})"
        reason += "; --time may be too short" if cause == "UNKNOWN" else ""
        return trial_of(slot, "failed", reason, node=pending.files.node)
