"""Live progress of a search: the loop reports the steps, this module only problems during their trials."""

from __future__ import annotations

from contextlib import closing

from envmatrix.plan import Slot
from envmatrix.runner.progress import LineProgress
from envmatrix.runner.running_estimate import RunningEstimate
from envmatrix.system.progress import ProgressCallback, duration_text
from envmatrix.trials.experiment import Experiment


class StepProgress(LineProgress):
    """Reports failures at once, long trials from time to time, and every fifth block of a confirmation."""

    def __init__(
        self, experiment: Experiment, label: str, *, quiet: bool, tell: ProgressCallback, show_output: bool
    ) -> None:
        super().__init__(experiment, quiet=quiet, tell=tell, show_output=show_output)
        self.label = label

    def where(self, slot: Slot) -> str:
        """Return the step and trial as text."""
        arms = len(self.plan.arms_of(slot.block))
        return f"{self.label}, trial {slot.position + 1} of {arms}: {slot.arm.environment}"

    def block_ended(self, block: int, estimate: RunningEstimate, left_s: float, left: float) -> None:
        """Report the progress of a confirmation, without its estimate, which is reported only at the end."""
        if not self.quiet and self.plan.max_blocks > 1 and block % 5 == 4:
            time_left = duration_text(self.until_end_s(block, left_s, left))
            self.progress(f"{self.label}: {block + 1} of up to {self.plan.max_blocks} blocks, {time_left} left")


def watch_step(
    experiment: Experiment, label: str, *, quiet: bool, tell: ProgressCallback, show_output: bool = False
) -> closing[StepProgress]:
    """Show the progress of a step while the context is open."""
    return closing(StepProgress(experiment, label, quiet=quiet, tell=tell, show_output=show_output))
