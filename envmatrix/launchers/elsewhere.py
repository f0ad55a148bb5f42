"""What launchers share whose blocks run on other machines: what is out, what waits, and what has come back."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Generic, TypeVar

from envmatrix.block.order import Part
from envmatrix.launchers.base import Work
from envmatrix.launchers.block_orders import block_folder, group_names, make_parts
from envmatrix.launchers.outcomes import collected
from envmatrix.launchers.pending_block import PendingBlock
from envmatrix.plan import Slot
from envmatrix.results import Trial
from envmatrix.system.progress import ProgressCallback
from envmatrix.trials.experiment import Experiment

P = TypeVar("P", bound=PendingBlock)
Trials = Generator[Trial, None, None]
#: A trial whose node was lost so often while it ran counts as failed, so that the block goes on.
_LOSSES = 2


class BlockLauncher(Generic[P]):
    """Gives blocks to nodes as orders, and takes their trials from the files that are left of them."""

    measures_here = False
    kind: type[P]

    def __init__(self, experiment: Experiment, progress: ProgressCallback) -> None:
        self._experiment = experiment
        self._say = progress
        self._flights: dict[int, P] = {}
        self._backlog: list[P] = []

    def _flight(self, block: int, slots: Iterable[Slot], work: Work) -> P:
        """Take up what is not done of a block; the leftovers of what is done go."""
        files = block_folder(self._experiment, block)
        groups = group_names(self._experiment.plan.block(block), work.groups_of)
        there = {slot.trial: slot for slot in slots if slot.arm.name not in self._experiment.run.skipped}
        for unit, whole in PendingBlock(block, there, files, groups=groups).units().items():
            if any(work.is_done(slot.trial) for slot in whole):  # of those that took turns all are, or none
                files.forget(unit)
            else:
                files.recall(unit)
        left = {trial: slot for trial, slot in there.items() if not work.is_done(trial)}
        return self.kind(block, left, files, files.attempt, groups=groups)

    def _take(self, block: list[Slot], work: Work) -> Trials:
        """Take one more block; one that is out already (adopted) is left alone."""
        if not block or block[0].block in self._flights:
            return
        for slot in block:
            if slot.arm.name in self._experiment.run.skipped:
                yield work.run(slot)
        flight = self._flight(block[0].block, block, work)
        if flight.slots:
            self._backlog.append(flight)

    def _collect(self, flight: P, work: Work) -> Trials:
        """Yield the trials that have ended; what is yielded is on disk when this goes on."""
        for slots in flight.new_starts():
            work.begins(slots[0], len(slots))
        yield from collected(self._experiment, flight, self._say)
        if not flight.slots:
            self._flights.pop(flight.block, None)

    def _begin(self, flight: P, work: Work) -> Generator[Trial, None, list[Part]]:
        """Begin a new attempt and return what it has to do; what cannot run, or was lost too often, is a trial."""
        for name, slot in list(flight.slots.items()):
            if flight.files.losses(name) >= _LOSSES:
                yield self._lost_trial(slot, flight)
                del flight.slots[name]
        if not flight.slots:
            return []
        flight.attempt = flight.files.next_attempt()
        for unit in flight.units():
            flight.files.recall(unit)
        parts, failed = make_parts(self._experiment, flight, work.groups_of, flight.attempt)
        for trial in failed:
            yield trial
            del flight.slots[trial.trial]
        flight.files.plan(flight.attempt, flight.slots)
        return parts

    def _lost_trial(self, slot: Slot, flight: P) -> Trial:
        """Make the trial of a slot whose node was lost again and again while it ran."""
        raise NotImplementedError
