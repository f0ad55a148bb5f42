"""What every launcher does: take blocks as they become due, and give back their trials."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from envmatrix.errors import InputError
from envmatrix.plan import Slot
from envmatrix.store import Trial


class Work(Protocol):
    """What the runner offers to a launcher."""

    def run(self, slot: Slot) -> Trial:
        """Run one trial on this machine, to its end."""

    def begins(self, slot: Slot) -> None:
        """Tell whoever watches that a trial begins."""

    def is_done(self, trial: str) -> bool:
        """Say whether a trial is on disk in trials.jsonl."""


def check_race(*, race: bool, width: int) -> None:
    """Refuse a race over blocks that run side by side."""
    if race and width > 1:
        raise InputError(
            "a race decides after every block, so blocks cannot run side by side",
            remedy="set `race: false` in the design, or ask for one node",
        )


def check_span(spread: Mapping[str, int], launcher: str) -> None:
    """Refuse workloads (name -> how many nodes it is spread over) that a launcher cannot place."""
    wide = next((name for name, nodes in spread.items() if nodes > 1), None)
    if wide and launcher != "slurm":
        raise InputError(
            f"workload {wide!r} is spread over {spread[wide]} nodes, and launcher {launcher} has one",
            remedy="use `--launcher slurm`, or start it by hand on each machine (docs/parallel.md)",
        )


class Launcher(Protocol):
    """Where trials run. ``blocks`` is asked for the next block only when there is room for one.

    All trials of a block run on the same machine, one at a time, in the block's order. ``width`` is how many
    blocks run at once; ``measures_here`` whether they run on this machine, which must then be left alone.
    """

    @property
    def name(self) -> str:
        """The word that ``--launcher`` uses."""

    @property
    def width(self) -> int:
        """How many blocks run at once."""

    @property
    def measures_here(self) -> bool:
        """Whether trials run on this machine."""

    def trials(self, blocks: Iterable[list[Slot]], work: Work) -> Iterator[Trial]:
        """Run the blocks and yield each trial as soon as it has ended.

        What is yielded is on disk before the next one is asked for.
        """

    def interrupted(self) -> None:
        """Deal with what still runs elsewhere after a Ctrl-C or SIGTERM."""
