"""Live progress of a run: a bar on a terminal, otherwise lines: one per block, and regular ones in long trials."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

from envmatrix.plan import Slot, shown_name
from envmatrix.results import Trial
from envmatrix.runner.running_estimate import RunningEstimate
from envmatrix.system.printable import printable_text
from envmatrix.system.progress import HEARTBEAT_INTERVAL_S, Heartbeat, ProgressCallback, duration_text
from envmatrix.trials.experiment_setup import Experiment


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - progress of a command


class LineProgress:
    """Reports (by default, prints) a line per block, for logs and batch jobs, and failures at once.

    During a long trial it reports every ``every_s`` seconds, from a separate thread.
    """

    def __init__(
        self,
        experiment: Experiment,
        *,
        quiet: bool,
        tell: ProgressCallback | None = None,
        every_s: float = HEARTBEAT_INTERVAL_S,
        show_output: bool = False,
    ) -> None:
        self.plan = experiment.plan
        self.logs = experiment.folder.logs
        self.tell = tell or _to_stderr
        self.quiet = quiet
        self.every_s = every_s
        self.show_output = show_output
        self.ticker: Heartbeat | None = None

    def progress(self, text: str) -> None:
        """Report one line; control characters from trial output are replaced."""
        self.tell(printable_text(text))

    def trial_begins(self, slot: Slot, left_s: float, together: int = 1) -> None:
        """Report regularly that this trial, or this number of interleaved ones, runs."""
        self.close()
        if not self.quiet:
            turns = f"block {slot.block + 1}: {together} interleaved processes run"
            trial = f"block {slot.block + 1}, trial {slot.position + 1} of {len(self.plan.arms_of(slot.block))}"
            activity = turns if together > 1 else f"{trial}: {slot.arm.environment} runs"
            self.ticker = Heartbeat(self.progress, activity, self.every_s)

    def close(self) -> None:
        """Stop reports on the last trial."""
        if self.ticker:
            self.ticker.stop()

    def trial_ended(self, trial: Trial) -> None:
        """Report a failed trial, and the location of its output."""
        self.close()
        log = self.logs / f"{trial.trial}.log"
        if self.show_output and log.exists():
            self.progress(f"{trial.trial} {shown_name(trial.arm)}:")
            for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
                self.progress(line)
        if trial.outcome not in ("ok", "skipped"):
            place = f" (log: {log})" if log.exists() else ""
            self.progress(f"{trial.trial} {shown_name(trial.arm)}: {trial.outcome}: {trial.reason}{place}")

    def block_ended(self, block: int, estimate: RunningEstimate, left_s: float, left: float) -> None:
        """Report the progress of the run."""
        if not self.quiet:
            seconds = self.until_end_s(block, left_s, left)
            time_left = f", at most {duration_text(seconds)} left" if seconds >= 1 else ""
            best = self.best(block, estimate, left)
            self.progress(f"block {block + 1} of up to {self.plan.max_blocks}{time_left}; {best}")

    def until_end_s(self, block: int, left_s: float, blocks_left: float) -> float:
        """Return the seconds until the budget ends or the last possible block is complete, whichever is first."""
        further = max(0, self.plan.max_blocks - (block + 1))
        return left_s * further / blocks_left if blocks_left > further else left_s

    def best(self, block: int, estimate: RunningEstimate, blocks_left: float) -> str:
        """Return the estimate so far, and when more will be known."""
        if block + 1 < self.plan.min_blocks:
            texts = (estimate.early_headline(), f"first verdict after block {self.plan.min_blocks}")
            return "; ".join(text for text in texts if text)
        outlook = estimate.decision_forecast(block + 1 + blocks_left)
        return "; ".join(text for text in (estimate.headline(), outlook) if text)


class _BarAndEstimate(Progress):
    """A bar in one line, and the estimate below it, folded between words."""

    def get_renderables(self) -> Iterable[RenderableType]:
        """Return the bar, and the estimate if there is one."""
        yield self.make_tasks_table(self.tasks)
        yield from (Text(task.fields["best"]) for task in self.tasks if task.fields["best"])


class BarProgress(LineProgress):
    """A bar with the running environment, the time left, and the best estimate so far."""

    def __init__(self, experiment: Experiment, console: Console, *, show_output: bool = False) -> None:
        super().__init__(experiment, quiet=False, show_output=show_output)
        self.console = console
        self.began = time.monotonic()
        self.ends = math.inf
        self.bar = _BarAndEstimate(
            TimeElapsedColumn(),
            TextColumn("block {task.fields[block]}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[left]} left  {task.fields[now]}", markup=False, table_column=Column()),
            console=console,
            transient=True,
        )
        self.task = self.bar.add_task("", total=self.plan.budget_s, block="1", left="", now="", best="")

    def progress(self, text: str) -> None:
        """Print one line above the bar."""
        self.bar.console.print(Text(printable_text(text)))

    def trial_begins(self, slot: Slot, left_s: float, together: int = 1) -> None:
        """Show the running trial."""
        trial_text = f"{slot.position + 1}/{len(self.plan.arms_of(slot.block))} {slot.arm.environment}"
        activity = f"{together} interleaved" if together > 1 else trial_text
        until_end_s = max(0.0, min(left_s, self.ends - time.monotonic()))
        self.bar.update(
            self.task,
            block=str(slot.block + 1),
            left=duration_text(until_end_s),
            now=activity,
            completed=max(0.0, self.plan.budget_s - left_s),
        )

    def block_ended(self, block: int, estimate: RunningEstimate, left_s: float, left: float) -> None:
        """Show the estimate so far."""
        self.ends = time.monotonic() + self.until_end_s(block, left_s, left)
        self.bar.update(self.task, best=self.best(block, estimate, left))


@contextmanager
def show_progress(experiment: Experiment, *, quiet: bool, show_output: bool = False) -> Iterator[LineProgress]:
    """Show progress as a bar on a terminal, otherwise as lines."""
    console = Console(stderr=True, highlight=False)
    if quiet or not console.is_terminal:
        with closing(LineProgress(experiment, quiet=quiet, show_output=show_output)) as lines:
            yield lines
        return
    bar = BarProgress(experiment, console, show_output=show_output)
    with bar.bar:
        yield bar
