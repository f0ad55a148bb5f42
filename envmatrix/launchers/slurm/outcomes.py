"""From what the job of a block left to its trials: one at a time, or all of those that took turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from envmatrix.launchers.slurm import jobs
from envmatrix.launchers.slurm.pending_block import Flight
from envmatrix.plan import Slot
from envmatrix.results import Trial
from envmatrix.system.progress import ProgressCallback
from envmatrix.trials.experiment import Experiment
from envmatrix.trials.trial import REPEATS, count_stops


def collected(experiment: Experiment, flight: Flight, progress: ProgressCallback) -> Iterator[Trial]:
    """Yield the trials that have ended; what is yielded is on disk when this goes on.

    What those that took turns left stays until all of them are on disk: cut off before, all are read again.
    """
    for unit, slots in flight.units().items():
        there = [slot for slot in slots if flight.files.holds(flight.place(slot))]
        if not there:
            continue
        if broken := next((slot for slot in there if flight.end(slot) is None), None):
            if damaged := flight.files.set_aside(unit, flight.place(broken)):
                progress(f"what {unit} left is damaged and lies in {damaged} now; it runs again")
            continue
        trials = _trials(experiment, flight, there)
        stopped = any(count_stops(trial.record) for trial in trials)
        if stopped and (times := flight.files.throw_away(unit)) <= REPEATS:
            progress(f"{unit} was stopped for a while as it ran: it runs again ({times} of {REPEATS} times)")
            continue
        if trials[0].repeated:
            progress(f"{unit} ran {trials[0].repeated + 1} times: its job was suspended, or could not write")
        if len(there) > 1 and all(trial.together == 1 for trial in trials):
            progress(
                f"{unit} ran one process after the other: node {trials[0].node} has no memory for all of them at once"
            )
        yield from trials
        flight.files.forget(unit)
        for slot in there:
            del flight.slots[slot.trial]
        flight.finished += len(there)


def _trials(experiment: Experiment, flight: Flight, slots: Sequence[Slot]) -> list[Trial]:
    ends = [(slot, flight.end(slot)) for slot in slots]
    return [jobs.trial_from_files(experiment, slot, end) for slot, end in ends if end is not None]
