"""What every launcher does: take blocks as they become due, and give back their trials."""

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
    from envmatrix.results.run import LauncherOptions
    from envmatrix.system.host import Host
    from envmatrix.system.progress import ProgressCallback
    from envmatrix.trials.batches import TrialGrouper
    from envmatrix.trials.experiment import Experiment

#: Asks the user a yes-or-no question.
Ask = Callable[[str], bool]


class Work(Protocol):
    """What the runner offers to a launcher."""

    def run(self, slot: Slot) -> Trial:
        """Run one trial on this machine, to its end."""

    @property
    def groups_of(self) -> TrialGrouper:
        """What parts blocks, for a launcher that starts trials by a script."""

    def groups(self, block: list[Slot]) -> list[list[Slot]]:
        """Part a block into trials that live together and take turns, each of a group of one runs alone."""

    def run_group(self, group: list[Slot]) -> Iterator[Trial]:
        """Run the trials of a group on this machine, to the end of all."""

    def begins(self, slot: Slot, together: int = 1) -> None:
        """Tell whoever watches that a trial begins, or ``together`` of them that take turns."""

    def is_done(self, trial: str) -> bool:
        """Say whether a trial is on disk in trials.jsonl."""


def check_race(*, race: bool, width: int) -> None:
    """Refuse a race over blocks that run side by side."""
    if race and width > 1:
        raise InputError(
            "a race decides after every block, so blocks cannot run side by side",
            remedy="set `race: false` in the design, or ask for one node",
        )


def check_commands(kind: str, engines: Sequence[Engine]) -> None:
    """Refuse an engine whose jobs are no commands, for a launcher that hands scripts to other machines."""
    from envmatrix.engines.base import RunsAsCommand

    foreign = next((engine.name for engine in engines if not isinstance(engine, RunsAsCommand)), None)
    if foreign:
        raise EngineError(
            f"engine {foreign} needs its own service on every node, so launcher {kind} cannot use it",
            remedy="`envmatrix list engines` says which run as a command",
        )


class Launcher(Protocol):
    """Where trials run. ``blocks`` is asked for the next block only when there is room for one.

    All trials of a block run on the same machine, one at a time, in the block's order, or in turns. ``width`` is how
    many blocks run at once; ``measures_here`` whether they run on this machine, which must then be left alone.
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


@runtime_checkable
class RunsElsewhere(Protocol):
    """A launcher whose trials go on where they are when the run itself stops."""

    def out(self) -> str:
        """Say what still runs, '' for nothing."""


@dataclass(frozen=True)
class Option:
    """One option of a launcher on the command line, ``--NAME``: a text, names in a list, or a duration in seconds."""

    name: str
    metavar: str
    help: str
    takes: Literal["text", "names", "duration"] = "text"


class LauncherKind(Protocol):
    """One word of ``--launcher``: what is asked of it before a run begins, and what then opens the run's launcher.

    A class that inherits from this one has the answers that stand here: no options, one machine, this one.
    """

    @property
    def name(self) -> str:
        """The word that ``--launcher`` uses."""

    @property
    def options(self) -> tuple[Option, ...]:
        """What it adds to the command line; no heavy import for this one, `--help` asks for it."""
        return ()

    @property
    def takes_turns(self) -> bool:
        """Whether trials of a block can live together there (``schedule: turns``)."""
        return False

    @property
    def spans_nodes(self) -> bool:
        """Whether it can spread one trial over several nodes."""
        return False

    def unavailable(self) -> str | None:
        """Say why this launcher cannot be used here and what to do about it, or None when it can."""
        return None

    def width(self, design: Design, asked: LauncherOptions, span: int) -> int:
        """Return how many blocks run side by side, each on ``span`` nodes; an InputError for what is asked wrongly."""
        return 1

    def look(
        self, design: Design, asked: LauncherOptions, engines: Sequence[Engine], span: int, progress: ProgressCallback
    ) -> Host | None:
        """Look at the machine that trials will run on before anything is built; None: it is this one.

        Raises InputError or EngineError where it cannot run the design.
        """
        return None

    def open(self, experiment: Experiment, progress: ProgressCallback, ask: Ask | None) -> Launcher:
        """Return the launcher of a run; ``ask`` is None where nobody can answer."""


@runtime_checkable
class LimitsBlocks(Protocol):
    """A launcher under which a block may take so long only."""

    def check_block(self, design: Design, asked: LauncherOptions, span: int, trials: int, in_turns: int) -> None:
        """Refuse blocks of so many trials (some take turns) if they may take longer; nothing is built yet."""


@runtime_checkable
class ShowsScripts(Protocol):
    """A launcher that hands scripts over, and so can show them first (``--dry-run``)."""

    def scripts(self, experiment: Experiment) -> list[str]:
        """Return the scripts of the blocks that would be handed over first."""


@runtime_checkable
class ExportsScripts(Protocol):
    """A launcher that writes a script for the user's own training (``export --as FORM``)."""

    @property
    def forms(self) -> tuple[str, ...]:
        """The words that ``export --as`` takes for it."""

    def training_script(
        self, environment: Environment, engine: Engine, prepared: Prepared, preload: tuple[str, ...], form: str,
        program: Workload | None = None,
    ) -> str:  # fmt: skip
        """Return a script that a person can edit and submit; ``program`` is only given if a run measured one."""
