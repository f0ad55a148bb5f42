"""Steady-state runs at the end of a run, within their share of the budget."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from envmatrix.plan.steady_state_runs import START_S, next_run_s, reserve_s, steady_state_slot
from envmatrix.report.formatting import format_count
from envmatrix.results import Trial
from envmatrix.system.progress import ProgressCallback
from envmatrix.trials.experiment import Experiment
from envmatrix.trials.interleaving_eligibility import has_one_process
from envmatrix.trials.retry import run_with_rebuild


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
            if not (arm.is_control or arm.is_alone or arm.name in run_by_arm or arm.name in run.skipped)
            and has_one_process(run.workloads[arm.workload])
        ]
        if run.design.steady and not is_local:
            progress(f"no steady-state runs: launcher {run.launcher} runs trials on other machines")

    @property
    def reserved_s(self) -> float:
        """The seconds of the budget that blocks may not take."""
        return self.spent_s + reserve_s(self._experiment.plan.budget_s, len(self.left))

    def announce(self) -> None:
        """Report before the first block the time reserved for steady-state runs."""
        if self.left:
            reserve = reserve_s(self._experiment.plan.budget_s, len(self.left))
            self._say(
                f"up to {reserve:.0f} s at the end of the budget are reserved for "
                f"{format_count(len(self.left), 'steady-state run')}, one per environment: they show from which "
                "step on it is steady (`steady: false` turns them off)"
            )

    def are_due(self, left_s: float) -> bool:
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
