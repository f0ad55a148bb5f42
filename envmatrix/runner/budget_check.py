"""What the trials of the first block already say of the whole run: that it cannot answer, or not within its budget."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from envmatrix.matrix.model import Workload
from envmatrix.plan import shown_name
from envmatrix.plan.steady_state_runs import SHARE, START_S, WHOLE_S, reserve_s
from envmatrix.report.formatting import count
from envmatrix.results import Trial
from envmatrix.results.elapsed import Taken
from envmatrix.system.printable import clean
from envmatrix.trials.experiment import Experiment
from envmatrix.trials.failure_hints import beyond_folder, lacking_module
from envmatrix.trials.failure_reason import tail
from envmatrix.trials.interleaving_eligibility import has_one_process
from envmatrix.trials.program_variables import dropped_variables, missing_module
from envmatrix.units import as_budget, as_duration, as_hours, is_too_long

_BROKEN = ("failed", "invalid", "timed_out")
#: From so many that want each CPU on, others are said to take a good part of the time.
_BUSY = 2.0
#: So many trials say how long one takes.
_ENOUGH = 2
#: What the start of a built-in trial takes of one CPU, at least: torch is imported, and its compiler.
_LEAST_START_S = 1.5
#: Characters of a line of a log that are shown.
_LONGEST_LINE = 200


def _short(line: str) -> str:
    return line if len(line) <= _LONGEST_LINE else line[: _LONGEST_LINE - 1] + "…"


class FirstBlock:
    """Takes the trials of this start as they end; each sentence is said once."""

    def __init__(self, experiment: Experiment, width: int, looks: int = 0) -> None:
        self._experiment, self._width, self._looks = experiment, width, looks
        plan = experiment.plan
        first = {arm.name for arm in plan.arms if arm.reference is None and arm.name not in experiment.run.skipped}
        #: Arm that runs a reference's environment -> that reference.
        self._copies = {
            arm.name: arm.name if arm.name in first else arm.reference
            for arm in plan.arms
            if arm.name in first or (arm.is_control and arm.reference in first)
        }
        self._broken: dict[str, Trial] = {}
        self._well: set[str] = set()
        self._taken = Taken()
        self._asked = False
        self._told: set[str] = set()

    def add(self, trial: Trial) -> list[str]:
        """Take one more trial into account, and return what is to be said now."""
        if trial.block:
            return []
        reference = self._copies.get(trial.arm)
        if reference and trial.outcome in _BROKEN:
            self._broken.setdefault(reference, trial)
        elif reference and trial.outcome == "ok":
            self._well.add(reference)
        said = [*self._dropped(trial), *self._too_short(trial), *self._last_words()]
        new = [line for line in said if line not in self._told]
        self._told.update(new)
        return new

    def announce(self, side_by_side: int, busy: float = 0.0) -> str:
        """Say before anything runs that a budget is too short even if trials were nothing but their start; else ''.

        ``side_by_side`` processes start at the same time; ``busy`` is how many others want each CPU (load a CPU).
        """
        plan, run = self._experiment.plan, self._experiment.run
        known = [has_one_process(run.workloads[arm.workload]) for arm in plan.arms if arm.name not in run.skipped]
        starts_s = _LEAST_START_S * max(1.0, busy) * sum(known) / side_by_side
        if plan.first or plan.max_blocks < plan.min_blocks or starts_s * plan.min_blocks <= plan.budget_s:
            return ""
        how = "or more" if busy < _BUSY else "or so"
        self._asked = True
        return (
            f"one block takes {as_duration(starts_s)} {how} of your {as_duration(plan.budget_s)} "
            f"({count(sum(known), 'trial')} to start{_beside(busy)}), and no claim is made below {plan.min_blocks} "
            f"blocks: give it {_enough(3 * starts_s * plan.min_blocks)} or more, or fewer environments"
        )

    @property
    def lost(self) -> str:
        """Why the run cannot answer: every reference failed, and no copy of it ran well; '' while one may."""
        references = set(self._copies.values())
        if not references or references - set(self._broken) or self._well:
            return ""
        trial = next(iter(self._broken.values()))
        how = {"invalid": "was INVALID", "timed_out": "ran past its limit"}.get(trial.outcome, "failed")
        return (
            f"stopped: the reference {how} in the first block ({trial.trial} {shown_name(trial.arm)}): {trial.reason}"
        )

    def _last_words(self) -> list[str]:
        if not self.lost:
            return []
        log = self._experiment.folder.logs / f"{next(iter(self._broken.values())).trial}.log"
        lines = [f"  | {_short(clean(line))}" for line in tail(log)]
        return ["\n".join([f"the end of {log}:", *lines])] if lines else []

    def _dropped(self, trial: Trial) -> list[str]:
        workload = self._experiment.run.workloads[trial.workload]
        if trial.outcome != "failed" or not workload.command:
            return []
        log = self._experiment.folder.logs / f"{trial.trial}.log"
        sources = _sources(workload, self._experiment.run.programs.get(trial.workload, {}))
        runs = next(arm.runs for arm in self._experiment.plan.arms if arm.name == trial.arm)
        image, said = self._experiment.run.environments[runs].image, "\n".join(tail(log, 50))
        own = self._experiment.run.is_of_program
        folder = Path(workload.files or "")
        lines = (
            lacking_module(image, said, folder) if own else missing_module(workload, image, said),
            beyond_folder(workload, said), dropped_variables(workload, sources, said, by_option=own),
        )  # fmt: skip
        return [line for line in lines if line]

    def _too_short(self, trial: Trial) -> list[str]:
        """Say before it is spent that a budget ends before any claim can be made."""
        if trial.outcome == "ok" and trial.wall_s:
            self._taken.add(trial)
        if self._asked or self._taken.trials < max(_ENOUGH, trial.together or 1):
            return []
        self._asked = True
        plan = self._experiment.plan
        if plan.max_blocks < plan.min_blocks:  # a short look, which is to claim nothing
            return []
        arms = len(plan.arms_of(0)) - len(self._experiment.run.skipped)
        if plan.first:
            return [time_of_first(plan.budget_s, plan.first, self._taken.each_s, arms, self._width)]
        line = too_short(plan.budget_s, plan.min_blocks, self._taken.each_s, arms, self._width, self._looks)
        return [line] if line else []


def _beside(busy: float) -> str:
    """Say that other programs run, where they take a good part of the time."""
    return f" beside programs of others: {busy:.0f} want each CPU" if busy >= _BUSY else ""


def too_short(
    budget_s: float, min_blocks: int, trial_s: float, arms: int, width: int = 1, looks: int = 0
) -> str:  # fmt: skip
    """Say that a budget ends before the first claim where a trial takes ``trial_s`` seconds; '' where it does not.

    The blocks of a claim come before the long looks, which may then have nothing left: that is said too.
    """
    block_s = trial_s * arms / width
    claim_s, kept_s = block_s * (min_blocks - 0.5), reserve_s(budget_s, looks)
    if claim_s + kept_s <= budget_s:
        return ""
    enough_s = _with_looks(block_s * min_blocks * 1.1, looks)
    if claim_s > budget_s:
        return (
            f"this cannot be decided within the budget of {as_duration(budget_s)}: a trial takes about "
            f"{as_duration(trial_s)}, a block of {arms} about {as_duration(block_s)}, and no claim is made below "
            f"{min_blocks} blocks; give it {_enough(enough_s)}, or fewer environments"
        )
    return (
        f"a block of {arms} takes about {as_duration(block_s)}, and no claim is made below {min_blocks} blocks: that "
        f"leaves {as_duration(max(0.0, budget_s - claim_s))} of the budget of {as_duration(budget_s)} for the long "
        f"looks, which want {as_duration(kept_s)}; {_enough(enough_s)} has time for all"
    )


def _enough(seconds: float) -> str:
    """Write a budget as an option; of one that nobody is told to give how long it is."""
    return f"about {as_hours(seconds)}" if is_too_long(seconds) else f"--budget {as_duration(seconds)}"


def time_of_first(budget_s: float, blocks: int, trial_s: float, arms: int, width: int = 1) -> str:
    """Say when there is an answer, of a run that ends no sooner: nobody set its budget."""
    seconds = max(budget_s, trial_s * arms / width * blocks)
    return f"the first table comes after about {as_budget(seconds)}: {blocks} blocks of {arms} trials, or more"


def _with_looks(blocks_s: float, looks: int) -> float:
    """Return the budget of which what is kept for long looks leaves ``blocks_s``."""
    return min(blocks_s / (1 - SHARE), blocks_s + looks * (WHOLE_S + START_S))


def _sources(workload: Workload, files: Mapping[str, str]) -> list[Path]:
    return [Path(workload.files or "") / name for name in files]
