"""The launcher ``slurm``: keeps one job in the queue for each requested node, and collects the jobs' files."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Mapping

from envmatrix.block.order import CANNOT_WRITE
from envmatrix.errors import EngineError
from envmatrix.launchers.base import Ask, Work
from envmatrix.launchers.block_launcher import BlockLauncher, Trials
from envmatrix.launchers.block_orders import job_prefix, widest_workload
from envmatrix.launchers.slurm import jobs, reasons
from envmatrix.launchers.slurm.client import JobState, SilentError, SlurmClient
from envmatrix.launchers.slurm.pending_block import (
    EXCUSED,
    Loss,
    SlurmBlock,
    clock_offset,
    clock_words,
    explain_loss,
    not_started,
)
from envmatrix.launchers.slurm.placement import Placing
from envmatrix.launchers.slurm.script import BlockJob, array_script, block_script
from envmatrix.plan import Slot
from envmatrix.results import Trial, write_whole
from envmatrix.system.progress import ProgressCallback
from envmatrix.trials.experiment import Experiment

#: Seconds between checks of the files, and the range for checks of the queue (everyone shares slurmctld).
_FILES_S = 0.5
_QUEUE_S = (1.0, 30.0)
#: Checks without a living job after which it counts as ended, because files can appear late over NFS.
_SETTLE = 3
#: Jobs in a row without a finished trial after which the run stops: they have a common cause.
_FRUITLESS = 3


class SlurmLauncher(BlockLauncher[SlurmBlock]):
    """Runs every block as an exclusive job on one node, or on as many as its widest workload is spread over.

    Blocks that are ready at the same moment and ask for the same are submitted as one array job.
    """

    name = "slurm"
    kind = SlurmBlock

    def __init__(
        self, experiment: Experiment, client: SlurmClient, progress: ProgressCallback, ask: Ask | None
    ) -> None:
        super().__init__(experiment, progress)
        self._client = client
        self._ask = ask
        self._options = jobs.slurm_options(experiment)
        self._prefix = job_prefix(experiment)
        self._span = widest_workload(experiment)
        self._placing = Placing(client, self._options, progress, self._span)
        self._silent = False
        self._arrays = True
        self._clocks: set[str] = set()
        self._next_look = 0.0
        self._wait = _QUEUE_S[0]

    @property
    def width(self) -> int:
        """How many blocks run at the same time."""
        return max(1, self._options.nodes // self._span)

    def trials(self, blocks: Iterable[list[Slot]], work: Work) -> Iterator[Trial]:
        """Collect the results of earlier jobs, then keep the queue filled until there are no more blocks."""
        yield from self._adopt(work)
        yield from self._rounds(blocks, work)
        for pending in self._pending_blocks.values():
            self._say(f"block {pending.block} is left: `scontrol release {pending.job}`, then `envmatrix resume`")

    def _step(self, work: Work) -> Trials:
        for pending in list(self._pending_blocks.values()):
            yield from self._collect(pending, work)
        if time.monotonic() >= self._next_look and (self._pending_blocks or self._backlog):
            yield from self._look(work)
        if self._working or self._backlog:
            time.sleep(_FILES_S)

    @property
    def _working(self) -> int:
        """The number of submitted blocks whose jobs are not held."""
        return sum(not pending.held for pending in self._pending_blocks.values())

    def _jobs(self) -> list[str]:
        return [pending.job for pending in self._pending_blocks.values() if pending.job]

    def out(self) -> str:
        """Return a line about the jobs that continue in Slurm."""
        names = self._jobs()
        return f"job(s) {', '.join(names)} go on in Slurm" if names else ""

    def interrupted(self) -> None:
        """Ask whether to cancel the jobs; if nobody can answer they continue, and ``resume`` collects them."""
        names = self._jobs()
        if not names:
            return
        if self._ask and self._ask(f"cancel {len(names)} Slurm job(s) of this run?"):
            self._say(f"cancelled job(s) {self._cancel_all()}; trials that have ended are kept")
        else:
            self._say(f"{self.out()}; `envmatrix resume` collects what they finish")

    def _adopt(self, work: Work) -> Trials:
        """Collect the trials that ended after envmatrix stopped; watch the jobs that still run."""
        queue = self._client.queue(self._prefix)
        if queue is None:
            raise EngineError("Slurm does not answer", remedy="wait until `squeue` works here, then `envmatrix resume`")
        alive = {state.name: state for state in queue if state.alive}
        ended = {state.job: state.state for state in queue if not state.alive}
        for pending in self._known_blocks(work):
            state = alive.get(f"{self._prefix}{pending.files.path.name}")
            if state:
                planned = pending.files.planned(pending.attempt)
                pending.slots = {name: slot for name, slot in pending.slots.items() if name in planned}
                if pending.slots:
                    self._watch(pending, state.job)
                    block, job = pending.block, state.job
                    self._say(f"block {block}: job {job} of an earlier start is still there; waiting for it")
            elif pending.attempt and not pending.files.has_ended(pending.attempt):
                self._note_unwatched(pending, ended)
            yield from self._collect(pending, work)

    def _note_unwatched(self, pending: SlurmBlock, ended: Mapping[str, str]) -> None:
        """Record how the job of an earlier start ended; if that is unknown, the trial that was running is excused."""
        begun = pending.files.begun(pending.attempt)
        job = begun.job if begun else ""
        cause = (ended.get(job) or self._client.past_state(job)) if job else ""
        if cause and pending.unfinished:
            self._say(f"block {pending.block}: job {job} of an earlier start ended: {cause}")
        pending.files.note_end(pending.attempt, cause or "UNWATCHED", excused=not cause or cause in EXCUSED)

    def _watch(self, pending: SlurmBlock, job: str) -> None:
        pending.job, pending.submitted = job, time.time()
        pending.finished = pending.gone = 0
        pending.told, pending.seen, pending.held = "", "", False
        self._backlog = [other for other in self._backlog if other is not pending]
        self._pending_blocks[pending.block] = pending
        self._look_soon()

    def _look_soon(self) -> None:
        self._wait, self._next_look = _QUEUE_S[0], time.monotonic() + _QUEUE_S[0]

    def _take(self, block: list[Slot], work: Work) -> Trials:
        waiting = len(self._backlog)
        yield from super()._take(block, work)
        if len(self._backlog) > waiting:
            self._next_look = 0.0

    def _collect(self, pending: SlurmBlock, work: Work) -> Trials:
        self._check_clock(pending)
        for trial in super()._collect(pending, work):
            self._fruitless = 0
            yield trial

    def _check_clock(self, pending: SlurmBlock) -> None:
        begun = pending.files.begun(pending.attempt) if pending.submitted else None
        if not begun or begun.node in self._clocks:
            return
        self._clocks.add(begun.node)
        offset = clock_offset(begun.epoch, pending.submitted, time.time())
        if offset:
            self._say(clock_words(begun.node, offset))

    def _look(self, work: Work) -> Trials:
        """Check the queue: submit waiting blocks, follow running jobs, and handle jobs that ended early."""
        self._wait = min(_QUEUE_S[1], self._wait * 1.5)
        self._next_look = time.monotonic() + self._wait
        try:
            queue = self._client.queue(self._prefix)
            if queue is not None:
                yield from self._steer(queue, work)
            self._note(silent=queue is None)
        except SilentError:  # any Slurm command may be the first to find slurmctld unavailable
            self._note(silent=True)
        if self._silent:
            self._look_soon()

    def _steer(self, queue: list[JobState], work: Work) -> Trials:
        yield from self._submit_backlog(queue, work)
        for pending in list(self._pending_blocks.values()):
            yield from self._follow(pending, pending.state_in(queue), work)

    def _note(self, *, silent: bool) -> None:
        if silent != self._silent:
            self._say("Slurm does not answer; running jobs go on, waiting" if silent else "Slurm answers again")
        self._silent = silent

    def _submit_backlog(self, queue: list[JobState], work: Work) -> Trials:
        """Submit waiting blocks as far as there are places."""
        alive = {state.name: state.job for state in queue if state.alive}
        while self._backlog and self._working < self.width:
            ready: dict[str, list[SlurmBlock]] = {}
            for pending in self._backlog[: self.width - self._working if self._arrays else 1]:
                known = alive.get(f"{self._prefix}{pending.files.path.name}")
                if known:  # sbatch was interrupted before it answered, but Slurm has the job
                    self._watch(pending, known)
                    continue
                job = yield from self._prepare(pending, work)
                if job:
                    ready.setdefault(array_script(job), []).append(pending)
                else:
                    self._backlog.remove(pending)
            try:
                for script, blocks in ready.items():
                    self._submit(script, blocks)
            except EngineError as error:
                if isinstance(error, SilentError) or not self._working:
                    raise
                self._say(f"{error.message}; trying again when a job has ended")
                return

    def _prepare(self, pending: SlurmBlock, work: Work) -> Generator[Trial, None, BlockJob | None]:
        """Make the job of a new attempt at a block's unfinished trials, and its files; None if none can run now."""
        node = self._placing.node_for(pending.block, pending.files.node)
        if node is None:
            home = pending.files.node
            self._say(f"block {pending.block} was begun on node {home}, which cannot be had; `resume` goes on later")
            self._next_look = 0.0
            return None
        parts = yield from self._begin(pending, work)
        if not parts:
            return None
        job = jobs.make_block_job(
            self._experiment, pending.block, parts, pending.attempt, node=node, avoid=self._placing.left_out
        )
        pending.node = node
        write_whole(pending.files.order(pending.attempt), job.order.text())
        write_whole(pending.files.script(pending.attempt), block_script(job))
        write_whole(pending.log, "")  # a node can open it even if the disk is full by then
        return job

    def _submit(self, array: str, blocks: list[SlurmBlock]) -> None:
        """Submit alike blocks as one array job. One alone, or all if Slurm refuses the array, are jobs of their own."""
        if len(blocks) > 1 and self._arrays:
            script = blocks[0].log.with_name(f"array-{blocks[0].attempt}.sh")
            write_whole(script, array)
            try:
                job = self._client.submit(script, blocks[0].log, [pending.block for pending in blocks])
            except EngineError as error:
                if isinstance(error, SilentError):
                    raise
                self._arrays = False
                self._say(f"{error.message}; instead of an array, each block is a job of its own")
            else:
                for pending in blocks:
                    self._watch(pending, f"{job}_{pending.block}")
                return
        for pending in blocks:
            self._watch(pending, self._client.submit(pending.files.script(pending.attempt), pending.log))

    def _lost_trial(self, slot: Slot, pending: SlurmBlock) -> Trial:
        return jobs.lost_trial(slot, pending.files.last_cause(), pending.files.node)

    def _follow(self, pending: SlurmBlock, state: JobState | None, work: Work) -> Trials:
        stopped = pending.files.stopped(pending.attempt)
        if state and state.alive and not stopped:
            pending.gone = 0
            if state.held and not pending.kept(state):
                self._take_back(pending, state)
                return
            unusable = self._placing.unusable() if state.state == "PENDING" and pending.places else {}
            lost = next((name for name in pending.places if name in unusable), None)
            if lost:  # it was requeued and would wait for a node that may never come back
                self._client.cancel([pending.job])
                text = f"node {lost} is {unusable[lost]}"
                self._drop(pending, Loss("NODE_FAIL", text, excused=True, bad_node=lost))
                return
            self._check_reason(pending, state)
            news = pending.news(state)
            if news:
                self._say(news)
                self._look_soon()
            return
        pending.gone += 1
        self._look_soon()
        if pending.gone < _SETTLE:
            return
        yield from self._collect(pending, work)
        if pending.slots:
            self._lost(pending, state)

    def _check_reason(self, pending: SlurmBlock, state: JobState) -> None:
        """End the run if a job can never start. Slurm must report so several times, because limits can change."""
        cure = self._cure(pending, state.reason) if state.state == "PENDING" and not state.held else None
        pending.stuck = pending.stuck + 1 if cure else 0
        if cure:
            self._look_soon()
        if cure and pending.stuck >= _SETTLE:
            raise self._ended(f"job {state.job} would wait for ever: {state.reason}", cure)

    def _cure(self, pending: SlurmBlock, reason: str) -> str | None:
        """Return what to change if a job that waits for this reason can never start, otherwise None."""
        if reasons.waits_for_own(reason) and self._client.runs_nothing():
            return f"no job of yours runs, so it asks for more than a user may have: {reasons.SIZE}"
        if reasons.waits_for_nodes(reason):
            try:
                self._placing.node_for(pending.block, "")
            except SilentError:
                raise
            except EngineError as error:
                return error.message
        return reasons.remedy(reason)

    def _ended(self, message: str, remedy: str) -> EngineError:
        """Cancel all jobs and return the error that ends the run."""
        names = self._cancel_all()
        said = f"; cancelled job(s) {names}" if names else ""
        return EngineError(f"{message}{said}", remedy=f"{remedy}; then `envmatrix resume`: nothing that ended is lost")

    def _cancel_all(self) -> str:
        names = self._jobs()
        self._client.cancel(names)
        for pending in self._pending_blocks.values():
            pending.files.note_end(pending.attempt, "CANCELLED", excused=True)
        return ", ".join(names)

    def _take_back(self, pending: SlurmBlock, state: JobState) -> None:
        """Cancel a job that Slurm could not start and now holds, and send its block to another node."""
        unusable = self._placing.unusable()
        seen = pending.seen.split(",") if pending.seen else pending.places or self._placing.lost_since(unusable)
        loss = not_started(state, seen, unusable)
        self._say(
            f"block {pending.block}: job {state.job} is held ({state.reason}); `scontrol release {state.job}` would "
            "let it try again: instead it is cancelled, and its block goes elsewhere"
        )
        self._client.cancel([pending.job])
        self._drop(pending, loss)

    def _lost(self, pending: SlurmBlock, state: JobState | None) -> None:
        """Find out why a job ended before its trials did, and requeue its block."""
        past = self._client.past_state(pending.job) if state is None else ""
        stopped = pending.files.stopped(pending.attempt)
        if state and not stopped and self._client.exit_status(pending.job) == CANNOT_WRITE:
            stopped = (CANNOT_WRITE, state.node.split(",")[0], str(pending.files.path))
        self._drop(pending, explain_loss(state, past, stopped, self._placing.unusable()))

    def _drop(self, pending: SlurmBlock, loss: Loss) -> None:
        """Take back a block whose job has ended: it is submitted again, or left to ``resume``."""
        del self._pending_blocks[pending.block]
        self._say(
            f"block {pending.block}: job {pending.job} ended with {len(pending.slots)} trial(s) not done: {loss.text}"
        )
        pending.files.note_end(pending.attempt, loss.cause, excused=loss.excused)
        if loss.bad_node:
            self._placing.leave_out(loss.bad_node, loss.text)
        if loss.give_up:
            return
        self._fruitless = 0 if pending.finished else self._fruitless + 1
        if self._fruitless >= _FRUITLESS:
            raise self._hopeless(pending, loss)
        self._backlog.append(pending)
        self._next_look = 0.0

    def _hopeless(self, pending: SlurmBlock, loss: Loss) -> EngineError:
        return self._ended(
            f"{_FRUITLESS} jobs in a row ended without one finished trial; the last one: {loss.text}",
            f"see {pending.files.path} for their scripts and logs (no log: the node does not see that folder, "
            "which must be on a file system that all nodes share)",
        )
