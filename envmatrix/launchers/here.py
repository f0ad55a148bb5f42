"""The launcher ``here``: this machine, one trial after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from envmatrix.launchers.base import Work
from envmatrix.plan import Slot
from envmatrix.store import Trial


class Here:
    """Runs every trial on this machine."""

    name = "here"
    width = 1
    measures_here = True

    def trials(self, blocks: Iterable[list[Slot]], work: Work) -> Iterator[Trial]:
        """Run one trial at a time: a second one would disturb it."""
        for block in blocks:
            for slot in block:
                work.begins(slot)
                yield work.run(slot)

    def interrupted(self) -> None:
        """Leave nothing to do: a trial of this machine has ended with the interrupt."""
