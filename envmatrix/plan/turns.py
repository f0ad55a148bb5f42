"""Turns: which trials of a block live together, and in which order they take turns. Pure and seeded."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence

from envmatrix.plan.schedule import Arm, Slot

#: Steps at the beginning of a turn whose times are set apart: they find another process's data in the caches. The first
#: took 10 to 20 % longer, the second no longer; one more is for machines with larger caches.
APART = 2


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


def groups(slots: Sequence[Slot], roots: Mapping[str, str]) -> list[list[Slot]]:
    """Part a block into what lives together: all that is compared (``roots``), in the block's order."""
    found: dict[str, list[Slot]] = {}
    for slot in slots:
        found.setdefault(roots[slot.arm.name], []).append(slot)
    return list(found.values())


def turn_order(seed: int, block: int, number: int, trials: Iterable[str]) -> list[str]:
    """Return the order in which trials take their turn in round ``number`` of a block: fresh in every round.

    A trial that broke leaves the order of the others as it is when it is passed over, not left out here.
    """
    names = sorted(trials)
    return random.Random(f"{seed}:{block}:turn {number}").sample(names, len(names))  # noqa: S311 - an order, no secret
