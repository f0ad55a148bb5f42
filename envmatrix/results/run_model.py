"""The content of run.json, written once when a run begins; `resume` appends its changes to history.jsonl."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, ValidationInfo, field_validator
from pydantic.json_schema import SkipJsonSchema

from envmatrix.matrix import Design
from envmatrix.matrix.model import Workload
from envmatrix.plan import Arm, Plan, arm_name, plan_of
from envmatrix.plan.environment import Environment, Library
from envmatrix.system.host import Host, parse_cpus

SCHEMA = 2


def _serialize_workloads(workloads: Mapping[str, Workload]) -> dict[str, object]:
    return {name: workload.model_dump(exclude_defaults=True) for name, workload in workloads.items()}


#: Options given to a launcher, by name.
LauncherOptions = Mapping[str, str | float | tuple[str, ...]]
Workloads = Annotated[Mapping[str, Workload], PlainSerializer(_serialize_workloads)]


def value_text(value: float | LauncherOptions) -> str:
    """Return a value as readable text."""
    return f"{value:g}" if isinstance(value, (int, float)) else json.dumps(dict(value))


class Change(BaseModel):
    """One line of history.jsonl: the changes of one `resume`, with its time and the version of envmatrix.

    ``looked`` is the number of blocks at an interim analysis that no earlier line records. Fields that are None did not
    change. ``launcher_options`` are all options valid from then on. ``was`` contains the previous values, for display.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_number: Literal[2] = Field(default=2, alias="schema")
    at: str
    envmatrix: str
    budget: float | None = Field(default=None, gt=0, description="seconds, for the whole run")
    target: float | None = Field(default=None, gt=0, lt=1)
    max_blocks: int | None = Field(default=None, ge=1, description="blocks at most, for the whole run")
    launcher_options: LauncherOptions | None = None
    looked: int | None = Field(default=None, ge=1, description="blocks that could be read by then")
    files: Mapping[str, str] = Field(
        default_factory=dict, exclude=True, description="written by 0.2.0 and before: unused"
    )
    was: Mapping[str, str] = Field(default_factory=dict)
    command: tuple[str, ...] = ()

    @property
    def what(self) -> str:
        """The kind of change: ``resumed``, or ``read`` if nothing was changed."""
        return "resumed" if self.changed_limits or self.launcher_options is not None else "read"

    def text(self) -> str:
        """Return the change as text: ``2026-11-21T10:00:00+00:00: budget 300 to 600 (envmatrix 0.1.0)``."""
        changes: dict[str, float | LauncherOptions] = dict(self.changed_limits)
        if self.launcher_options is not None:
            changes["launcher_options"] = self.launcher_options
        descriptions = [
            f"{name} {self.was.get(name, 'unknown')} to {value_text(value)}" for name, value in changes.items()
        ]
        descriptions = descriptions if self.looked is None else [f"after {self.looked} blocks", *descriptions]
        return f"{self.at}: {', '.join(descriptions)} (envmatrix {self.envmatrix})"

    @property
    def changed_limits(self) -> dict[str, float]:
        """The limits of the design that changed, by name."""
        limits = {"budget": self.budget, "target": self.target, "max_blocks": self.max_blocks}
        return {name: value for name, value in limits.items() if value is not None}


