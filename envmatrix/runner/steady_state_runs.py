"""How a run sees effects in the steady state, within its budget (docs/steady-state.md).

Interleaved, the blocks that go on after their trials; otherwise, a steady-state run of each environment at the end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from envmatrix.durations_and_sizes import as_duration
from envmatrix.plan import Slot
from envmatrix.plan.steady_state_block_share import (
    FULL_S,
    MIN_GROUPS,
    MIN_S,
    SHORT_GROUPS,
    seconds_of_steps,
    share_of_blocks_to_continue,
)
from envmatrix.plan.steady_state_runs_after_blocks import START_S, next_run_s, reserve_s, steady_state_slot
from envmatrix.report.formatting import format_count
from envmatrix.results import Reading, Trial
from envmatrix.stats.measurements import Measurements
from envmatrix.stats.steady_state.effect import change_and_remaining_variance
from envmatrix.system.progress import ProgressCallback
from envmatrix.trials.experiment_setup import Experiment
from envmatrix.trials.interleaving_eligibility import is_single_process_benchmark
from envmatrix.trials.missing_image_retry import run_with_rebuild


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
            wanted = share_of_blocks_to_continue(
                *change_and_remaining_variance(self._plan, measured), later_s, block_s
            ) * (complete + 1)
            seconds = seconds_of_steps(room_s, 1, processes) if len(self._made) < wanted else None
        if seconds is None:
            if missing:
                self._note_missing_budget(missing[-1] * processes * MIN_S - room_s)
            return None
        if self._seconds is None:
            self._announce(seconds, processes, max(missing, default=1) * processes * FULL_S - room_s)
        self._seconds = seconds = min(seconds, self._seconds or FULL_S)
        return seconds

    def report_no_continuations(self) -> None:
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


class SteadyStateRuns:
    """The environments without a steady-state run yet; ``spent_s`` is the duration of those made."""

    def __init__(
        self,
        experiment: Experiment,
        recorded_runs: Iterable[Trial],
        progress: ProgressCallback,
        *,
        is_local: bool = True,
    ) -> None:
        self._experiment, self._say = experiment, progress
        run_by_arm = {look.arm: look for look in recorded_runs}
        self.spent_s = sum(look.wall_s or 0.0 for look in run_by_arm.values())
        run = experiment.run
        wanted = run.design.steady and is_local and run.design.schedule != "turns"  # in turns, blocks go on
        self.left = [
            (number, arm)
            for number, arm in enumerate(experiment.plan.arms if wanted else ())
            if not (arm.is_control or arm.is_uninterrupted_copy or arm.name in run_by_arm or arm.name in run.skipped)
            and is_single_process_benchmark(run.workloads[arm.workload])
        ]
        if run.design.steady and not is_local:
            progress(f"no steady-state runs: launcher {run.launcher} runs trials on other machines")

    @property
    def reserved_s(self) -> float:
        """The seconds of the budget that blocks may not take."""
        return self.spent_s + reserve_s(self._experiment.plan.budget_s, len(self.left))

    def announce_reserved_time(self) -> None:
        """Report before the first block the time reserved for steady-state runs."""
        if self.left:
            reserve = reserve_s(self._experiment.plan.budget_s, len(self.left))
            self._say(
                f"up to {reserve:.0f} s at the end of the budget are reserved for "
                f"{format_count(len(self.left), 'steady-state run')}, one per environment: they show from which "
                "step on it is steady (`steady: false` turns them off)"
            )

    def has_run_that_fits(self, left_s: float) -> bool:
        """Return whether a steady-state run is left that fits into ``left_s`` seconds."""
        return bool(self.left) and next_run_s(left_s, len(self.left), START_S) is not None

    def run(self, left_s: float, broken: Iterable[str]) -> Iterator[Trial]:
        """Make the remaining steady-state runs in at most ``left_s`` seconds, without arms that failed in blocks."""
        start_s, broken = START_S, set(broken)
        self.left = [(number, arm) for number, arm in self.left if arm.name not in broken]
        while self.left:
            seconds = next_run_s(left_s, len(self.left), start_s)
            if seconds is None:
                self._say(
                    f"no steady-state run of {', '.join(arm.shown for _, arm in self.left)}: the budget is used up"
                )
                return
            number, arm = self.left.pop(0)
            self._say(f"steady-state run of {arm.shown}: {seconds:.0f} s of steps or more")
            look = run_with_rebuild(self._experiment, steady_state_slot(number, arm, seconds), self._say)
            took_s = look.wall_s or 0.0
            left_s, start_s = left_s - took_s, max(START_S, took_s - _stepped_s(look))
            self.spent_s += took_s
            yield look


def _stepped_s(look: Trial) -> float:
    timing = look.record.timing if look.record else None
    return (timing.training_ns or 0) / 1e9 if timing else 0.0
