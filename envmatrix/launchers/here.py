"""The launcher ``here``: this machine."""

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
    takes_turns = True

    def open(self, experiment: Experiment, say: Say, ask: Ask | None) -> Launcher:
        """Return the launcher, which keeps nothing of a run."""
        return Here()


class Here:
    """Runs every trial on this machine."""

    name = "here"
    width = 1
    measures_here = True

    def trials(self, blocks: Iterable[list[Slot]], work: Work) -> Iterator[Trial]:
        """Run one trial at a time, as a second one would disturb it, or let them take turns."""
        for block in blocks:
            for group in work.groups(block):
                work.begins(group[0])
                yield from work.run_group(group)

    def interrupted(self) -> None:
        """Leave nothing to do: a trial of this machine has ended with the interrupt."""
