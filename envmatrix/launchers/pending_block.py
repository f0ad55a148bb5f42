"""A block that is running on a node: its unfinished slots, the trials that have started, and why its job ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from envmatrix.launchers.block_files import BlockFolder, TrialEnd
from envmatrix.plan import Slot


@dataclass
class PendingBlock:
    """The unfinished slots of a block; ``finished`` is how many trials ended in this attempt.

    ``groups`` maps each trial that runs side by side with others to the folder of its group. In a batch system, ``job``
    runs it: ``told`` is the last line about it, ``gone`` the number of checks without it, ``submitted`` a time,
    ``node`` where it was sent, ``seen`` where it was last reported, ``held``: it waits for a release, ``stuck`` for how
    many checks it could never start.
    """

    block: int
    slots: dict[str, Slot]
    files: BlockFolder
    attempt: int = 0
    finished: int = 0
    started: set[tuple[str, int, int]] = field(default_factory=set)
    groups: Mapping[str, str] = field(default_factory=dict)
    job: str = ""
    told: str = ""
    gone: int = 0
    submitted: float = 0.0
    node: str = ""
    seen: str = ""
    held: bool = False
    stuck: int = 0

    def units(self) -> dict[str, list[Slot]]:
        """Return the slots by the name of their result folder: a single trial, or a group that runs side by side."""
        slots_by_unit: dict[str, list[Slot]] = {}
        for name, slot in self.slots.items():
            slots_by_unit.setdefault(self.groups.get(name, name), []).append(slot)
        return slots_by_unit

    def result_path(self, slot: Slot) -> str:
        """Return the path of a finished trial, relative to the block's folder."""
        return f"{self.groups[slot.trial]}/{slot.trial}" if slot.trial in self.groups else slot.trial

    def end(self, slot: Slot) -> TrialEnd | None:
        """Return how a trial ended; None if it has not ended."""
        return self.files.end(self.result_path(slot))

    def new_starts(self) -> list[list[Slot]]:
        """Return the slots that have started since the last call; those of a group are returned together."""
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
        """Whether any of its trials has no result yet."""
        return any(self.end(slot) is None for slot in self.slots.values())


@dataclass(frozen=True)
class Loss:
    """Why a job ended before its block was done.

    ``excused``: the trial that was running is not the cause. ``give_up``: the block is left to ``resume``. ``bad_node``
    is the node to leave out, '' if none.
    """

    cause: str
    text: str
    excused: bool = False
    give_up: bool = False
    bad_node: str = ""
