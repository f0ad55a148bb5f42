"""The launcher ``here``: this machine, one trial after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from envmatrix.launchers.base import Ask, Launcher, LauncherKind, Work

if TYPE_CHECKING:
    from envmatrix.plan import Slot
    from envmatrix.say import Say
    from envmatrix.store import Trial
    from envmatrix.trials.experiment import Experiment


class HereKind(LauncherKind):
    """This machine."""

    name = "here"

    def open(self, experiment: Experiment, say: Say, ask: Ask | None) -> Launcher:
        """Return the launcher, which keeps nothing of a run."""
        return Here()


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
