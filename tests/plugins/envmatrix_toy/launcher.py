"""A launcher that runs every block on this machine, in reverse order, and logs that in the run's folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from envmatrix.engines.base import Engine, Prepared
from envmatrix.launchers.base import Ask, Launcher, LauncherKind, Option, Work
from envmatrix.plan import Slot
from envmatrix.plan.environment import Environment
from envmatrix.results import Trial
from envmatrix.system.progress import ProgressCallback
from envmatrix.trials.experiment_setup import Experiment


class ToyKind(LauncherKind):
    name = "toy"
    options = (Option("mark", "TEXT", "what is noted"), Option("time", "TIME", "is noted too", takes="duration"))
    forms = ("toy-script",)

    def open(self, experiment: Experiment, progress: ProgressCallback, ask: Ask | None) -> Launcher:
        return Backwards(experiment)

    def scripts(self, experiment: Experiment) -> list[str]:
        return [f"toy script of {experiment.run.name}"]

    def training_script(
        self, environment: Environment, engine: Engine, prepared: Prepared, preload: tuple[str, ...], form: str
    ) -> str:
        return f"# {form}: {environment.name} on {engine.name}"


@dataclass(frozen=True)
class Backwards:
    experiment: Experiment
    name: str = "toy"
    width: int = 1
    measures_here: bool = True

    def trials(self, blocks: Iterable[list[Slot]], work: Work) -> Iterator[Trial]:
        note = self.experiment.folder.path / "toy-launcher.txt"
        for block in blocks:
            for slot in reversed(block):
                work.begins(slot)
                yield work.run(slot)
                with note.open("a") as file:
                    file.write(f"{slot.trial} {dict(self.experiment.run.launcher_options)}\n")

    def interrupted(self) -> None:
        return None
