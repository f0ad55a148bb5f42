"""The launcher ``here``: runs trials on this machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from envmatrix.errors import NothingRanError
from envmatrix.launchers.base import Ask, Launcher, LauncherKind, Work
from envmatrix.system.host import has_any_gpu

if TYPE_CHECKING:
    from envmatrix.engines.base import Engine
    from envmatrix.matrix import Design
    from envmatrix.plan import Slot
    from envmatrix.results import Trial
    from envmatrix.results.run_model import LauncherOptions
    from envmatrix.system.progress import ProgressCallback
    from envmatrix.trials.experiment_setup import Experiment


class LocalLauncherKind(LauncherKind):
    """The kind ``here``: this machine."""

    name = "here"
    takes_turns = True

    def check_and_find_host(
        self, design: Design, asked: LauncherOptions, engines: Sequence[Engine], span: int, progress: ProgressCallback
    ) -> None:
        """Reject a design for GPUs if there is none: an engine that assigns no GPUs would run it on the CPU."""
        _check_gpus(design)

    def open(self, experiment: Experiment, progress: ProgressCallback, ask: Ask | None) -> Launcher:
        """Return the launcher. It stores nothing about a run, so a run may be resumed on another machine."""
        _check_gpus(experiment.run.design)
        return Here()


def _check_gpus(design: Design) -> None:
    if design.gpus and not has_any_gpu():
        raise NothingRanError(
            f"design {design.name!r} asks for GPUs, and this machine has none that it shows (no /dev/nvidia0)",
            remedy="run it where there is one (in a container: start it with its GPUs), "
            "or take `gpus` out of the design: its trials then run on the CPU",
        )


class Here:
    """Runs every trial on this machine."""

    name = "here"
    width = 1
    measures_here = True

    def trials(self, blocks: Iterable[list[Slot]], work: Work) -> Iterator[Trial]:
        """Run one group at a time: a single trial, as a second one would disturb it, or interleaved trials."""
        for block in blocks:
            for group in work.groups_of.of(block):
                work.begins(group[0], len(group))
                yield from work.run_group(group)

    def interrupted(self) -> None:
        """Do nothing: the interrupt has already ended the trial on this machine."""
