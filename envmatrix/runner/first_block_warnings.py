"""Early warnings from the first block: the run cannot give an answer, or not within its budget."""

from __future__ import annotations

from pathlib import Path

from envmatrix.durations_and_sizes import as_duration, as_hours, is_too_long_to_suggest
from envmatrix.plan import shown_name
from envmatrix.plan.steady_state_runs_after_blocks import BUDGET_SHARE, FULL_RUN_S, START_S, reserve_s
from envmatrix.report.formatting import format_count
from envmatrix.results import Trial
from envmatrix.results.elapsed import ElapsedTime
from envmatrix.system.printable import printable_text
from envmatrix.trials.experiment_setup import Experiment
from envmatrix.trials.failure_reason import log_tail
from envmatrix.trials.interleaving_eligibility import is_single_process_benchmark
from envmatrix.trials.user_program.failure_hints import (
    keyboard_and_process_hints,
    missing_module_hint,
    outside_path_hint,
    start_hint,
)
from envmatrix.trials.user_program.passed_variables import dropped_variables_hint, missing_module_text

_BROKEN_OUTCOMES = ("failed", "invalid", "timed_out")
#: From this load per CPU on, other programs are reported to use a large part of the time.
_BUSY_LOAD = 2.0
#: The number of trials from which a typical duration is known.
_MIN_TRIALS = 2
#: The least start-up time of a built-in trial on one CPU (seconds): import of torch and its compiler.
_LEAST_START_S = 1.5
#: A trial run that takes so many times as long as a trial, and seconds more, may have done more work.
_MUCH_LONGER, _MUCH_LONGER_S = 2.0, 1.0
#: The most characters shown of a log line.
_LONGEST_LINE = 200


def _shorten(line: str) -> str:
    return line if len(line) <= _LONGEST_LINE else line[: _LONGEST_LINE - 1] + "…"


class FirstBlockCheck:
    """Collects the trials since this start as they end; each message is reported once."""

    def __init__(self, experiment: Experiment, width: int, looks: int = 0) -> None:
        self._experiment, self._width, self._looks = experiment, width, looks
        plan = experiment.plan
        references = {arm.name for arm in plan.arms if arm.reference is None and arm.name not in experiment.run.skipped}
        #: Arm that runs a reference's environment -> that reference.
        self._copies = {
            arm.name: arm.name if arm.name in references else arm.reference
            for arm in plan.arms
            if arm.name in references or (arm.is_control and arm.reference in references)
        }
        self._broken: dict[str, Trial] = {}
        self._working_references: set[str] = set()
        self._elapsed = ElapsedTime()
        self._is_budget_checked = self._is_work_checked = False
        self._reported: set[str] = set()

    def add(self, trial: Trial) -> list[str]:
        """Add a trial, and return new messages."""
        if trial.block:
            return []
        reference = self._copies.get(trial.arm)
        if reference and trial.outcome in _BROKEN_OUTCOMES:
            self._broken.setdefault(reference, trial)
        elif reference and trial.outcome == "ok":
            self._working_references.add(reference)
        lines = [
            *self._missing_input_lines(trial),
            *self._less_work_lines(trial),
            *self._short_budget_lines(trial),
            *self._log_end_lines(),
        ]
        new_lines = [line for line in lines if line not in self._reported]
        self._reported.update(new_lines)
        return new_lines

    def startup_budget_warning(self, side_by_side: int, busy: float = 0.0) -> str:
        """Return a message if the budget is too short even for the start-up of the trials; otherwise ''.

        ``side_by_side`` processes start at the same time; ``busy`` is the load per CPU by other programs.
        """
        plan, run = self._experiment.plan, self._experiment.run
        single_process = [
            is_single_process_benchmark(run.workloads[arm.workload]) for arm in plan.arms if arm.name not in run.skipped
        ]
        starts_s = _LEAST_START_S * max(1.0, busy) * sum(single_process) / side_by_side
        if plan.guaranteed_blocks or plan.max_blocks < plan.min_blocks or starts_s * plan.min_blocks <= plan.budget_s:
            return ""
        bound_text = "or more" if busy < _BUSY_LOAD else "or so"
        self._is_budget_checked = True
        return (
            f"one block takes {as_duration(starts_s)} {bound_text} of your {as_duration(plan.budget_s)} "
            f"({format_count(sum(single_process), 'trial')} to start{_busy_text(busy)}), and a verdict needs "
            f"{plan.min_blocks} blocks: use {_budget_text(3 * starts_s * plan.min_blocks)} or more, or fewer "
            "environments"
        )

    @property
    def all_references_failed_reason(self) -> str:
        """Why the run cannot give an answer: every reference failed, and no copy of one succeeded; otherwise ''."""
        references = set(self._copies.values())
        if not references or references - set(self._broken) or self._working_references:
            return ""
        trial = next(iter(self._broken.values()))
        failure_verb = {"invalid": "was INVALID", "timed_out": "exceeded its time limit"}.get(trial.outcome, "failed")
        return (
            f"stopped: the reference {failure_verb} in the first block ({trial.trial} "
            f"{shown_name(trial.arm)}): {trial.reason}"
        )

    def _log_end_lines(self) -> list[str]:
        if not self.all_references_failed_reason:
            return []
        log = self._experiment.folder.logs / f"{next(iter(self._broken.values())).trial}.log"
        lines = [f"  | {_shorten(printable_text(line))}" for line in log_tail(log)]
        return ["\n".join([f"the end of {log}:", *lines])] if lines else []

    def _missing_input_lines(self, trial: Trial) -> list[str]:
        workload = self._experiment.run.workloads[trial.workload]
        if trial.outcome != "failed" or not workload.command:
            return []
        run, folder = self._experiment.run, Path(workload.files or "")
        sources = [folder / name for name in run.programs.get(trial.workload, {})]
        arm = next(arm for arm in self._experiment.plan.arms if arm.name == trial.arm)
        image = run.environments[arm.runs].image
        output = "\n".join(log_tail(self._experiment.folder.logs / f"{trial.trial}.log", 50))
        by_option = run.has_generated_matrix
        module = (
            missing_module_hint(image, output, folder) if by_option else missing_module_text(workload, image, output)
        )
        lines = (
            module,
            start_hint(output, folder),
            *keyboard_and_process_hints(output),
            outside_path_hint(workload, output),
            dropped_variables_hint(workload, sources, output, by_option=by_option),
        )
        return list(filter(None, lines))

    def _less_work_lines(self, trial: Trial) -> list[str]:
        """Return a warning that the program may have found what its trial run left outside its folder."""
        before_s = self._experiment.trial_run_s
        took_s = trial.wall_s if trial.outcome == "ok" and trial.arm in self._copies else None
        if self._is_work_checked or took_s is None:
            return []
        self._is_work_checked = True
        if before_s <= _MUCH_LONGER * took_s + _MUCH_LONGER_S:
            return []
        return [
            f"warning: the trial run took {as_duration(before_s)}, and a trial without settings {as_duration(took_s)}. "
            "If your program found results of the trial run outside its folder (a checkpoint, a cache), trials do less "
            "work: remove them before each run with --prepare LINE. If it only found its files in memory, this is right"
        ]

    def _short_budget_lines(self, trial: Trial) -> list[str]:
        """Return a warning, early in the run, that the budget ends before any verdict is possible."""
        if trial.outcome == "ok" and trial.wall_s:
            self._elapsed.add(trial)
        if self._is_budget_checked or self._elapsed.trials < max(_MIN_TRIALS, trial.together or 1):
            return []
        self._is_budget_checked = True
        plan = self._experiment.plan
        if plan.max_blocks < plan.min_blocks:  # deliberately short, without a verdict
            return []
        arms = len(plan.arms_of(0)) - len(self._experiment.run.skipped)
        if plan.guaranteed_blocks:
            return [
                first_table_text(plan.budget_s, plan.guaranteed_blocks, self._elapsed.mean_trial_s, arms, self._width)
            ]
        line = budget_too_short_text(
            plan.budget_s, plan.min_blocks, self._elapsed.mean_trial_s, arms, self._width, self._looks
        )
        return [line] if line else []


