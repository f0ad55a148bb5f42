"""Turns: which trials of a block live together, and in which order they take turns. Pure and seeded."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from envmatrix.plan.schedule import Arm, Slot


def turn_length_text(turn: int, *, steps: bool) -> str:
    """Return how long a turn is: steps, or tenths of a second of a program that tells of none."""
    return f"{turn} step{'' if turn == 1 else 's'}" if steps else f"{turn / 10:g} s"


def comparison_roots(arms: Iterable[Arm]) -> dict[str, str]:
    """Return arm -> an arm that is the same for all that are compared with one another, directly or through others."""
    reference = {arm.name: arm.reference for arm in arms}
    roots = {}
    for name in reference:
        root = name
        while parent := reference.get(root):
            root = parent
        roots[name] = root
    return roots


def with_separate_references(arms: Sequence[Arm], lone: Collection[str]) -> tuple[Arm, ...]:
    """Compare ``lone`` arms, which take no turns, with a copy of their reference that takes none either.

    What is compared is measured in one way. Where the reference takes no turns itself, all that is compared with it
    runs one after the other, and needs no copy.
    """
    arms_by_name = {arm.name: arm for arm in arms}
    copies: dict[str, Arm] = {}
    for arm in arms:
        reference = arms_by_name.get(arm.reference or "")
        if arm.name in lone and reference and reference.name not in lone:
            copy = reference.alone()
            copies.setdefault(copy.name, copy)
            copies[arm.name] = replace(arm, reference=copy.name)
        else:
            copies[arm.name] = arm
    return tuple(copies.values())


def unused_reference_copies(arms: Iterable[Arm], gone: Collection[str]) -> set[str]:
    """Return the copies of references that nobody is compared with any more once ``gone`` have left a race."""
    remaining = [arm for arm in arms if arm.name not in gone]
    used_references = {arm.reference for arm in remaining}
    return {arm.name for arm in remaining if arm.is_alone and arm.name not in used_references}


def comparison_groups(slots: Sequence[Slot], roots: Mapping[str, str]) -> list[list[Slot]]:
    """Part a block into what lives together: all that is compared (``roots``), in the block's order."""
    slots_by_root: dict[str, list[Slot]] = {}
    for slot in slots:
        slots_by_root.setdefault(roots[slot.arm.name], []).append(slot)
    return list(slots_by_root.values())


@dataclass(frozen=True)
class InterleavedGroup:
    """Trials that take turns: ``kept`` live all the time, and with them those of each wave, one wave after the other.

    Where memory holds all at once there is one wave, and nobody is kept. With ``one_turn`` each takes all of its steps
    in one go: they only start and end side by side.
    """

    waves: tuple[tuple[Slot, ...], ...]
    kept: tuple[Slot, ...] = ()
    one_turn: bool = False

    @property
    def slots(self) -> list[Slot]:
        """All of its trials."""
        return [*self.kept, *(slot for wave in self.waves for slot in wave)]

    def without(self, trials: Collection[str]) -> InterleavedGroup:
        """Return the company of those that are left."""
        waves = (tuple(slot for slot in wave if slot.trial not in trials) for wave in self.waves)
        remaining_kept = tuple(slot for slot in self.kept if slot.trial not in trials)
        return replace(self, waves=tuple(wave for wave in waves if wave) or ((),), kept=remaining_kept)


def reference_slots(slots: Sequence[Slot]) -> list[Slot]:
    """Return those that others are compared with, and second copies of them."""
    reference_names = {slot.arm.reference for slot in slots}
    return [slot for slot in slots if slot.arm.name in reference_names or slot.arm.is_control]


def split_into_waves(slots: Sequence[Slot], needs: Mapping[str, int], room: int, most: int) -> InterleavedGroup | None:
    """Part what is compared into waves that fit into ``room`` bytes, each with all references; None: that cannot be.

    ``needs`` maps an arm to its bytes. A reference takes its turns spread over all waves, so that there are at most
    as many waves as it has turns (``most``).
    """
    resident = reference_slots(slots)
    free_bytes = room - sum(needs[slot.arm.name] for slot in resident)
    waves: list[list[Slot]] = []
    wave_bytes = 0
    for slot in slots:
        if slot in resident:
            continue
        need = needs[slot.arm.name]
        if need > free_bytes:
            return None
        if need > wave_bytes:
            waves.append([])
            wave_bytes = free_bytes
        waves[-1].append(slot)
        wave_bytes -= need
    return InterleavedGroup(tuple(map(tuple, waves)), tuple(resident)) if 1 < len(waves) <= most else None
