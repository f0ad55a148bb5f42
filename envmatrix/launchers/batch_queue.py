"""Base of launchers for batch systems: each block is one job on one host, and its files decide what is done."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from envmatrix.block.order import DELETED, OTHER_NODE, Part
from envmatrix.errors import EngineError, InputError
from envmatrix.launchers.base import Ask, Launcher, LauncherKind, Work, refuse_engines_without_commands
from envmatrix.launchers.batch_system import BatchSystem, QueuedJob, Submission, names_of
from envmatrix.launchers.block_launcher import BlockLauncher, Trials, common_host
from envmatrix.launchers.block_orders import block_seconds, job_prefix
from envmatrix.launchers.node_start import stop_reason
from envmatrix.launchers.pending_block import PendingBlock
from envmatrix.plan import Slot
from envmatrix.plan.export_lines import posix_quote
from envmatrix.results import Trial, trial_of, write_whole
from envmatrix.system.host import Host
from envmatrix.system.progress import ProgressCallback
from envmatrix.trials.experiment import Experiment

if TYPE_CHECKING:
    from envmatrix.engines.base import Engine
    from envmatrix.matrix import Design
    from envmatrix.results.run import LauncherOptions

#: Seconds between checks of the files, and of the queue.
_FILES_S, _QUEUE_S = 0.5, 5.0
#: Checks without the job after which it counts as ended, because files can appear late over NFS.
_SETTLE = 3


class BatchKind(LauncherKind):
    """A value of ``--launcher`` for a batch system."""

    takes_turns = True
    system: type[BatchSystem]

    def unavailable(self) -> str | None:
        """Return that the batch system's commands are missing or that it does not answer; None if it can be used."""
        missing = [f"`{command}`" for command in self.system.commands if shutil.which(command) is None]
        if missing:
            return f"no {' and '.join(missing)} on PATH: run envmatrix on a submit host of {self.system.title}"
        silence = self.system({}).silence()
        return f"its master does not answer: {silence}" if silence else None

    def width(self, design: Design, asked: LauncherOptions, span: int) -> int:
        """Return how many blocks run at the same time."""
        return _width(asked)

    def look(
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


def _width(asked: LauncherOptions) -> int:
    text = str(asked.get("nodes", 1))
    if not text.isdecimal() or not 1 <= int(text) <= 1000:
        raise InputError(f"--nodes: {text!r} is no number of nodes", remedy="such as `--nodes 2`")
    return int(text)


@dataclass
class _Job(PendingBlock):
    """A block that was submitted, and the job that runs it."""

    job: str = ""
    told: str = ""
    gone: int = 0


class BatchLauncher(BlockLauncher[_Job]):
    """Runs every block as one job; a host that cannot run one is excluded, and its block goes to another."""

    kind = _Job

    def __init__(
        self, name: str, system: BatchSystem, experiment: Experiment, progress: ProgressCallback, ask: Ask | None
    ) -> None:
        super().__init__(experiment, progress)
        self.name = name
        self._system = system
        self._ask = ask
        self._asked = experiment.run.launcher_options
        self._prefix = job_prefix(experiment)
        self._left_out: set[str] = set()
        self._next_look = 0.0
        self._silent = False

    @property
    def width(self) -> int:
        """How many blocks run at the same time."""
        return _width(self._asked)

    def _jobs(self) -> list[str]:
        return [pending.job for pending in self._pending_blocks.values()]

    def out(self) -> str:
        """Return a line about the jobs that continue."""
        names = self._jobs()
        return f"job(s) {', '.join(names)} go on in {self._system.title}" if names else ""

    def interrupted(self) -> None:
        """Ask whether to delete the jobs; if nobody can answer they continue, and ``resume`` collects them."""
        names = self._jobs()
        if names and self._ask and self._ask(f"delete {len(names)} job(s) of this run?"):
            self._system.delete(names)
            self._say(f"deleted job(s) {', '.join(names)}; trials that have ended are kept")
        elif names:
            self._say(f"{self.out()}; `envmatrix resume` collects what they finish")

    def trials(self, blocks: Iterable[list[Slot]], work: Work) -> Iterator[Trial]:
        """Collect the results of earlier jobs, then keep jobs in the queue until there are no more blocks."""
        queue = self._queue()
        if queue is None:
            raise EngineError(
                f"{self._system.title} does not answer", remedy="when it works here again: `envmatrix resume`"
            )
        for pending in self._known_blocks(work):
            state = queue.get(f"{self._prefix}{pending.files.path.name}")
            self._pick_up(pending, runs=state is not None)
            if state:
                self._watch(pending, state.job)
            yield from self._collect(pending, work)
        yield from self._rounds(blocks, work)

    def _step(self, work: Work) -> Trials:
        for pending in list(self._pending_blocks.values()):
            yield from self._collect(pending, work)
        if time.monotonic() >= self._next_look and (self._pending_blocks or self._backlog):
            self._next_look = time.monotonic() + _QUEUE_S
            queue, title = self._queue(), self._system.title
            if self._silent != (queue is None):
                self._say(f"{title} does not answer; waiting" if queue is None else f"{title} answers again")
            self._silent = queue is None
            if queue is not None:
                yield from self._steer(queue, work)
        if self._working or self._backlog:
            time.sleep(_FILES_S)

    def _queue(self) -> dict[str, QueuedJob] | None:
        """Return this run's jobs in the queue by name; None if the batch system does not answer."""
        jobs = self._system.jobs()
        return None if jobs is None else {job.name: job for job in jobs if job.name.startswith(self._prefix)}

    def _steer(self, queue: Mapping[str, QueuedJob], work: Work) -> Trials:
        """Submit waiting blocks, follow jobs, and handle those that ended early."""
        while self._backlog:
            pending = self._backlog.pop(0)
            if pending.files.node and pending.files.node in self._left_out:
                node = pending.files.node
                self._say(f"block {pending.block} was begun on host {node}, which is left out; `resume` goes on later")
            else:
                yield from self._submit(pending, work)
        for pending in list(self._pending_blocks.values()):
            yield from self._follow(pending, queue.get(f"{self._prefix}{pending.files.path.name}"), work)

    def _watch(self, pending: _Job, job: str) -> None:
        pending.job, pending.told, pending.gone, pending.finished = job, "", 0, 0
        self._pending_blocks[pending.block] = pending
        self._say(f"block {pending.block}: job {job} in the queue")

    def _submit(self, pending: _Job, work: Work) -> Trials:
        parts = yield from self._begin(pending, work)
        if not parts:
            return
        script, folder = pending.files.script(pending.attempt), pending.files.path
        write_whole(script, self._script(pending, parts))
        seconds = self._asked.get("time") or block_seconds(parts)
        job = Submission(
            name=f"{self._prefix}{folder.name}",
            title=f"envmatrix run {self._experiment.run.name}, block {pending.block}",
            script=script,
            log=folder / f"{self.name}-{pending.attempt}.log",
            seconds=int(float(str(seconds)) + 0.5),
            cpus=len(self._experiment.run.host.cpus),
            block=pending.block,
            home=pending.files.node,
            avoid=tuple(sorted(self._left_out)),
        )
        self._watch(pending, self._system.submit(job))

    def _script(self, pending: _Job, parts: Sequence[Part]) -> str:
        variables = (("PATH", os.environ.get("PATH", os.defpath)), ("HOME", os.environ.get("HOME", "/")))
        lines = [
            "#!/bin/sh",
            *(f"export {name}={posix_quote(value)}" for name, value in variables),
            *self._system.sets,
            *self._order_lines(pending, parts, self._system.who, names_of(self._asked, "modules")),
        ]
        return "\n".join([*lines, ""])

    def _follow(self, pending: _Job, state: QueuedJob | None, work: Work) -> Trials:
        if state and state.failed:
            reason = self._system.failure(state)
            self._system.delete([pending.job])
            self._set_block_aside(pending, f"it could not start: {reason}")
        elif state and not pending.files.stopped(pending.attempt):
            pending.gone = 0
            where = f"on {state.host}" if state.host else ""
            line = f"is held; `{state.release}` lets it run" if state.release else f"is {state.state} {where}".rstrip()
            if line != pending.told:
                self._say(f"block {pending.block}: job {state.job} {line}")
            pending.told = line
        else:
            pending.gone += 1
            yield from self._collect(pending, work)
            if pending.slots and (pending.gone >= _SETTLE or pending.files.stopped(pending.attempt)):
                cause = self._system.ended(pending.job)
                self._set_block_aside(pending, cause or f"it ended, and {self._system.title} no longer knows it", cause)

    def _set_block_aside(self, pending: _Job, reason: str, cause: str = "") -> None:
        """Requeue a block whose job ended early; exclude its host if that caused it."""
        self._pending_blocks.pop(pending.block, None)
        stopped = pending.files.stopped(pending.attempt)
        status, node, path = stopped or (0, "", "")
        if stopped:
            reason = stop_reason(status, path)
        left = len(pending.slots)
        self._say(f"block {pending.block}: job {pending.job} ended with {left} trial(s) not done: {reason}")
        cause = f"exit {status}" if stopped else cause or "UNKNOWN"
        pending.files.note_end(pending.attempt, cause, excused=bool(stopped))
        if status == DELETED:
            return
        if stopped and status != OTHER_NODE:
            self._left_out.add(node)
            self._say(f"host {node} is left out: {reason}")
        self._send_again(pending, reason)
        self._next_look = 0.0

    def _lost_trial(self, slot: Slot, pending: _Job) -> Trial:
        cause = pending.files.last_cause()
        reason = f"its job ended twice while it ran ({cause})"
        reason += "; --time may be too short" if cause == "UNKNOWN" else ""
        return trial_of(slot, "failed", reason, node=pending.files.node)
