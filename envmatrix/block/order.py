"""The order of a block: what a node starts, how, and where it leaves what came of it; a JSON document."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from envmatrix.block.process import Place

#: Exit statuses of a job that stopped by itself.
NO_PYTHON, CANNOT_WRITE, NO_MODULE, NO_PIPES, NOT_SEEN, OTHER_NODE, BUSY = 65, 66, 67, 68, 69, 75, 76


@dataclass(frozen=True)
class TrialOrder:
    """One trial: its process, and its time limit in seconds. ``nodes`` is how many nodes it is spread over.

    ``env`` is the whole environment but for the variables of ``keep``, which it takes from the job. ``program`` is the
    folder of the user's own program, its path inside the environment, and its metric file. ``needs`` are paths that
    each of its nodes must see. Of one that takes turns,
    ``pauses_itself`` says that it stops its program between them; ``apart`` steps of each count in nothing.
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


@dataclass(frozen=True)
class Turns:
    """How trials take turns of ``steps`` each (0: of all they have, once), in rounds drawn with ``seed`` and ``block``.

    As many as ``at_once`` get ready at the same time (0: as many as there are CPUs). Where less memory is free than
    ``needs`` bytes take, they run one after the other.
    """

    seed: int
    block: int
    steps: int
    needs: int
    at_once: int = 0


@dataclass(frozen=True)
class Part:
    """What ends as one, in a folder called ``name``: one trial, or several that live together and take ``turns``."""

    name: str
    trials: Sequence[TrialOrder]
    turns: Turns | None = None


@dataclass(frozen=True)
class BlockOrder:
    """What one job does, part after part, in ``folder``, which the node shares with whoever ordered it.

    More than ``busy`` of a node's CPUs in use by others ends the job.
    What cannot be written is tried again for ``patience_s`` seconds.
    """

    title: str
    folder: str
    attempt: int
    parts: Sequence[Part]
    busy: float = 1.0
    patience_s: float = 60.0

    @property
    def trials(self) -> list[TrialOrder]:
        """All of its trials."""
        return [trial for part in self.parts for trial in part.trials]

    @property
    def needs(self) -> list[str]:
        """The paths that each node must see."""
        return sorted({path for trial in self.trials for path in trial.needs})

    @property
    def nodes(self) -> int:
        """How many nodes the job takes: as many as the trial that is spread the widest."""
        return max((trial.nodes for trial in self.trials), default=1)

    def folder_of(self, part: Part, trial: TrialOrder) -> Path:
        """Return the folder that a trial has while its part runs: its work folder and its log lie there."""
        whole = Path(self.folder, f"{part.name}.try{self.attempt}")
        return whole / trial.name if part.turns else whole

    def text(self, indent: int | None = None) -> str:
        """Return the XML document."""
        return json.dumps(asdict(self), indent=indent, default=str) + "\n"


def read_order(file: Path) -> BlockOrder:
    """Read the document."""
    body = json.loads(file.read_text(encoding="utf-8"))
    return replace(BlockOrder(**body), parts=[_part(part) for part in body["parts"]])


def _part(body: dict[str, Any]) -> Part:
    turns = Turns(**body["turns"]) if body["turns"] else None
    return Part(body["name"], [_trial(trial) for trial in body["trials"]], turns)


def _trial(body: dict[str, Any]) -> TrialOrder:
    place = body["place"]
    placed = Place(tuple(place["cpus"]), tuple(place["memory_nodes"]), (), place["data_bytes"])
    return replace(TrialOrder(**body), place=placed)
