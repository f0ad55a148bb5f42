"""Live progress of a run: a bar on a terminal, one line a block elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from envmatrix.plan import Slot
from envmatrix.printable import clean
from envmatrix.runner.estimate import RunningEstimate
from envmatrix.say import Say
from envmatrix.store import Trial
from envmatrix.trials.experiment import Experiment


def left_text(seconds: float) -> str:
    """Write a duration as people read it: 4 min 05 s."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - progress of a command


class LineProgress:
    """Tells (by default, prints) a line a block, for logs and batch jobs. Failures are told at once."""

    def __init__(self, experiment: Experiment, *, quiet: bool, tell: Say | None = None) -> None:
        self.plan = experiment.plan
        self.tell = tell or _to_stderr
        self.quiet = quiet
        self.left_s = self.plan.budget_s

    def say(self, text: str) -> None:
        """Tell one line; what a trial said of itself may hold anything."""
        self.tell(clean(text))

    def trial_begins(self, slot: Slot, left_s: float) -> None:
        """Remember the time left for the block's line."""
        self.left_s = left_s

    def trial_ended(self, trial: Trial) -> None:
        """Tell a trial that broke."""
        if trial.outcome not in ("ok", "skipped"):
            self.say(f"{trial.trial} {trial.arm}: {trial.outcome}: {trial.reason}")

    def block_ended(self, block: int, estimate: RunningEstimate) -> None:
        """Print where the run stands."""
        if not self.quiet:
            left = f"at most {left_text(self.left_s)} left"
            self.say(f"block {block + 1} of up to {self.plan.max_blocks}, {left}; {estimate.headline()}")


class BarProgress(LineProgress):
    """A bar with the environment that runs now, the time left, and the best estimate so far."""

    def __init__(self, experiment: Experiment, console: Console) -> None:
        super().__init__(experiment, quiet=False)
        self.console = console
        self.began = time.monotonic()
        self.progress = Progress(
            TextColumn("block {task.fields[block]}"), BarColumn(bar_width=24),
            TextColumn("{task.fields[left]} left  {task.fields[now]}", markup=False),
            TextColumn("{task.fields[best]}", markup=False), console=console, transient=True,
        )  # fmt: skip
        self.task = self.progress.add_task("", total=self.plan.budget_s, block="1", left="", now="", best="")

    def say(self, text: str) -> None:
        """Print one line above the bar."""
        self.progress.console.print(Text(clean(text)))

    def trial_begins(self, slot: Slot, left_s: float) -> None:
        """Show what runs now."""
        self.progress.update(
            self.task, block=str(slot.block + 1), left=left_text(left_s), now=slot.arm.environment,
            completed=self.plan.budget_s - left_s,
        )  # fmt: skip

    def block_ended(self, block: int, estimate: RunningEstimate) -> None:
        """Show the estimate so far."""
        self.progress.update(self.task, best=estimate.headline())


@contextmanager
def watch(experiment: Experiment, *, quiet: bool) -> Iterator[LineProgress]:
    """Show progress in the way that fits where the output goes."""
    console = Console(stderr=True, highlight=False)
    if quiet or not console.is_terminal:
        yield LineProgress(experiment, quiet=quiet)
        return
    bar = BarProgress(experiment, console)
    with bar.progress:
        yield bar