class SideOf(BaseModel):
    """One side of a run that compares two matrices: its name, and the sources of its images.

    The matrix and locks of each side are kept in the run's folder.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    matrix: str = Field(description="the matrix, or the run, that was named")
    matrix_digest: str
    libraries: tuple[Library, ...]


class Run(BaseModel):
    """Everything needed to understand and repeat a run.

    ``design`` includes the changes from ``history`` when read from disk. ``libraries`` are those of the whole matrix,
    which are in every image. ``images`` maps 'image@engine' to facts about it. ``skipped`` maps an arm's name to the
    reason it cannot run here. ``programs`` contains a digest of each file of a workload's own program, taken when the
    run began. ``launcher_options`` are options of the launcher outside the design. ``sides`` contains ``old`` and
    ``new`` if two matrices are compared; all other fields then describe the new one.
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
    programs: Mapping[str, Mapping[str, str]] = Field(default_factory=dict)
    libraries: tuple[Library, ...] = ()
    images: Mapping[str, Mapping[str, str]] = Field(default_factory=dict)
    skipped: Mapping[str, str] = Field(default_factory=dict)
    sides: Mapping[str, SideOf] = Field(default_factory=dict)
    launcher: str = "here"
    launcher_options: LauncherOptions = Field(default_factory=dict)
    parts: int = Field(default=1, ge=1, description="environments are dealt to so many blocks, each runs in one")
    command: tuple[str, ...] = ()
    shell_preload: str = Field(default="", description="LD_PRELOAD of the shell that began it, which no trial has")
    history: SkipJsonSchema[tuple[Change, ...]] = Field(default=(), exclude=True)

    @field_validator("name")
    @classmethod
    def _one_folder(cls, name: str) -> str:
        if name in ("", ".", "..") or "/" in name or "\0" in name:  # the name is also a folder name
            raise ValueError(f"{name!r} is not a valid folder name")
        return name

    @field_validator("environments")
    @classmethod
    def _check_cpu_lists(cls, environments: Mapping[str, Environment]) -> Mapping[str, Environment]:
        for environment in environments.values():
            for cpu_list in (environment.cpus, environment.memory_nodes):
                if cpu_list is not None and "{" not in cpu_list:
                    parse_cpus(cpu_list)
        return environments

    @field_validator("workloads")
    @classmethod
    def _check_workloads(cls, workloads: Mapping[str, Workload], info: ValidationInfo) -> Mapping[str, Workload]:
        missing = sorted({arm.workload for arm in info.data.get("arms", ())} - set(workloads))
        if missing:
            raise ValueError(f"{', '.join(missing)} is missing, but the plan uses it")
        return workloads

    @field_validator("sides")
    @classmethod
    def _check_sides(cls, sides: Mapping[str, SideOf], info: ValidationInfo) -> Mapping[str, SideOf]:
        named = {environment.side for environment in info.data.get("environments", {}).values()}
        if missing := sorted(named - {None, *sides}):
            raise ValueError(f"{', '.join(missing)} is missing, but an environment belongs to it")
        return sides

    @field_validator("arms")
    @classmethod
    def _check_unique_arms(cls, arms: tuple[Arm, ...]) -> tuple[Arm, ...]:
        if not arms:
            raise ValueError("the list is empty")
        names = Counter(arm_name(arm.environment, arm.workload, arm.engine) for arm in arms)  # names as in trials.jsonl
        twice = sorted(name for name, times in names.items() if times > 1)
        if twice:
            raise ValueError(f"{', '.join(twice)} is listed more than once")
        for arm, name in zip(arms, names, strict=True):
            if arm.name != name or (arm.reference is not None and arm.reference not in names):
                raise ValueError(
                    f"{arm.name} does not fit the plan: its trials would be {name}, compared with {arm.reference}"
                )
        return arms

    @property
    def has_generated_matrix(self) -> bool:
        """Return whether the matrix was generated for a program on the command line, so that no matrix file exists."""
        return self.command[:1] in (("bench",), ("tune",)) and "--" in self.command

    @property
    def more_blocks_command(self) -> str:
        """The subcommand that gives more blocks: to this run, or to a new one if this one is read once."""
        return f"bench {self.design.name}" if self.plan.read_once else f"resume {self.name}"

    @property
    def plan(self) -> Plan:
        """The plan of the run, with all changes applied."""
        looked = tuple(change.looked for change in self.history if change.looked is not None)
        return plan_of(self.design, self.arms, looked, self.parts)

    def changed(self, changes: Iterable[Change]) -> Run:
        """Return the run with further changes applied."""
        design, options, history = self.design, self.launcher_options, (*self.history, *changes)
        for change in history[len(self.history) :]:
            design = design.model_copy(update=change.changed_limits)
            options = options if change.launcher_options is None else change.launcher_options
        return self.model_copy(update={"design": design, "launcher_options": options, "history": history})
