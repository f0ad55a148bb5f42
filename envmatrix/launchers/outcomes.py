"""Make trials from the files that a block left on its node: single trials, or all of a group at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from envmatrix.launchers import block_orders
from envmatrix.launchers.pending_block import PendingBlock
from envmatrix.plan import Slot
from envmatrix.results import Trial
from envmatrix.system.progress import ProgressCallback
from envmatrix.trials.experiment import Experiment
from envmatrix.trials.trial import REPEATS, count_stops


def collected(experiment: Experiment, pending: PendingBlock, progress: ProgressCallback) -> Iterator[Trial]:
    """Yield the trials that have ended; the caller writes each to disk before this continues.

    The files of a group are kept until all its trials are on disk, so after an interruption all are read again.
    """
    for unit, slots in pending.units().items():
        there = [slot for slot in slots if pending.files.holds(pending.place(slot))]
        if not there:
            continue
        if broken := next((slot for slot in there if pending.end(slot) is None), None):
            if damaged := pending.files.set_aside(unit, pending.place(broken)):
                progress(f"what {unit} left is damaged and lies in {damaged} now; it runs again")
            continue
        trials, thrown_away = _trials(experiment, pending, there), pending.files.thrown_away(unit)
        stopped = any(count_stops(trial.record) for trial in trials)
        if stopped and (times := pending.files.throw_away(unit)) <= REPEATS:
            progress(f"{unit} was paused while it ran: running it again ({times} of {REPEATS} times)")
            continue
        if trials[0].repeated:
            progress(f"{unit} ran {trials[0].repeated + 1} times: its job was suspended, or could not write")
        if len(there) > 1 and all(trial.together == 1 for trial in trials):
            progress(
                f"{unit} ran one process after the other: node {trials[0].node} has no memory for all of them at once"
            )
        yield from (replace(trial, repeated=trial.repeated + thrown_away) for trial in trials)
        pending.files.forget(unit)
        for slot in there:
            del pending.slots[slot.trial]
        pending.finished += len(there)


def _trials(experiment: Experiment, pending: PendingBlock, slots: Sequence[Slot]) -> list[Trial]:
    ends = [(slot, pending.end(slot)) for slot in slots]
    return [block_orders.trial_from_files(experiment, slot, end) for slot, end in ends if end is not None]
