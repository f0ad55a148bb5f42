"""How a block is parted into what lives together: by the design's schedule, what can take turns, and the memory."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from envmatrix.block.memory import free_memory, room
from envmatrix.plan import Slot
from envmatrix.plan.interleaving import Company, compared, groups, in_waves
from envmatrix.results import Trial
from envmatrix.system.progress import ProgressCallback
from envmatrix.trials.experiment import Experiment
from envmatrix.trials.interleaving_eligibility import in_one_turn, needs, sequential

#: So many of those that take no turns are named; in a search they have long names.
_MOST_NAMED = 2


class Groups:
    """Parts blocks, and remembers how much memory each arm has taken.

    ``usual``: the most bytes that a process of each workload is known to have had before.
    """

    def __init__(
        self,
        experiment: Experiment,
        progress: ProgressCallback,
        usual: Mapping[str, int] | None = None,
    ) -> None:
        self._experiment = experiment
        self._say = progress
        self._said: set[str] = set()
        self._peaks: dict[str, int] = {}
        self._usual = dict(usual or {})
        self._roots = compared(experiment.plan.arms)
        self._turns = experiment.run.design.schedule == "turns"
        self._alone = sequential(experiment.run, experiment.engines) if self._turns else {}
        self._one_turn = in_one_turn(experiment.run, experiment.engines) if self._turns else set()

    def note(self, trial: Trial) -> None:
        """Remember the memory of a trial's process."""
        peak = (trial.record.metrics or {}).get("peak_rss_bytes") if self._turns and trial.record else None
        if peak:
            self._peaks[trial.arm] = max(self._peaks.get(trial.arm, 0), int(peak))
            self._usual[trial.workload] = max(self._usual.get(trial.workload, 0), int(peak))

    def in_turns(self, slot: Slot) -> bool:
        """Whether a trial's steps are taken in turns, also where it then lives alone for want of memory."""
        return self._turns and self._roots[slot.arm.name] not in self._alone

    def live_together(self, slot: Slot) -> bool:
        """Whether a trial and those that it is compared with start side by side: to take turns, or one turn each."""
        return self.in_turns(slot) or self._roots[slot.arm.name] in self._one_turn

    def of(self, block: Sequence[Slot]) -> list[list[Slot]]:
        """Part a block into what is measured as one: what is compared and lives together, else each trial."""
        if not self._turns:
            return [[slot] for slot in block]
        return [part for group in groups(block, self._roots) for part in self._parts(group)]

    def _parts(self, group: list[Slot]) -> list[list[Slot]]:
        root = self._roots[group[0].arm.name]
        if why := self._alone.get(root):
            side_by_side = root in self._one_turn
            how = "all steps in one go" if side_by_side else "one trial after the other"
            self._say_once(root, f"no turns for {self._what(root, group)}, but {how}: {why}")
            return [group] if side_by_side else [[slot] for slot in group]
        return [group]

    def _what(self, root: str, group: Sequence[Slot]) -> str:
        own = [slot.arm for slot in group if slot.arm.is_alone]
        if not own:
            return f"what is compared with {root}"
        names = sorted({slot.arm.environment for slot in group if not slot.arm.is_alone})
        if (more := len(names) - _MOST_NAMED) > 0:
            names = [*names[:_MOST_NAMED], f"{more} more"]
        return f"{', '.join(names)} and {own[0].environment}, which they are compared with"

    def companies(self, group: Sequence[Slot]) -> list[Company]:
        """Part what lives together into what the memory that is there now can hold at once."""
        root, design = self._roots[group[0].arm.name], self._experiment.run.design
        one_turn = root in self._one_turn
        whole = Company((tuple(group),), one_turn=one_turn)
        wanted, there = self._needs(group), free_memory()
        if sum(wanted.values()) <= room(there) or len(group) == 1:
            return [whole]
        steps = self._experiment.run.workloads[group[0].arm.workload].options.get("steps")
        most = math.ceil(int(steps) / design.turn) if isinstance(steps, (int, str)) else len(group)
        command = self._experiment.run.workloads[group[0].arm.workload].command  # nobody knows how many turns it takes
        parted = None if command or one_turn else in_waves(group, wanted, room(there), most)
        how = (f"takes turns in {len(parted.waves)} smaller groups, each with its reference" if parted
               else "runs one trial after the other")  # fmt: skip
        self._say_once(
            f"{root} {how}",
            f"what is compared with {root} {how}: {len(group)} processes at once may need "
            f"{sum(wanted.values()) / 2**30:.1f} GiB, and {there / 2**30:.1f} GiB are free"
        )  # fmt: skip
        return [parted] if parted else [Company(((slot,),), one_turn=one_turn) for slot in group]

    def bytes_of(self, group: Sequence[Slot]) -> int:
        """Return how many bytes the processes of a group may need at once."""
        return sum(self._needs(group).values())

    def _needs(self, group: Sequence[Slot]) -> dict[str, int]:
        return needs([slot.arm for slot in group], self._peaks, self._experiment.run.design.memory, self._usual)

    def _say_once(self, what: str, text: str) -> None:
        if what not in self._said:
            self._said.add(what)
            self._say(text)

    def cut_short(self, block: Sequence[Slot], done: Collection[str]) -> Iterable[str]:
        """Yield the trials of a block's groups that ``done`` holds in part: those that lived together are one whole."""
        skipped = self._experiment.run.skipped  # what never runs can lie there alone
        wanted = [slot for slot in block if self.live_together(slot) and slot.arm.name not in skipped]
        for group in groups(wanted, self._roots):
            there = [slot.trial for slot in group if slot.trial in done]
            if len(there) < len(group):
                yield from there
