"""A block that is out on a node: what of it is not done, and what has begun."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from envmatrix.launchers.block_files import BlockFolder, TrialEnd
from envmatrix.plan import Slot


@dataclass
class PendingBlock:
    """The slots of a block that are not done; ``finished`` is how many ended in this attempt.

    ``groups`` maps trials that live together to the folder that has all of their group when they have ended.
    """

    block: int
    slots: dict[str, Slot]
    files: BlockFolder
    attempt: int = 0
    finished: int = 0
    started: set[tuple[str, int, int]] = field(default_factory=set)
    groups: Mapping[str, str] = field(default_factory=dict)

    def units(self) -> dict[str, list[Slot]]:
        """Return what ends as one, by the name of its folder: a trial, or those of it that took turns together."""
        found: dict[str, list[Slot]] = {}
        for name, slot in self.slots.items():
            found.setdefault(self.groups.get(name, name), []).append(slot)
        return found

    def place(self, slot: Slot) -> str:
        """Return where in the block's folder a trial lies when it has ended."""
        return f"{self.groups[slot.trial]}/{slot.trial}" if slot.trial in self.groups else slot.trial

    def end(self, slot: Slot) -> TrialEnd | None:
        """Return how a trial ended, or None while it has not."""
        return self.files.end(self.place(slot))

    def new_starts(self) -> list[list[Slot]]:
        """Return the slots whose trial began since the last time, those that take turns together as one."""
        fresh: dict[str, list[Slot]] = {}
        for start in self.files.starts():
            key = (start.trial, start.attempt, start.restarts)
            if key not in self.started:
                self.started.add(key)
                if start.trial in self.slots:
                    unit = self.groups.get(start.trial, start.trial)
                    fresh.setdefault(unit, []).append(self.slots[start.trial])
        return list(fresh.values())

    @property
    def unfinished(self) -> bool:
        """Whether a trial of it has left no result yet."""
        return any(self.end(slot) is None for slot in self.slots.values())
