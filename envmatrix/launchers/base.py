"""Interfaces of launchers: a launcher receives blocks, runs their trials and yields the results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from envmatrix.errors import EngineError, InputError

if TYPE_CHECKING:
    from envmatrix.engines.base import Engine, Prepared
    from envmatrix.matrix import Design
    from envmatrix.matrix.model import Workload
    from envmatrix.plan import Slot
    from envmatrix.plan.environment import Environment
    from envmatrix.results import Trial
    from envmatrix.results.run_model import LauncherOptions
    from envmatrix.system.host import Host
    from envmatrix.system.progress import ProgressCallback
    from envmatrix.trials.concurrent_trial_groups import TrialGrouper
    from envmatrix.trials.experiment_setup import Experiment

#: Asks the user a yes-or-no question and returns the answer.
Ask = Callable[[str], bool]


class Work(Protocol):
    """The runner's functions that a launcher can call."""

    def run(self, slot: Slot) -> Trial:
        """Run one trial on this machine until it ends."""

    @property
    def groups_of(self) -> TrialGrouper:
        """The object that splits blocks into groups of trials that run together; a trial alone runs separately."""

    def run_group(self, group: list[Slot]) -> Iterator[Trial]:
        """Run the trials of a group on this machine until all have ended."""

    def begins(self, slot: Slot, together: int = 1) -> None:
        """Report that a trial starts, or that ``together`` trials start side by side."""

    def is_done(self, trial: str) -> bool:
        """Return whether a trial is in trials.jsonl on disk."""


def check_race(*, race: bool, width: int) -> None:
    """Reject a race if blocks run at the same time."""
    if race and width > 1:
        raise InputError(
            "a race decides after every block, so blocks cannot run side by side",
            remedy="set `race: false` in the design, or ask for one node",
        )


def refuse_engines_without_commands(kind: str, engines: Sequence[Engine]) -> None:
    """Reject an engine whose jobs are not commands, for a launcher that sends scripts to other machines."""
    from envmatrix.engines.base import RunsAsCommand

    foreign = next((engine.name for engine in engines if not isinstance(engine, RunsAsCommand)), None)
    if foreign:
        raise EngineError(
            f"engine {foreign} needs its own service on every node, so launcher {kind} cannot use it",
            remedy="`envmatrix list engines` says which run as a command",
        )


class Launcher(Protocol):
    """Where trials run. A launcher takes the next of ``blocks`` only when it has a free place for it.

    All trials of a block run on the same machine, in the block's order or interleaved. If ``measures_here`` is true,
    they run on this machine, which must then stay idle otherwise.
    """

    @property
    def name(self) -> str:
        """The value of ``--launcher`` that selects it."""

    @property
    def width(self) -> int:
        """How many blocks run at the same time."""

    @property
    def measures_here(self) -> bool:
        """Whether trials run on this machine."""

    def trials(self, blocks: Iterable[list[Slot]], work: Work) -> Iterator[Trial]:
        """Run the blocks and yield each trial as soon as it has ended.

        The caller writes each yielded trial to disk before it asks for the next one.
        """

    def interrupted(self) -> None:
        """Handle trials that are still running elsewhere after a Ctrl-C or SIGTERM."""


@runtime_checkable
class RunsElsewhere(Protocol):
    """A launcher whose trials continue to run when envmatrix stops."""

    def out(self) -> str:
        """Return a line about what is still running, '' if nothing is."""


@dataclass(frozen=True)
class Option:
    """A command-line option of a launcher, ``--NAME``; ``takes``: a text, a list of names, or a duration in seconds."""

    name: str
    metavar: str
    help: str
    takes: Literal["text", "names", "duration"] = "text"


class LauncherKind(Protocol):
    """A value of ``--launcher``: checks before a run starts, and opens the run's launcher.

    Inherit from this class to get its defaults: no options, one block at a time, on this machine.
    """

    @property
    def name(self) -> str:
        """The value of ``--launcher`` that selects it."""

    #: Its command-line options.
    options: tuple[Option, ...] = ()
    #: Whether it can interleave the trials of a block (``schedule: turns``).
    takes_turns: bool = False
    #: Whether it never ran on a real system of its kind.
    experimental: bool = False
    #: Whether it can spread one trial over several nodes.
    spans_nodes: bool = False

    def unavailable(self) -> str | None:
        """Return why this launcher cannot be used here and what to do about it; None if it can be used."""
        return None

    def width(self, design: Design, asked: LauncherOptions, span: int) -> int:
        """Return how many blocks run at the same time, each on ``span`` nodes. Raises InputError for bad options."""
        return 1

    def check_and_find_host(
        self, design: Design, asked: LauncherOptions, engines: Sequence[Engine], span: int, progress: ProgressCallback
    ) -> Host | None:
        """Inspect the machine that trials will run on, before anything is built; None: this machine.

        Raises InputError or EngineError if it cannot run the design.
        """
        return None

    def open(self, experiment: Experiment, progress: ProgressCallback, ask: Ask | None) -> Launcher:
        """Return the launcher of a run; ``ask`` is None if nobody can answer questions."""


@runtime_checkable
class LimitsBlocks(Protocol):
    """A launcher that limits how long a block may take."""

    def check_block(self, design: Design, asked: LauncherOptions, span: int, trials: int, in_turns: int) -> None:
        """Reject blocks that could exceed the time limit; ``in_turns`` of their ``trials`` are interleaved."""


@runtime_checkable
class ShowsScripts(Protocol):
    """A launcher that submits scripts and can show them first (``--dry-run``)."""

    def scripts(self, experiment: Experiment) -> list[str]:
        """Return the scripts of the blocks that would be submitted first."""


@runtime_checkable
class ExportsScripts(Protocol):
    """A launcher that writes a script for the user's own training (``export --as FORM``)."""

    @property
    def forms(self) -> tuple[str, ...]:
        """The values of ``export --as`` that it handles."""

    def training_script(
        self,
        environment: Environment,
        engine: Engine,
        prepared: Prepared,
        preload: tuple[str, ...],
        form: str,
        program: Workload | None = None,
    ) -> str:
        """Return a script that the user can edit and submit; ``program``: the program that a run measured, if any."""
