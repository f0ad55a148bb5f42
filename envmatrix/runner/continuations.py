"""Decides which blocks go on after their trials, to see effects in the steady state (docs/steady-state.md)."""

from __future__ import annotations

from collections.abc import Collection

from envmatrix.plan import Slot
from envmatrix.plan.continuation import FULL_S, MIN_GROUPS, MIN_S, SHORT_GROUPS, seconds_of_steps, share
from envmatrix.results import Reading, Trial
from envmatrix.stats.measurements import Measurements
from envmatrix.stats.steady_state.effect import variances
from envmatrix.system.progress import ProgressCallback
from envmatrix.trials.experiment import Experiment
from envmatrix.units import as_duration


class Continuations:
    """The blocks of a run that went on so far, and the decision for the next one.

    The first ones are the last that a verdict needs, so that an interrupted run has its blocks.
    """

    def __init__(self, experiment: Experiment, progress: ProgressCallback, *, is_local: bool) -> None:
        self._run, self._plan, self._say = experiment.run, experiment.plan, progress
        self._is_wanted = experiment.run.design.steady and experiment.run.design.schedule == "turns" and is_local
        self._made: set[int] = set()
        self._decided: dict[int, float | None] = {}
        self._seconds: float | None = None
        self._lacking_s: float | None = None

    def count(self, trial: Reading | Trial) -> None:
        """Count a finished trial."""
        if trial.later_s is not None:
            self._made.add(trial.block)

    def seconds(
        self, slots: Collection[Slot], complete: int, block_s: float, left_s: float, measured: Measurements
    ) -> float | None:
        """Return for how many seconds of steps each process of a block goes on; None if they do not.

        ``complete`` blocks took ``block_s`` each, and ``left_s`` seconds of the budget are left.
        """
        block = next(iter(slots)).block
        if block not in self._decided:
            self._decided[block] = self._decide(slots, complete, block_s, left_s, measured)
        return self._decided[block]

    def _decide(
        self, slots: Collection[Slot], complete: int, block_s: float, left_s: float, measured: Measurements
    ) -> float | None:
        processes = sum(not self._run.workloads[slot.arm.workload].command for slot in slots)
        if not self._is_wanted or not processes or complete < self._plan.min_blocks - MIN_GROUPS:
            return None
        room_s = left_s - block_s * max(1, self._plan.min_blocks - complete)
        missing = [groups - len(self._made) for groups in (MIN_GROUPS, SHORT_GROUPS) if groups > len(self._made)]
        if missing:
            lengths = (seconds_of_steps(room_s, groups, processes) for groups in missing)
            seconds = next((length for length in lengths if length), None)
        else:
            later_s = processes * (self._seconds or FULL_S)
            wanted = share(*variances(self._plan, measured), later_s, block_s) * (complete + 1)
            seconds = seconds_of_steps(room_s, 1, processes) if len(self._made) < wanted else None
        if seconds is None:
            if missing:
                self._note_missing_budget(missing[-1] * processes * MIN_S - room_s)
            return None
        if self._seconds is None:
            self._announce(seconds, processes, max(missing, default=1) * processes * FULL_S - room_s)
        self._seconds = seconds = min(seconds, self._seconds or FULL_S)
        return seconds

    def report_missing(self) -> None:
        """Report at the end of a run that no block went on, and why."""
        if not self._is_wanted or self._made:
            return
        why = "no process could go on after its trial"
        if self._lacking_s is not None:
            why = f"the budget ended before them, and {_more(self._lacking_s)} more would have been enough (--budget)"
        self._say(f"no steady effects, only those of first steps: {why}")

    def _note_missing_budget(self, lacking_s: float) -> None:
        """Note how much more budget is needed, and say so the first time."""
        if not self._made and self._lacking_s is None:
            self._say(f"the budget ends before steady effects; {_more(lacking_s)} more are enough (--budget)")
        self._lacking_s = lacking_s

    def _announce(self, seconds: float, processes: int, lacking_s: float) -> None:
        more = "" if seconds == FULL_S else f"; {_more(lacking_s)} more are enough for {FULL_S:.0f} s (--budget)"
        self._say(
            f"for the steady effect, the processes of {SHORT_GROUPS} or more blocks go on for {seconds:.1f} s"
            f" of steps each (about {as_duration(processes * seconds)} a block){more}"
        )


def _more(lacking_s: float) -> str:
    """Return how much more budget is needed, with a margin; it is that of a step if a search measures."""
    return as_duration(max(1.0, 1.1 * lacking_s))
