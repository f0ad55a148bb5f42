"""The loop of a run: each trial is written to disk before the next starts, until precision or budget is reached."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from envmatrix.block import interrupts
from envmatrix.errors import EnvmatrixError
from envmatrix.launchers.base import Launcher, check_race
from envmatrix.plan import Slot
from envmatrix.plan.turn_order import unused_reference_copies
from envmatrix.report.formatting import format_count
from envmatrix.results import Reading, RunFolder, Trial
from envmatrix.results.elapsed import ElapsedTime
from envmatrix.results.plan_check import RejectedLine
from envmatrix.runner.first_block_warnings import FirstBlockCheck
from envmatrix.runner.running_estimate import RunningEstimate
from envmatrix.runner.steady_state_runs import Continuations, SteadyStateRuns
from envmatrix.stats.measurements import Measurements
from envmatrix.stats.stopping.racing import Race
from envmatrix.system.machine_lock import alone_on_machine
from envmatrix.system.progress import ProgressCallback
from envmatrix.trials import orphans
from envmatrix.trials.concurrent_trial_groups import TrialGrouper
from envmatrix.trials.experiment_setup import Experiment
from envmatrix.trials.interleave import run_interleaved
from envmatrix.trials.missing_image_retry import run_with_rebuild


class Observer(Protocol):
    """Receives the progress of a run."""

    def trial_begins(self, slot: Slot, left_s: float, together: int = 1) -> None:
        """Handle the start of ``slot``, or of ``together`` interleaved trials; ``left_s``: seconds left."""

    def trial_ended(self, trial: Trial) -> None:
        """Handle ``trial``, which is on disk."""

    def block_ended(self, block: int, estimate: RunningEstimate, left_s: float, left: float) -> None:
        """Handle ``block``, which is on disk; ``left_s`` seconds are left, enough for ``left`` blocks like it."""


@dataclass
class RunEnding:
    """Why a run stopped, whether it was interrupted, and whether it was ``lost``: its references failed.

    ``measured``: what was on disk when it began, if no trial ran.
    """

    why: str = ""
    interrupted: bool = False
    lost: bool = False
    incomplete: int = 0
    measured: Measurements | None = None
    outcomes: dict[str, int] = field(default_factory=dict)


def run(
    experiment: Experiment,
    launcher: Launcher,
    observer: Observer,
    progress: ProgressCallback,
    usual: Mapping[str, int] | None = None,
) -> RunEnding:
    """Run the remaining plan; Ctrl-C or SIGTERM ends it cleanly between two lines on disk.

    ``usual``: each workload's known peak memory per process, in bytes.
    """
    folder = experiment.folder
    folder.lock()
    if folder.remove_partial_lines():
        progress("the line of the last trial was incomplete: it is set aside, and that trial runs again")
    check_race(race=experiment.plan.race, width=launcher.width)
    loop = _resume_loop(lambda: _Loop(experiment, observer, launcher, progress, usual), folder, progress)
    loop.announce()
    try:
        blocks = loop.blocks()
        first = [block for block in (next(blocks, None),) if block]
        was_killed = experiment.run.name in orphans.killed_runs()  # perhaps after its last trial
        # If there is nothing to run or to remove, no lock is needed.
        measures = launcher.measures_here and (first or loop.has_steady_runs() or was_killed)
        with (
            interrupts.handle_signals(),
            _exclusive_machine(experiment, progress) if measures else contextlib.nullcontext(),
        ):
            for trial in launcher.trials(itertools.chain(first, blocks), loop):
                with interrupts.held():  # a finished trial is written completely
                    recorded = folder.append(trial)
                    loop.count(recorded)
                    loop.tell(trial)
                if loop.first.all_references_failed_reason and launcher.measures_here and not loop.unwritten:
                    break
            if launcher.measures_here and not loop.first.all_references_failed_reason:
                loop.continuations.report_no_continuations()
                for look in loop.looks():
                    with interrupts.held():
                        folder.append_steady_state_run(look)
    except KeyboardInterrupt:
        interrupts.mark_handled()
        launcher.interrupted()
        loop.ended.interrupted = True
        loop.ended.why = "interrupted"
    return loop.end()


def _resume_loop(make_loop: Callable[[], _Loop], folder: RunFolder, progress: ProgressCallback) -> _Loop:
    """Return the loop with the trials on disk counted. Incomplete interleaved groups are set aside, and run again."""
    loop = make_loop()
    _count_recorded_trials(loop, folder, progress)
    incomplete_trials = loop.partial_group_trials()
    if not incomplete_trials:
        return loop
    lines = enumerate(folder.readings(loop.experiment.plan), 1)
    folder.set_aside([RejectedLine(number, "cut short") for number, trial in lines if trial.trial in incomplete_trials])
    progress(
        f"set aside {format_count(len(incomplete_trials), 'trial')}, interleaved with trials that were "
        "not recorded: they all run again"
    )
    return _resume_loop(make_loop, folder, progress)


def _count_recorded_trials(loop: _Loop, folder: RunFolder, progress: ProgressCallback) -> None:
    """Count the trials on disk; set aside lines that do not belong to this run."""
    misfits: list[RejectedLine] = []
    for trial in folder.readings(loop.experiment.plan, misfits.append):
        loop.count(trial)
    if misfits:
        folder.set_aside(misfits)
        for misfit in misfits:
            progress(f"{folder.trials_file}:{misfit.number}: set aside, not a trial of this run: {misfit.reason}")
    loop.decide_race()
    missing_count = loop.restore_last_block()
    if missing_count:
        progress(
            f"{format_count(missing_count, 'trial')} of earlier blocks "
            f"{'has' if missing_count == 1 else 'have'} no line: running again"
        )


@contextlib.contextmanager
def _exclusive_machine(experiment: Experiment, progress: ProgressCallback) -> Iterator[None]:
    """Lock the machine for measuring, and remove leftovers of killed runs before and after."""
    with alone_on_machine(progress):
        _remove_leftovers(experiment, progress)
        try:
            yield
        finally:
            with contextlib.suppress(EnvmatrixError), interrupts.held():  # the next run removes what remains
                _remove_leftovers(experiment, progress)


def _remove_leftovers(experiment: Experiment, progress: ProgressCallback) -> None:
    """Remove leftovers of killed runs. Call it with the machine lock, as another run may have the same name."""
    killed = {*orphans.killed_runs(), experiment.run.name}
    leftover_count = orphans.end_processes()
    for name in dict.fromkeys(arm.engine for arm in experiment.plan.arms):
        leftover_count += sum(experiment.engines[name].sweep(run) for run in sorted(killed))
    orphans.remove_files()
    if leftover_count:
        progress(f"removed {leftover_count} leftover(s) of an earlier, killed run")


class _Loop:
    """The state of the loop: finished slots, time spent, and the running estimate."""

    def __init__(
        self,
        experiment: Experiment,
        observer: Observer,
        launcher: Launcher,
        progress: ProgressCallback,
        usual: Mapping[str, int] | None = None,
    ) -> None:
        width = launcher.width
        self.experiment, self.plan = experiment, experiment.plan
        self.progress, self.observer = progress, observer
        self.width, self.here = width, launcher.measures_here
        self.estimate = RunningEstimate(experiment.plan, experiment.run.workloads)
        self.race = Race(active=())
        self.done: set[str] = set()
        self._elapsed = ElapsedTime()
        self.finished: Counter[int] = Counter()
        self._open_blocks: set[int] = set()
        self.given = 0
        self.begun = self._recorded_count = 0
        #: How many finished trials of the current interleaved group are not on disk yet.
        self.unwritten = 0
        self.ended = RunEnding()
        self.groups_of = TrialGrouper(experiment, progress, usual=usual)
        self.long = SteadyStateRuns(
            experiment, experiment.folder.steady_state_runs(experiment.plan), progress, is_local=launcher.measures_here
        )
        self.first = FirstBlockCheck(experiment, width, len(self.long.left))
        self.continuations = Continuations(experiment, progress, is_local=launcher.measures_here)

    def announce(self) -> None:
        """Report before the first block the time reserved for steady-state runs, and a budget that is too short."""
        self.long.announce_reserved_time()
        self._recorded_count = len(self.done)
        cpus = os.cpu_count() or 1
        process_count = cpus if self.experiment.run.design.schedule == "turns" else 1
        busy = os.getloadavg()[0] / cpus if self.here else 0.0
        if not self.done and (line := self.first.startup_budget_warning(max(process_count, self.width), busy)):
            self.progress(line)

    def end(self) -> RunEnding:
        """Return why the run stopped, what is missing, and what was on disk if no trial ran."""
        if self.first.all_references_failed_reason and not self.ended.interrupted:
            self.ended.why, self.ended.lost = self.first.all_references_failed_reason, True
        if len(self.done) == self._recorded_count:
            self.ended.measured = self.estimate.measured
        whole = self.ended.interrupted or self.ended.lost
        self.ended.incomplete = 0 if whole else max(0, self.given - self.complete)
        return self.ended

    def count(self, trial: Reading | Trial) -> None:
        """Count a finished trial."""
        self.done.add(trial.trial)
        self._elapsed.add(trial)
        self.continuations.count(trial)
        self.groups_of.note(trial)
        self.finished[trial.block] += 1
        self._open_blocks.add(trial.block)
        self.ended.outcomes[trial.outcome] = self.ended.outcomes.get(trial.outcome, 0) + 1
        self.estimate.add(trial)

    def tell(self, trial: Trial) -> None:
        """Notify the observer of a trial on disk, and of its block if that is complete."""
        self.observer.trial_ended(trial)
        for line in self.first.add(trial):
            self.progress(line)
        if self._is_complete(trial.block):
            left_s, spent_s = self.left_s(), self.spent_s / self.width
            blocks_left = left_s / spent_s * self.complete if spent_s else 0.0
            self.observer.block_ended(self.complete - 1, self.estimate, left_s, blocks_left)

    @property
    def spent_s(self) -> float:
        """The seconds that trials took, summed over blocks that run in parallel."""
        return self._elapsed.seconds

    @property
    def complete(self) -> int:
        """How many blocks are complete."""
        self._open_blocks = {block for block in self._open_blocks if not self._is_complete(block)}
        return len(self.finished) - len(self._open_blocks)

    def _is_complete(self, block: int) -> bool:
        return self.finished[block] >= len(self._running_arms(block))

    def _running_arms(self, block: int) -> set[str]:
        """Return the arms that run in ``block``: all that did not leave the race before it."""
        dropped_arms = {stopped.arm for stopped in self.race.stopped if stopped.block <= block}
        plan = self.plan
        return (
            {arm.name for arm in plan.arms_of(block)} - dropped_arms - unused_reference_copies(plan.arms, dropped_arms)
        )

    def restore_last_block(self) -> int:
        """Set the last block begun; return how many trials are missing in those before it.

        With parallel blocks, missing trials are normal and are run like any other.
        """
        self.begun = max(self.finished, default=0) if self.width == 1 else 0
        return sum(len(self._remaining_slots(block)) for block in range(self.begun))

    def _is_recorded(self, block: int) -> bool:
        """Return whether every trial of a block is on disk, also those of arms that left the race."""
        return self.finished[block] >= len(self.plan.arms_of(block))

    def _running_slots(self, block: int) -> list[Slot]:
        running_arms = self._running_arms(block)
        return [slot for slot in self.plan.block(block) if slot.arm.name in running_arms]

    def _remaining_slots(self, block: int) -> list[Slot]:
        """Return the slots of a block that still have to run."""
        if self._is_recorded(block):
            return []
        return [slot for slot in self._running_slots(block) if slot.trial not in self.done]

    def partial_group_trials(self) -> set[str]:
        """Return the trials on disk of interleaved groups that are incomplete."""
        blocks = (self._running_slots(block) for block in sorted(self.finished) if not self._is_recorded(block))
        return {trial for block in blocks for trial in self.groups_of.partial_group_trials(block, self.done)}

    def decide_race(self) -> None:
        """Update which arms are still in a race, based only on the complete blocks on disk."""
        if self.plan.race:
            self.race = self.estimate.race()

    def blocks(self) -> Iterator[list[Slot]]:
        """Yield the remaining slots of each block until precision is reached or the budget is spent."""
        for block in range(self.plan.max_blocks):
            self.decide_race()
            remaining = self._remaining_slots(block)
            if remaining and block >= self.begun and (reason := self._stop_reason(self.given)):
                self.ended.why = reason
                return
            self.given += 1
            if remaining:
                yield remaining
        self.ended.why = f"all {self.given} blocks were run (`resume --max-blocks` allows more)"

    def _stop_reason(self, given: int) -> str:
        """Return why no block beyond the ``given`` ones is needed, or '' if one is."""
        plan = self.plan
        complete = self.complete
        if self.first.all_references_failed_reason:
            return self.first.all_references_failed_reason
        if complete == 0:
            return ""
        if self.race.finished:
            return f"the race was decided after {complete} blocks"
        if complete >= plan.min_blocks and self.estimate.precise_enough(plan.target, self.race.active):
            return f"every interval is within ±{plan.target:.1%} after {complete} blocks"
        if given < plan.guaranteed_blocks:
            return ""
        typical = self.spent_s / complete
        promised = self.spent_s + typical * max(0, given - complete)
        if promised + typical / 2 > self._budget_s * self.width:
            if given <= plan.guaranteed_blocks:
                return f"the {format_count(given, 'block')} that a verdict needs were run"
            return f"the budget of {plan.budget_s:.0f} s was used up after {format_count(given, 'block')}"
        return ""

    def left_s(self) -> float:
        """Return the seconds until the budget ends, or until the blocks required before that have run."""
        complete, spent_s = self.complete, self.spent_s / self.width
        first_s = spent_s / complete * max(0, self.plan.guaranteed_blocks - complete) if complete else 0.0
        return max(first_s, self._budget_s - spent_s, 0.0)

    def _later_s(self, group: list[Slot]) -> float | None:
        """Return for how many seconds of steps each process of a block goes on; None if they do not."""
        complete = self.complete
        if not complete:
            return None
        slots = self._running_slots(group[0].block)
        left_s = self.plan.budget_s - self.spent_s - self._later_spent_s
        return self.continuations.seconds(slots, complete, self.spent_s / complete, left_s, self.estimate.measured)

    @property
    def _later_spent_s(self) -> float:
        """The seconds that steady-state runs and processes that went on took."""
        return self.long.spent_s + self._elapsed.later_s

    @property
    def _budget_s(self) -> float:
        """The seconds that blocks may take: those for a verdict have priority over steady-state runs."""
        plan = self.plan
        return (
            plan.budget_s
            - self._elapsed.later_s
            - (self.long.reserved_s if self.complete >= plan.min_blocks else self.long.spent_s)
        )

    def looks(self) -> Iterator[Trial]:
        """Make the steady-state runs that there is time for, except for arms that never succeeded."""
        facts = self.estimate.measured.facts
        broken = [arm for arm, fact in facts.items() if fact.outcomes and not fact.outcomes["ok"]]
        return self.long.run(self._steady_runs_left_s, broken)

    def has_steady_runs(self) -> bool:
        """Return whether a steady-state run is left, and time for it."""
        return self.long.has_run_that_fits(self._steady_runs_left_s)

    @property
    def _steady_runs_left_s(self) -> float:
        return self.plan.budget_s - self.spent_s / self.width - self._later_spent_s

    def begins(self, slot: Slot, together: int = 1) -> None:
        """Notify the observer that a trial begins, or ``together`` interleaved ones."""
        self.observer.trial_begins(slot, self.left_s(), together)

    def run(self, slot: Slot) -> Trial:
        """Run one slot on this machine."""
        return run_with_rebuild(self.experiment, slot, self.progress)

    def run_group(self, group: list[Slot]) -> Iterator[Trial]:
        """Run the trials of a group on this machine."""
        if self.groups_of.starts_together(group[0]):
            companies = self.groups_of.split_by_memory(group)
            later_s = self._later_s(group) if len(companies) == 1 else None
            for company in companies:
                ended_trials = run_interleaved(self.experiment, company, self.progress, later_s=later_s)
                for self.unwritten, trial in zip(reversed(range(len(ended_trials))), ended_trials, strict=True):
                    yield trial
        else:
            yield from (self.run(slot) for slot in group)

    def is_done(self, trial: str) -> bool:
        """Return whether a trial is on disk."""
        return trial in self.done
