"""Turns: which trials of a block live together, and in which order they take turns. Pure and seeded."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from envmatrix.plan.schedule import Arm, Slot


def turn_length(turn: int, *, steps: bool) -> str:
    """Return how long a turn is: steps, or tenths of a second of a program that tells of none."""
    return f"{turn} step{'' if turn == 1 else 's'}" if steps else f"{turn / 10:g} s"


def compared(arms: Iterable[Arm]) -> dict[str, str]:
    """Return arm -> an arm that is the same for all that are compared with one another, directly or through others."""
    reference = {arm.name: arm.reference for arm in arms}
    found = {}
    for name in reference:
        last = name
        while above := reference.get(last):
            last = above
        found[name] = last
    return found


def with_own_references(arms: Sequence[Arm], lone: Collection[str]) -> tuple[Arm, ...]:
    """Compare ``lone`` arms, which take no turns, with a copy of their reference that takes none either.

    What is compared is measured in one way. Where the reference takes no turns itself, all that is compared with it
    runs one after the other, and needs no copy.
    """
    named = {arm.name: arm for arm in arms}
    found: dict[str, Arm] = {}
    for arm in arms:
        reference = named.get(arm.reference or "")
        if arm.name in lone and reference and reference.name not in lone:
            own = reference.alone()
            found.setdefault(own.name, own)
            found[arm.name] = replace(arm, reference=own.name)
        else:
            found[arm.name] = arm
    return tuple(found.values())


def left_behind(arms: Iterable[Arm], gone: Collection[str]) -> set[str]:
    """Return the copies of references that nobody is compared with any more once ``gone`` have left a race."""
    there = [arm for arm in arms if arm.name not in gone]
    wanted = {arm.reference for arm in there}
    return {arm.name for arm in there if arm.is_alone and arm.name not in wanted}


def groups(slots: Sequence[Slot], roots: Mapping[str, str]) -> list[list[Slot]]:
    """Part a block into what lives together: all that is compared (``roots``), in the block's order."""
    found: dict[str, list[Slot]] = {}
    for slot in slots:
        found.setdefault(roots[slot.arm.name], []).append(slot)
    return list(found.values())


@dataclass(frozen=True)
class Company:
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

    def without(self, trials: Collection[str]) -> Company:
        """Return the company of those that are left."""
        waves = (tuple(slot for slot in wave if slot.trial not in trials) for wave in self.waves)
        kept = tuple(slot for slot in self.kept if slot.trial not in trials)
        return replace(self, waves=tuple(wave for wave in waves if wave) or ((),), kept=kept)


def references(slots: Sequence[Slot]) -> list[Slot]:
    """Return those that others are compared with, and second copies of them."""
    named = {slot.arm.reference for slot in slots}
    return [slot for slot in slots if slot.arm.name in named or slot.arm.is_control]


def in_waves(slots: Sequence[Slot], needs: Mapping[str, int], room: int, most: int) -> Company | None:
    """Part what is compared into waves that fit into ``room`` bytes, each with all references; None: that cannot be.

    ``needs`` maps an arm to its bytes. A reference takes its turns spread over all waves, so that there are at most
    as many waves as it has turns (``most``).
    """
    kept = references(slots)
    left = room - sum(needs[slot.arm.name] for slot in kept)
    waves: list[list[Slot]] = []
    free = 0
    for slot in slots:
        if slot in kept:
            continue
        need = needs[slot.arm.name]
        if need > left:
            return None
        if need > free:
            waves.append([])
            free = left
        waves[-1].append(slot)
        free -= need
    return Company(tuple(map(tuple, waves)), tuple(kept)) if 1 < len(waves) <= most else None
