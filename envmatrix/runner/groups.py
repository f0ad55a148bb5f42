"""How a block is parted into what lives together: by the design's schedule, what can take turns, and the memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from envmatrix.plan import Slot
from envmatrix.plan.turns import compared, groups
from envmatrix.say import Say
from envmatrix.store import Trial
from envmatrix.trials.experiment import Experiment
from envmatrix.trials.together import free_memory, lacks_memory, sequential


class Groups:
    """Parts blocks, and remembers how much memory each arm has taken."""

    def __init__(self, experiment: Experiment, say: Say) -> None:
        self._experiment = experiment
        self._say = say
        self._said: set[str] = set()
        self._peaks: dict[str, int] = {}
        self._roots = compared(experiment.plan.arms)
        self._turns = experiment.run.design.schedule == "turns"
        self._alone = sequential(experiment) if self._turns else {}

    def note(self, trial: Trial) -> None:
        """Remember the memory of a trial's process."""
        peak = (trial.record.metrics or {}).get("peak_rss_bytes") if self._turns and trial.record else None
        if peak:
            self._peaks[trial.arm] = max(self._peaks.get(trial.arm, 0), int(peak))

    def in_turns(self, slot: Slot) -> bool:
        """Whether a trial's steps are taken in turns, also where it then lives alone for want of memory."""
        return self._turns and self._roots[slot.arm.name] not in self._alone

    def of(self, block: Sequence[Slot]) -> list[list[Slot]]:
        """Part a block into what lives together."""
        return [part for group in groups(block, self._roots) for part in self._parts(group)] if self._turns else [
            [slot] for slot in block
        ]  # fmt: skip

    def _parts(self, group: list[Slot]) -> list[list[Slot]]:
        root = self._roots[group[0].arm.name]
        limit = self._experiment.run.design.memory
        why = self._alone.get(root) or lacks_memory([slot.arm for slot in group], self._peaks, limit, free_memory())
        if not why:
            return [group]
        if root not in self._said:
            self._said.add(root)
            self._say(f"no turns for what is compared with {root}, but one trial after the other: {why}")
        return [[slot] for slot in group]

    def cut_short(self, block: Sequence[Slot], done: Collection[str]) -> Iterable[str]:
        """Yield the trials of a block's groups that ``done`` holds in part: those that took turns are one whole."""
        for group in groups([slot for slot in block if self.in_turns(slot)], self._roots):
            there = [slot.trial for slot in group if slot.trial in done]
            if len(there) < len(group):
                yield from there
