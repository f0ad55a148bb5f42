"""Base class of launchers that send blocks as jobs: blocks in progress, waiting blocks, and their results."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping

from envmatrix.block.block_instructions import Part
from envmatrix.errors import EngineError, InputError
from envmatrix.launchers.base import Work
from envmatrix.launchers.block_files import block_folders
from envmatrix.launchers.block_orders import block_folder, block_order, collected, group_names, make_parts
from envmatrix.launchers.block_start import copy_package, start_lines
from envmatrix.launchers.pending_block import PendingBlock
from envmatrix.plan import Slot
from envmatrix.results import Trial, trial_of, write_whole
from envmatrix.system.host import Host
from envmatrix.system.progress import ProgressCallback
from envmatrix.trials.experiment_setup import Experiment

Trials = Generator[Trial, None, None]
#: A trial whose node was lost this often while it ran counts as failed, so that the block can continue.
_LOSSES = 2
#: Blocks in a row without a finished trial after which the run stops, because they have a common cause.
_FRUITLESS = 3


def common_host(hosts: Mapping[str, Host], remedy: str) -> Host:
    """Describe all hosts as one machine, for templates such as {physical_cores}; trials record other differences."""
    shapes = {(host.cpus, host.physical_cpus, host.numa_nodes): name for name, host in hosts.items()}
    if len(shapes) > 1:
        shape_text = ", ".join(f"{name} has {len(shape[0])} CPUs" for shape, name in shapes.items())
        raise InputError(
            f"the hosts are of different shapes ({shape_text}), so thread counts cannot be the same on all of them",
            remedy=remedy,
        )
    ((cpus, physical, numa_nodes),) = shapes
    gpu_cpus = {host.gpu_cpus for host in hosts.values()}
    near = gpu_cpus.pop() if len(gpu_cpus) == 1 else None
    return Host(",".join(hosts), None, None, None, None, cpus, physical, numa_nodes, None, None, near)


class BlockLauncher:
    """Sends blocks to nodes as orders, and reads their trials from the files that the nodes write."""

    measures_here = False

    def __init__(self, experiment: Experiment, progress: ProgressCallback) -> None:
        self._experiment = experiment
        self._say = progress
        self._pending_blocks: dict[int, PendingBlock] = {}
        self._backlog: list[PendingBlock] = []
        self._fruitless = 0

    @property
    def width(self) -> int:
        """How many blocks run at the same time."""
        raise NotImplementedError

    @property
    def _working(self) -> int:
        """The number of blocks that were started and take one of the places."""
        return len(self._pending_blocks)

    def _rounds(self, blocks: Iterable[list[Slot]], work: Work) -> Trials:
        """Keep all places filled until there are no more blocks, and call ``_step`` again and again meanwhile."""
        source, more = iter(blocks), True
        while more or self._working or self._backlog:
            while more and self._working + len(self._backlog) < self.width:
                block = next(source, None)
                more = block is not None
                yield from self._take(block or [], work)
            yield from self._step(work)

    def _step(self, work: Work) -> Trials:
        """Start waiting blocks, yield the trials that have ended, and wait for a moment."""
        raise NotImplementedError

    def _known_blocks(self, work: Work) -> Iterator[PendingBlock]:
        """Return the unfinished parts of the blocks that an earlier start of envmatrix began."""
        for folder in block_folders(block_folder(self._experiment, 0).path.parent):
            block = int(folder.path.name[1:])
            yield self._unfinished_block(block, self._experiment.plan.block(block), work)

    def _pick_up(self, pending: PendingBlock, *, runs: bool) -> None:
        """Watch a known block if its job still runs; otherwise record that nobody watched its end."""
        if runs:
            planned = pending.files.planned(pending.attempt)
            pending.slots = {name: slot for name, slot in pending.slots.items() if name in planned}
            self._pending_blocks[pending.block] = pending
        elif pending.attempt and not pending.files.has_ended(pending.attempt):
            pending.files.note_end(pending.attempt, "UNWATCHED", excused=True)

    def _unfinished_block(self, block: int, slots: Iterable[Slot], work: Work) -> PendingBlock:
        """Return the unfinished part of a block; delete the leftover files of its finished trials."""
        files = block_folder(self._experiment, block)
        groups = group_names(self._experiment.plan.block(block), work.groups_of)
        runnable = {slot.trial: slot for slot in slots if slot.arm.name not in self._experiment.run.skipped}
        for unit, unit_slots in PendingBlock(block, runnable, files, groups=groups).units().items():
            # Trials of a group are done all together or not at all.
            if any(work.is_done(slot.trial) for slot in unit_slots):
                files.mark_done_and_delete(unit)
            else:
                files.unmark_done(unit)
        unfinished = {trial: slot for trial, slot in runnable.items() if not work.is_done(trial)}
        return PendingBlock(block, unfinished, files, files.attempt, groups=groups)

    def _take(self, block: list[Slot], work: Work) -> Trials:
        """Add one block to those that wait, unless it is already running (adopted from an earlier start)."""
        if not block or block[0].block in self._pending_blocks:
            return
        for slot in block:
            if slot.arm.name in self._experiment.run.skipped:
                yield work.run(slot)
        pending = self._unfinished_block(block[0].block, block, work)
        if pending.slots:
            self._backlog.append(pending)

    def _collect(self, pending: PendingBlock, work: Work) -> Trials:
        """Yield the trials that have ended; the caller writes each to disk before this continues."""
        for slots in pending.new_starts():
            work.begins(slots[0], len(slots))
        for trial in collected(self._experiment, pending, self._say):
            self._fruitless = 0
            yield trial
        if not pending.slots:
            self._pending_blocks.pop(pending.block, None)

    def _begin(self, pending: PendingBlock, work: Work) -> Generator[Trial, None, list[Part]]:
        """Start a new attempt and return its parts. Yield a trial for each slot that cannot run or was often lost."""
        for name, slot in list(pending.slots.items()):
            if pending.files.losses(name) >= _LOSSES:
                yield self._lost_trial(slot, pending)
                del pending.slots[name]
        if not pending.slots:
            return []
        pending.attempt = pending.files.start_new_attempt()
        for unit in pending.units():
            pending.files.unmark_done(unit)
        parts, failed = make_parts(self._experiment, pending, work.groups_of, pending.attempt)
        for trial in failed:
            yield trial
            del pending.slots[trial.trial]
        pending.files.plan(pending.attempt, pending.slots)
        return parts

    def _write_order(
        self, pending: PendingBlock, parts: Iterable[Part], who: str, modules: Iterable[str] = ()
    ) -> list[str]:
        """Write the order of an attempt; return the lines of ``sh`` for its job (see ``start_lines``)."""
        order, folder = block_order(self._experiment, pending.block, parts, pending.attempt), pending.files.path
        write_whole(pending.files.order(pending.attempt), order.text())
        return start_lines(folder, pending.attempt, copy_package(folder.parent), modules, who)

    def _send_again(self, pending: PendingBlock, reason: str, *, blamed: bool = True) -> None:
        """Queue a block whose job ended early. Stop the run if blocks keep ending without a finished trial.

        ``blamed``: the block counts as one of them; False if its node caused the end.
        """
        self._fruitless = self._fruitless + 1 if blamed and not pending.finished else 0
        if self._fruitless >= _FRUITLESS:
            raise self._ended(
                f"{_FRUITLESS} blocks in a row ended without one finished trial; the last one: {reason}",
                f"see {pending.files.path} for their scripts and logs (no log: the node does not see that folder, "
                "which must be on a file system that all nodes share)",
            )
        self._backlog.append(pending)

    def _ended(self, message: str, remedy: str) -> EngineError:
        """Return the error that ends the run."""
        return EngineError(message, remedy=f"{remedy}; then `envmatrix resume`: nothing that ended is lost")

    def _lost_trial(self, slot: Slot, pending: PendingBlock) -> Trial:
        """Return the trial of a slot whose job ended repeatedly while it ran."""
        reason = f"its block runner ended twice while it ran ({pending.files.last_cause()})"
        return trial_of(slot, "failed", reason, node=pending.files.node)
