"""Interleaving: which trials of a block run together, and the order of their turns. Pure and seeded."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from envmatrix.plan.schedule import Arm, Slot


def turn_length_text(turn: int, *, steps: bool) -> str:
    """Return the length of a turn as text: in steps, or in seconds for programs without steps (``turn`` tenths)."""
    return f"{turn} step{'' if turn == 1 else 's'}" if steps else f"{turn / 10:g} s"


def comparison_roots(arms: Iterable[Arm]) -> dict[str, str]:
    """Return arm -> an arm that is the same for all that are compared with one another, directly or indirectly."""
    reference = {arm.name: arm.reference for arm in arms}
    roots = {}
    for name in reference:
        root = name
        while parent := reference.get(root):
            root = parent
        roots[name] = root
    return roots


def with_separate_references(arms: Sequence[Arm], lone: Collection[str]) -> tuple[Arm, ...]:
    """Compare ``lone`` arms, which run uninterrupted, with an uninterrupted copy of their reference.

    Compared arms must be measured in the same way. If the reference itself is not interleaved, neither are the arms
    compared with it, and no copy is needed.
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
    """Return the copies of references without arms to compare after the ``gone`` arms have left a race."""
    remaining = [arm for arm in arms if arm.name not in gone]
    used_references = {arm.reference for arm in remaining}
    return {arm.name for arm in remaining if arm.is_uninterrupted_copy and arm.name not in used_references}


def comparison_groups(slots: Sequence[Slot], roots: Mapping[str, str]) -> list[list[Slot]]:
    """Split a block into groups of compared arms (same root in ``roots``), in the block's order."""
    slots_by_root: dict[str, list[Slot]] = {}
    for slot in slots:
        slots_by_root.setdefault(roots[slot.arm.name], []).append(slot)
    return list(slots_by_root.values())


@dataclass(frozen=True)
class InterleavedGroup:
    """Trials that are interleaved, in waves: those of a wave are alive together, one wave after the other.

    ``kept`` trials are alive during all waves. If memory suffices for all, there is one wave and no kept trial.
    ``one_turn``: each takes all its steps in one turn; only start and end are simultaneous.
    """

    waves: tuple[tuple[Slot, ...], ...]
    kept: tuple[Slot, ...] = ()
    one_turn: bool = False

    @property
    def slots(self) -> list[Slot]:
        """All of its trials."""
        return [*self.kept, *(slot for wave in self.waves for slot in wave)]

    def without(self, trials: Collection[str]) -> InterleavedGroup:
        """Return the group without the given trials."""
        waves = (tuple(slot for slot in wave if slot.trial not in trials) for wave in self.waves)
        remaining_kept = tuple(slot for slot in self.kept if slot.trial not in trials)
        return replace(self, waves=tuple(wave for wave in waves if wave) or ((),), kept=remaining_kept)


def reference_and_control_slots(slots: Sequence[Slot]) -> list[Slot]:
    """Return the slots of references and of controls."""
    reference_names = {slot.arm.reference for slot in slots}
    return [slot for slot in slots if slot.arm.name in reference_names or slot.arm.is_control]


def split_into_waves(slots: Sequence[Slot], needs: Mapping[str, int], room: int, most: int) -> InterleavedGroup | None:
    """Split compared trials into waves that fit into ``room`` bytes, each with all references; None if impossible.

    ``needs`` maps an arm to its bytes. The turns of a reference are spread over all waves, so there can be at most as
    many waves as it has turns (``most``).
    """
    resident = reference_and_control_slots(slots)
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