def _busy_text(busy: float) -> str:
    """Return a note on other programs if they use a large part of the CPU time."""
    return f" next to other programs: {busy:.0f} wait for each CPU" if busy >= _BUSY_LOAD else ""


def budget_too_short_text(
    budget_s: float, min_blocks: int, trial_s: float, arms: int, width: int = 1, looks: int = 0
) -> str:
    """Return a message if a budget ends before a verdict with trials of ``trial_s`` seconds; otherwise ''.

    Steady-state runs come after the blocks of a verdict. A budget too short for them also gives a message.
    """
    block_s = trial_s * arms / width
    claim_s, reserved_s = block_s * (min_blocks - 0.5), reserve_s(budget_s, looks)
    if claim_s + reserved_s <= budget_s:
        return ""
    enough_s = _budget_with_steady_runs(block_s * min_blocks * 1.1, looks)
    if claim_s > budget_s:
        return (
            f"a budget of {as_duration(budget_s)} is too short for a verdict: a trial takes about "
            f"{as_duration(trial_s)}, a block of {arms} about {as_duration(block_s)}, and a verdict needs "
            f"{min_blocks} blocks; use {_budget_text(enough_s)}, or fewer environments"
        )
    return (
        f"a block of {arms} takes about {as_duration(block_s)}, and a verdict needs {min_blocks} blocks: "
        f"that leaves {as_duration(max(0.0, budget_s - claim_s))} of the {as_duration(budget_s)} budget "
        f"for the steady-state runs, which need {as_duration(reserved_s)}; {_budget_text(enough_s)} is "
        "enough for both"
    )


def _budget_text(seconds: float) -> str:
    """Return a budget as a command-line option, or just its duration if it is too long to recommend."""
    return f"about {as_hours(seconds)}" if is_too_long_to_suggest(seconds) else f"--budget {as_duration(seconds)}"


def first_table_text(budget_s: float, blocks: int, trial_s: float, arms: int, width: int = 1) -> str:
    """Return when the first table comes, for a run without a budget from the user."""
    seconds = max(budget_s, trial_s * arms / width * blocks)
    return f"the first table comes after about {as_duration(seconds)}: {blocks} blocks of {arms} trials, or more"


def _budget_with_steady_runs(blocks_s: float, looks: int) -> float:
    """Return the budget that leaves ``blocks_s`` after the reserve for steady-state runs."""
    return min(blocks_s / (1 - BUDGET_SHARE), blocks_s + looks * (FULL_RUN_S + START_S))
