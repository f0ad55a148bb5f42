"""The order of a block: the processes that a node starts, and where it writes the results; a JSON document."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from envmatrix.block.process import Place

#: Exit statuses of a job that stopped by itself.
NO_PYTHON, CANNOT_WRITE, NO_MODULE, NO_PIPES, NOT_SEEN, OTHER_NODE, BUSY, DELETED = 65, 66, 67, 68, 69, 75, 76, 77


@dataclass(frozen=True)
class TrialOrder:
    """One trial: its process, and its time limit in seconds. ``nodes`` is how many nodes it is spread over.

    ``env`` is the whole environment except the variables in ``keep``, which are taken from the job. ``program`` is the
    folder of the user's own program, its path inside the environment, and its metric file. ``needs`` are paths that
    each of its nodes must be able to read. ``srun``: options with which Slurm's srun starts it. If it is interleaved,
    ``pauses_itself``: it pauses its program between turns; ``apart``: untimed steps at the start of each turn.
    """

    name: str
    title: str
    argv: Sequence[str]
    env: Mapping[str, str]
    limit_s: float
    keep: Sequence[str] = ()
    place: Place = field(default_factory=Place)
    needs: Sequence[str] = ()
    nodes: int = 1
    program: Sequence[str] | None = None
    pauses_itself: bool = False
    apart: int = 0
    srun: Sequence[str] = ()

    @property
    def by_srun(self) -> bool:
        """Whether srun starts it: over several nodes, or with options of its own."""
        return self.nodes > 1 or bool(self.srun)


@dataclass(frozen=True)
class Turns:
    """Interleaving in turns of ``steps`` (0: all steps, in one turn); ``seed`` and ``block`` determine the order.

    At most ``at_once`` processes get ready at the same time (0: one per CPU). If fewer than ``needs`` bytes of memory
    are free, the trials run one after the other.
    """

    seed: int
    block: int
    steps: int
    needs: int
    at_once: int = 0


@dataclass(frozen=True)
class Part:
    """A part of a block with one result folder, ``name``: one trial, or several that run side by side in ``turns``."""

    name: str
    trials: Sequence[TrialOrder]
    turns: Turns | None = None


@dataclass(frozen=True)
class BlockOrder:
    """The parts that one job runs in sequence, in ``folder``, which the node shares with the host.

    The job stops if others use more than ``busy`` of a node's CPUs (a fraction).
    Failed writes are retried for ``patience_s`` seconds.
    """

    title: str
    folder: str
    attempt: int
    parts: Sequence[Part]
    busy: float = 1.0
    patience_s: float = 60.0

    @property
    def trials(self) -> list[TrialOrder]:
        """All trials of its parts."""
        return [trial for part in self.parts for trial in part.trials]

    @property
    def needs(self) -> list[str]:
        """The paths that each node must be able to read."""
        return sorted({path for trial in self.trials for path in trial.needs})

    @property
    def nodes(self) -> int:
        """How many nodes the job needs: the most that one of its trials is spread over."""
        return max((trial.nodes for trial in self.trials), default=1)

    def folder_of(self, part: Part, trial: TrialOrder | None = None) -> Path:
        """Return the folder of a part while it runs, or of a trial, which contains its work folder and its log."""
        whole = Path(self.folder, f"{part.name}.try{self.attempt}")
        return whole / trial.name if part.turns and trial else whole

    def text(self, indent: int | None = None) -> str:
        """Return the JSON document."""
        return json.dumps(asdict(self), indent=indent, default=str) + "\n"


def read_order(file: Path) -> BlockOrder:
    """Read an order from its JSON file."""
    body = json.loads(file.read_text(encoding="utf-8"))
    return replace(BlockOrder(**body), parts=[_part(part) for part in body["parts"]])


def _part(body: dict[str, Any]) -> Part:
    turns = Turns(**body["turns"]) if body["turns"] else None
    return Part(body["name"], [_trial(trial) for trial in body["trials"]], turns)


def _trial(body: dict[str, Any]) -> TrialOrder:
    place = body["place"]
    placed = Place(tuple(place["cpus"]), tuple(place["memory_nodes"]), (), place["data_bytes"])
    return replace(TrialOrder(**body), place=placed)
