"""The launcher ``slurm``: keeps one job in the queue for each requested node, and collects the jobs' files."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Sequence

from envmatrix.block.block_instructions import CANNOT_WRITE
from envmatrix.errors import EngineError
from envmatrix.launchers.base import Ask, Work
from envmatrix.launchers.batch_launcher import SETTLE, BatchLauncher
from envmatrix.launchers.batch_system import QueuedJob, SilentError
from envmatrix.launchers.block_launcher import Trials
from envmatrix.launchers.block_orders import nodes_per_block
from envmatrix.launchers.pending_block import Loss, PendingBlock
from envmatrix.launchers.slurm import job_loss, reasons
from envmatrix.launchers.slurm.client import SlurmClient
from envmatrix.launchers.slurm.script import BlockJob, block_array_script, block_script, make_block_job, slurm_options
from envmatrix.plan import Slot
from envmatrix.results import Trial, trial_of, write_whole
from envmatrix.system.progress import ProgressCallback
from envmatrix.trials.experiment_setup import Experiment


def nodes_of_block(block: int, listed: Sequence[str], span: int) -> str:
    """Return a block's nodes: blocks use ``listed`` in turn, ``span`` nodes at a time; '': Slurm chooses."""
    groups = [listed[first : first + span] for first in range(0, len(listed) - span + 1, span)]
    return ",".join(groups[block % len(groups)]) if groups else ""


