"""Blocks of a run for `nox -s selfbench -- --precision`: here, or as jobs (`--launcher slurm --node n1`).

One job is submitted at a time. Its duration is that seen by the caller, including the time in the queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from envmatrix.block import interrupts
from envmatrix.launchers.base import Launcher
from envmatrix.launchers.block_files import block_folders
from envmatrix.launchers.catalog import LAUNCHERS
from envmatrix.plan import Slot
from envmatrix.results import Trial
from envmatrix.system.progress import ProgressCallback
from envmatrix.trials.concurrent_trial_groups import TrialGrouper
from envmatrix.trials.experiment_setup import Experiment
from envmatrix.trials.interleave import TurnLengths, run_interleaved
from envmatrix.trials.missing_image_retry import run_with_rebuild


def here(
    experiment: Experiment,
    groups: TrialGrouper,
    slots: list[Slot],
    progress: ProgressCallback,
    lengths: TurnLengths | None = None,
) -> Iterator[Trial]:
    """Run a block on this machine; ``lengths`` are unequal turn lengths (None: the design's)."""
    for group in groups.of(slots):
        if groups.starts_together(group[0]):
            for part in groups.split_by_memory(group):
                yield from run_interleaved(experiment, part, progress, lengths)
        else:
            yield from (run_with_rebuild(experiment, slot, progress) for slot in group)


@dataclass
class Jobs:
    """Submits blocks to a launcher, and answers the launcher's questions."""

    experiment: Experiment
    groups_of: TrialGrouper
    progress: ProgressCallback
    launcher: Launcher = field(init=False)
    done: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.launcher = LAUNCHERS.make(self.experiment.run.launcher).open(
            self.experiment, self.progress, lambda _: True
        )

    def trials(self, *blocks: list[Slot]) -> Iterator[Trial]:
        """Yield the trials of blocks; without blocks, those still running from an earlier start."""
        try:
            for trial in self.launcher.trials(blocks, self):
                yield trial
                self.done.add(trial.trial)
        except (KeyboardInterrupt, GeneratorExit):
            interrupts.mark_handled()
            self.launcher.interrupted()  # cancels its jobs: a job that continued alone would have no duration
            raise

    def last_block(self) -> int:
        """Return the last block that had a job, or -1."""
        folders = block_folders(self.experiment.folder.path / "slurm")
        return max((int(folder.path.name[1:]) for folder in folders), default=-1)

    def run(self, slot: Slot) -> Trial:
        """Return the trial of an arm that is skipped."""
        return run_with_rebuild(self.experiment, slot, self.progress)

    def groups(self, block: list[Slot]) -> list[list[Slot]]:
        """Split a block into groups that are alive together."""
        return self.groups_of.of(block)

    def run_group(self, group: list[Slot]) -> Iterator[Trial]:
        """Refuse: nothing is measured on this machine."""
        raise NotImplementedError

    def begins(self, slot: Slot, together: int = 1) -> None:
        """Do nothing: only the end of a round is reported."""

    def is_done(self, trial: str) -> bool:
        """Return whether a trial is on disk."""
        return trial in self.done
