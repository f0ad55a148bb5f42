"""The folder of a search, results/STUDY/: study.json, written once, and one run per step; it resumes from these."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from envmatrix.errors import StoreError, Where
from envmatrix.matrix import Matrix
from envmatrix.matrix.model import Design
from envmatrix.plan.environment import resolve_environment
from envmatrix.results.document_checks import first_mistake, require_exact_schema
from envmatrix.results.folder import RunFolder
from envmatrix.results.run_model import LauncherOptions
from envmatrix.search.next_trials import Search
from envmatrix.search.space import build_space
from envmatrix.stats.meta_analysis.effects_for_ordering import KnownEffect
from envmatrix.system.atomic_files import (
    append_line,
    read_text,
    read_whole_lines,
    remove_partial_line,
    store_errors,
    write_whole,
)
from envmatrix.system.host import Host, this_host
from envmatrix.system.json_parsing import parse_json, parse_json_line

SCHEMA = 1
_RESTORE_REMEDY = "restore the file from a copy"


class Place(BaseModel):
    """Where the trials of a search run: a launcher, its options, and the number of blocks in parallel.

    ``host`` is the machine that they run on (None: this one).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    launcher: str
    options: LauncherOptions = Field(default_factory=dict)
    width: int = Field(default=1, ge=1)
    host: Host | None = None


class Study(BaseModel):
    """The parameters of a search. ``budget`` is in seconds, ``factors`` are the levels to search.

    ``design`` has the workload, baseline, engine and limits of every trial. ``trial_s`` is the program's time before
    the search (None: unknown). ``place`` is where trials run (None: the machine that resumes it). ``sampler`` is
    Optuna's proposer ('': none). ``asked``: the user gave the budget, which is then never exceeded. ``known``: effects
    in an atlas, which order the candidates.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_number: Literal[1] = Field(default=1, alias="schema")
    name: str
    created: str
    envmatrix: str
    design: Design
    budget: float = Field(gt=0)
    factors: Mapping[str, tuple[str, ...]]
    named: tuple[str, ...] = ()
    trial_s: float | None = None
    place: Place | None = None
    sampler: str = ""
    asked: bool = True
    known: tuple[KnownEffect, ...] = ()


class StudyFolder:
    """The folder of one search."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = path / "study.json"
        self.sessions_file = path / "sessions.jsonl"
        self._whole = RunFolder(path)

    @property
    def has_no_steps(self) -> bool:
        """Whether a search ended before its first step began, so that it can start again without loss."""
        return self.file.exists() and not self.steps() and not self._whole.is_written()

    def lock(self) -> None:
        """Lock the search until ``unlock`` or the end of this process; raise a StoreError if another process has it."""
        self._whole.lock()

    def unlock(self) -> None:
        """Release the lock."""
        self._whole.unlock()

    def create(self, study: Study) -> None:
        """Make the folder and write study.json."""
        with store_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        write_whole(self.file, json.dumps(study.model_dump(mode="json", by_alias=True), indent=1) + "\n")

    def load(self) -> Study:
        """Read study.json. Raises StoreError."""
        body = require_exact_schema(parse_json(read_text(self.file), self.file), self.file, SCHEMA)
        try:
            return Study.model_validate(body)
        except ValidationError as error:
            message = f"this is not a study.json that envmatrix wrote ({first_mistake(error)[1]})"
            raise StoreError(message, where=Where(self.file), remedy=_RESTORE_REMEDY) from error

    def note_session(self, at: float) -> None:
        """Record that the search began or resumed ``at`` this time (seconds since the epoch)."""
        remove_partial_line(self.sessions_file, self.path / "sessions.half-written")
        append_line(self.sessions_file, json.dumps({"schema": SCHEMA, "began": round(at, 3)}))

    def sessions(self) -> tuple[float, ...]:
        """Return when the search began and was resumed (seconds since the epoch); () if not recorded."""
        starts = []
        for number, line in read_whole_lines(self.sessions_file):
            body = parse_json_line(line.decode(errors="replace"), self.sessions_file, number, _RESTORE_REMEDY)
            began = require_exact_schema(body, self.sessions_file, SCHEMA, number).get("began")
            if not isinstance(began, (int, float)):
                message = "this line has no time at which the search continued"
                raise StoreError(message, where=Where(self.sessions_file, number), remedy=_RESTORE_REMEDY)
            starts.append(float(began))
        return tuple(starts)

    def steps(self) -> list[RunFolder]:
        """Return the runs of the steps, in order."""
        folders = [file.parent for file in self.path.glob("[0-9]*/run.json")]
        return [RunFolder(path) for path in sorted(folders, key=lambda path: (int(path.name.split("-")[0]), path.name))]


def make_search(matrix: Matrix, study: Study, began: Host | None = None) -> Search:
    """Return the search of a study for its host; ``began``: the host where it began, to read it anywhere."""
    location, design = study.place, study.design
    host = location.host if location else None
    facts = (host or began or this_host()).facts()
    environment_names = [name for name in study.named if _has_searched_levels(matrix, name, study, facts)]
    space = build_space(matrix, study.factors, environment_names, design.baseline, facts)
    return Search(space, design.seed, location.width if location else 1, study.sampler, study.known)


def _has_searched_levels(matrix: Matrix, name: str, study: Study, facts: Mapping[str, str]) -> bool:
    """Return whether an environment differs from the baseline only in levels that are searched."""
    env_levels, baseline_levels = (
        resolve_environment(matrix, env_name, facts).levels for env_name in (name, study.design.baseline)
    )
    return all(
        level == baseline_levels[factor] or level in study.factors.get(factor, ())
        for factor, level in env_levels.items()
    )