class SlurmLauncher(BatchLauncher):
    """Runs every block as an exclusive job on one node, or on as many as its widest workload is spread over.

    Blocks that are ready at the same moment and ask for the same are submitted as one array job.
    """

    def __init__(
        self, experiment: Experiment, client: SlurmClient, progress: ProgressCallback, ask: Ask | None
    ) -> None:
        super().__init__("slurm", client, experiment, progress, ask)
        self._client = client
        self._options = slurm_options(experiment)
        self._span = nodes_per_block(experiment)
        self._usable_nodes: list[str] = []
        self._arrays = True
        self._clocks: set[str] = set()

    @property
    def width(self) -> int:
        """How many blocks run at the same time."""
        return max(1, self._options.nodes // self._span)

    @property
    def _working(self) -> int:
        """The number of submitted blocks whose jobs are not held."""
        return sum(not pending.held for pending in self._pending_blocks.values())

    def trials(self, blocks: Iterable[list[Slot]], work: Work) -> Iterator[Trial]:
        """Collect the results of earlier jobs, then keep the queue filled until there are no more blocks."""
        yield from super().trials(blocks, work)
        for pending in self._pending_blocks.values():
            self._say(f"block {pending.block} is left: `scontrol release {pending.job}`, then `envmatrix resume`")

    def _note_unwatched(self, pending: PendingBlock, queue: Sequence[QueuedJob]) -> None:
        """Record how the job of an earlier start ended; if that is unknown, the trial that was running is excused."""
        begun = pending.files.begun(pending.attempt)
        job = begun.job if begun else ""
        final_state = next((state.state for state in queue if state.job == job and not state.alive), "")
        cause = (final_state or self._client.past_state(job)) if job else ""
        if cause and pending.unfinished:
            self._say(f"block {pending.block}: job {job} of an earlier start ended: {cause}")
        pending.files.note_end(pending.attempt, cause or "UNWATCHED", excused=not cause or cause in job_loss.EXCUSED)

    def _collect(self, pending: PendingBlock, work: Work) -> Trials:
        self._check_clock(pending)
        yield from super()._collect(pending, work)

    def _check_clock(self, pending: PendingBlock) -> None:
        begun = pending.files.begun(pending.attempt) if pending.submitted else None
        if not begun or begun.node in self._clocks:
            return
        self._clocks.add(begun.node)
        offset = job_loss.clock_offset(begun.epoch, pending.submitted, time.time())
        if offset:
            self._say(job_loss.clock_words(begun.node, offset))

    def _state(self, pending: PendingBlock, queue: Sequence[QueuedJob]) -> QueuedJob | None:
        return job_loss.job_of(pending, queue)

    def _unusable_nodes(self) -> dict[str, str]:
        """Return the nodes that cannot take jobs, with their state and its reason."""
        return {
            node.name: f"{node.state} ({node.reason})" if node.reason else node.state
            for node in self._client.nodes(self._options)
            if not node.usable and not node.undetermined
        }

    def _node_for(self, block: int, home: str) -> str | None:
        """Return the node a block must run on ('': any); None if the one that began it is not available.

        A block over several nodes gets their names with commas. A later ``resume`` tries nodes again that are left out
        since this start. Raises EngineError if too few nodes are left, SilentError if Slurm does not know their state
        yet.
        """
        nodes = self._client.nodes(self._options)
        usable = [node.name for node in nodes if node.usable and node.name not in self._left_out]
        self._usable_nodes = usable
        missing = set(home.split(",")) - set(usable) if home else set()
        too_few = len(set(usable)) < self._span
        if any(node.undetermined and (too_few or node.name in missing) for node in nodes):
            raise SilentError("Slurm does not know yet how its nodes are", remedy="when it does: `envmatrix resume`")
        if too_few:
            states = "; ".join(f"{node.name}: {self._left_out.get(node.name) or node.state}" for node in nodes)
            raise EngineError(
                f"{'no node is' if self._span == 1 else 'too few nodes are'} left to run on ({states})",
                remedy="repair them or choose others, then `envmatrix resume`; nothing is lost",
            )
        if home:
            return None if missing else home
        return nodes_of_block(block, [name for name in self._options.nodelist if name in usable], self._span)

    def _submit_backlog(self, queue: Sequence[QueuedJob], work: Work) -> Trials:
        """Submit waiting blocks as far as there are places."""
        while self._backlog and self._working < self.width:
            ready: dict[str, list[PendingBlock]] = {}
            for pending in self._backlog[: self.width - self._working if self._arrays else 1]:
                if known := self._job_named(pending, queue):
                    # sbatch was interrupted before it answered, but Slurm has the job
                    self._watch(pending, known.job)
                    continue
                job = yield from self._prepare(pending, work)
                if job:
                    ready.setdefault(block_array_script(job), []).append(pending)
                else:
                    self._backlog.remove(pending)
            try:
                for script, blocks in ready.items():
                    self._submit_together(script, blocks)
            except EngineError as error:
                if isinstance(error, SilentError) or not self._working:
                    raise
                self._say(f"{error.message}; trying again when a job has ended")
                return

    def _watch(self, pending: PendingBlock, job: str) -> None:
        super()._watch(pending, job)
        self._backlog = [other for other in self._backlog if other is not pending]

    def _prepare(self, pending: PendingBlock, work: Work) -> Generator[Trial, None, BlockJob | None]:
        """Make the job of a new attempt at a block's unfinished trials, and its files; None if none can run now."""
        node = self._node_for(pending.block, pending.files.node)
        if node is None:
            home = pending.files.node
            self._say(f"block {pending.block} was begun on node {home}, which cannot be had; `resume` goes on later")
            self._next_look = 0.0
            return None
        parts = yield from self._begin(pending, work)
        if not parts:
            return None
        job = make_block_job(self._experiment, pending.block, parts, pending.attempt, node=node, avoid=self._left_out)
        pending.node = node
        write_whole(pending.files.order(pending.attempt), job.order.text())
        write_whole(pending.files.script(pending.attempt), block_script(job))
        write_whole(job_loss.log_file(pending), "")  # a node can open it even if the disk is full by then
        return job

    def _submit_together(self, array: str, blocks: list[PendingBlock]) -> None:
        """Submit alike blocks as one array job. One alone, or all if Slurm refuses the array, are jobs of their own."""
        logs = [job_loss.log_file(pending) for pending in blocks]
        if len(blocks) > 1 and self._arrays:
            script = logs[0].with_name(f"array-{blocks[0].attempt}.sh")
            write_whole(script, array)
            try:
                job = self._client.submit_script(script, logs[0], [pending.block for pending in blocks])
            except SilentError:
                raise
            except EngineError as error:
                self._arrays = False
                self._say(f"{error.message}; instead of an array, each block is a job of its own")
            else:
                for pending in blocks:
                    self._watch(pending, f"{job}_{pending.block}")
                return
        for pending, log in zip(blocks, logs, strict=True):
            self._watch(pending, self._client.submit_script(pending.files.script(pending.attempt), log))

    def _attend(self, pending: PendingBlock, state: QueuedJob) -> None:
        """Take back a block whose job cannot start or lost its node; report other changes of its state."""
        if state.release and not job_loss.held_by_somebody(pending, state):
            self._take_back(pending, state)
            return
        nodes = job_loss.job_nodes(pending)
        unusable = self._unusable_nodes() if state.state == "PENDING" and nodes else {}
        lost = next((name for name in nodes if name in unusable), None)
        if lost:  # it was requeued and would wait for a node that may never come back
            self._client.delete([pending.job])
            self._set_aside(pending, Loss("NODE_FAIL", f"node {lost} is {unusable[lost]}", excused=True, bad_node=lost))
            return
        self._check_reason(pending, state)
        pending.seen, pending.held = state.host or pending.seen, bool(state.release)
        super()._attend(pending, state)

    def _line(self, state: QueuedJob) -> str:
        release = f"; `{state.release}` lets it run" if state.release else ""
        if state.state == "PENDING":
            return f"waits ({state.reason}){release}"
        return f"is {state.state.lower()} on {state.host}{release}"

    def _check_reason(self, pending: PendingBlock, state: QueuedJob) -> None:
        """End the run if a job can never start. Slurm must report so several times, because limits can change."""
        cure = self._cure(pending, state.reason) if state.state == "PENDING" and not state.release else None
        pending.stuck = pending.stuck + 1 if cure else 0
        if cure:
            self._look_soon()
        if cure and pending.stuck >= SETTLE:
            raise self._ended(f"job {state.job} would wait for ever: {state.reason}", cure)

    def _cure(self, pending: PendingBlock, reason: str) -> str | None:
        """Return what to change if a job that waits for this reason can never start, otherwise None."""
        if reasons.waits_for_own(reason) and self._client.has_no_running_job():
            return f"no job of yours runs, so it asks for more than a user may have: {reasons.SIZE}"
        if reasons.needs_unavailable_nodes(reason):
            try:
                self._node_for(pending.block, "")
            except SilentError:
                raise
            except EngineError as error:
                return error.message
        return reasons.remedy(reason)

    def _take_back(self, pending: PendingBlock, state: QueuedJob) -> None:
        """Cancel a job that Slurm could not start and now holds, and send its block to another node."""
        unusable = self._unusable_nodes()
        nodes = pending.seen.split(",") if pending.seen else job_loss.job_nodes(pending)
        loss = job_loss.loss_of_held_job(state, nodes or sorted(set(self._usable_nodes) & set(unusable)), unusable)
        self._say(
            f"block {pending.block}: job {state.job} is held ({state.reason}); `{state.release}` would "
            "let it try again: instead it is cancelled, and its block goes elsewhere"
        )
        self._client.delete([pending.job])
        self._set_aside(pending, loss)

    def _loss(self, pending: PendingBlock, state: QueuedJob | None) -> Loss:
        past = self._client.past_state(pending.job) if state is None else ""
        stopped = pending.files.stop_status_node_and_path(pending.attempt)
        if state and not stopped and self._client.exit_status(pending.job) == CANNOT_WRITE:
            stopped = (CANNOT_WRITE, state.host.split(",")[0], str(pending.files.path))
        return job_loss.explain_loss(state, past, stopped, self._unusable_nodes())

    def _lost_trial(self, slot: Slot, pending: PendingBlock) -> Trial:
        cause = pending.files.last_cause()
        advice = {"TIMEOUT": "; give its block more time with --time", "OUT_OF_MEMORY": "; give its block more memory"}
        reason = f"its Slurm job died twice while it ran ({cause}){advice.get(cause, '')}"
        return trial_of(slot, "timed_out" if cause == "TIMEOUT" else "failed", reason, node=pending.files.node)
