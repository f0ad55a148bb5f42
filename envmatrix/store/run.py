"""run.json: what a run began with. Written once; what `resume` changes is a line of history.jsonl."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, field_validator
from pydantic.json_schema import SkipJsonSchema

from envmatrix.host import Host
from envmatrix.matrix import Design, Slurm
from envmatrix.matrix.model import Workload
from envmatrix.plan import Arm, Plan, arm_name, plan_of
from envmatrix.plan.environment import Environment, Library

SCHEMA = 2


def _written(workloads: Mapping[str, Workload]) -> dict[str, object]:
    return {name: workload.model_dump(exclude_defaults=True) for name, workload in workloads.items()}


Workloads = Annotated[Mapping[str, Workload], PlainSerializer(_written)]


def shown(value: float | Slurm) -> str:
    """Write a value of a design as people read it; of Slurm's part only what differs from what it is by itself."""
    if isinstance(value, Slurm):
        return json.dumps(value.model_dump(exclude_defaults=True))
    return f"{value:g}"


class Change(BaseModel):
    """One line of history.jsonl: what a `resume` changed of the design, when, and with which version of this tool.

    None: left as it was. ``was`` holds the values before, for people.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_number: Literal[2] = Field(default=2, alias="schema")
    at: str
    envmatrix: str
    budget: float | None = Field(default=None, gt=0, description="seconds, for the whole run")
    target: float | None = Field(default=None, gt=0, lt=1)
    slurm: Slurm | None = None
    was: Mapping[str, str] = Field(default_factory=dict)
    command: tuple[str, ...] = ()

    def text(self) -> str:
        """Say what changed, for people: ``2026-11-21T10:00:00+00:00: budget 300 to 600 (envmatrix 0.1.0)``."""
        asked = self._asked()
        said = [f"{name} {self.was.get(name, 'unknown')} to {shown(value)}" for name, value in asked.items()]
        return f"{self.at}: {', '.join(said)} (envmatrix {self.envmatrix})"

    def _asked(self) -> dict[str, float | Slurm]:
        found = {"budget": self.budget, "target": self.target, "slurm": self.slurm}
        return {name: value for name, value in found.items() if value is not None}

    def laid_over(self, design: Design) -> Design:
        """Return the design with what this changed."""
        return design.model_copy(update=self._asked())


class Run(BaseModel):
    """All that is needed to understand and to repeat a run.

    ``design`` is the design as it stands: read from disk, what ``history`` changed is laid over it. ``libraries`` are
    those of the whole matrix, which every image holds (None: a run of schema 1, whose matrix says it); ``images``
    maps 'image@engine' to its facts, ``skipped`` an arm's name to why it cannot be run here.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_number: Literal[2] = Field(default=2, alias="schema")
    name: str
    created: str
    design: Design
    arms: tuple[Arm, ...]
    matrix_digest: str
    bench_digest: str
    host: Host
    versions: Mapping[str, str]
    environments: Mapping[str, Environment]
    workloads: Workloads
    libraries: tuple[Library, ...] | None = None
    images: Mapping[str, Mapping[str, str]] = Field(default_factory=dict)
    skipped: Mapping[str, str] = Field(default_factory=dict)
    launcher: str = "here"
    command: tuple[str, ...] = ()
    history: SkipJsonSchema[tuple[Change, ...]] = Field(default=(), exclude=True)

    @field_validator("arms")
    @classmethod
    def _once(cls, arms: tuple[Arm, ...]) -> tuple[Arm, ...]:
        names = Counter(arm_name(arm.environment, arm.workload, arm.engine) for arm in arms)  # as trials name them
        twice = sorted(name for name, times in names.items() if times > 1)
        if twice:
            msg = f"{', '.join(twice)} stands there more than once"
            raise ValueError(msg)
        return arms

    @property
    def plan(self) -> Plan:
        """The plan of the run, as it stands."""
        return plan_of(self.design, self.arms)

    def changed(self, changes: Iterable[Change]) -> Run:
        """Return the run after further changes."""
        design, history = self.design, (*self.history, *changes)
        for change in history[len(self.history) :]:
            design = change.laid_over(design)
        return self.model_copy(update={"design": design, "history": history})
