"""Immutable types of matrix.yaml. Scalars arrive as the text the user wrote, and each field converts them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Annotated, Literal

from packaging.utils import canonicalize_name
from pydantic import AfterValidator, Field, model_validator

from envmatrix.matrix import field_types
from envmatrix.matrix.field_types import (
    Command,
    Folder,
    ProgramVariable,
    SlurmOption,
    SlurmWord,
    SrunOptions,
    WrittenVariable,
)
from envmatrix.matrix.metric_sources import WALL_TIME, Check, MetricSource, ReportedNumber
from envmatrix.matrix.value_types import AS_SCALAR, SOME_WORDS, Bytes, Frozen, ListOf, Percent, Seconds, Text, about
from envmatrix.system.bench_options import OptionValue

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*\Z")
MAX_NAME_LENGTH = 80


def _check_unique(words: tuple[str, ...]) -> tuple[str, ...]:
    """Reject duplicates: two environments with the same name would be indistinguishable."""
    duplicate = next((word for word in words if words.count(word) > 1), None)
    if duplicate is not None:
        raise ValueError(f"{duplicate!r} is listed twice")
    return words


Words = ListOf[Text]
Names = Annotated[Words, AfterValidator(_check_unique)]


class SourceBuild(Frozen):
    """Build instructions for a package that has no wheel and is built from its source distribution."""

    env: Mapping[field_types.LevelVariable, Text] = Field(
        default_factory=dict, description="environment variables for the build"
    )
    edit: Mapping[field_types.SourceFile, Mapping[str, Annotated[str, AS_SCALAR]]] = Field(
        default_factory=dict, description="source file -> text in it -> replacement"
    )
    programs: ListOf[field_types.Program] = Field(
        (), description="programs that the build needs on this machine, such as cmake"
    )


class Level(Frozen):
    """One level of a factor: what it installs in the image, and what it sets when a process starts."""

    description: Text = Field("", description="one line, shown in lists and reports")
    python: field_types.PythonVersion | None = Field(
        None, description="Python version of the image, such as '3.11'; default: the host's"
    )
    requirements: ListOf[field_types.Requirement] = Field(
        (), description="pip requirements, or files of them (`-r FILE`)"
    )
    build: Mapping[Text, SourceBuild] = Field(
        default_factory=dict, description="requirement -> how to build it from source if it has no wheel"
    )
    index: field_types.Argument | None = Field(None, description="additional package index, skipped when unreachable")
    apt: ListOf[field_types.DebianPackage] = Field(
        (), description="Debian packages; 'a | b' uses the first one that the suite has"
    )
    suite: field_types.Suite | None = Field(None, description="Debian suite of the image")
    base: field_types.BaseImage | None = Field(None, description="base image, name@sha256:digest")
    image: field_types.ReadyImage | None = Field(
        None, description="a ready-made image: a reference, a local tag, a Docker archive or a SIF file"
    )
    interpreter: field_types.Argument | None = Field(
        None, description="a Python with torch that is already installed on this machine"
    )
    conda: ListOf[field_types.Argument] = Field(
        (), description="conda packages, including Python, such as python=3.11 and pytorch"
    )
    channels: ListOf[field_types.Argument] = Field(
        (), description="conda channels: names, URLs or folders; default: conda-forge"
    )
    modules: ListOf[field_types.Module] = Field(
        (), description="environment modules that provide a Python with torch, such as PyTorch/2.9"
    )
    env: Mapping[field_types.LevelVariable, Text | None] = Field(
        default_factory=dict, description="environment variables; null: unset"
    )
    preload: ListOf[field_types.LibraryFile] = Field(
        (), description="libraries for LD_PRELOAD: file names, or absolute paths"
    )
    cpus: field_types.CpuList | None = Field(None, description="CPUs that the process starts on, such as 0-3")
    memory_nodes: field_types.CpuList | None = Field(
        None, description="NUMA nodes to allocate its memory on, such as 0"
    )
    srun: SrunOptions = Field((), description="options of Slurm's srun, such as --cpu-bind=cores (launcher slurm only)")
    cpu_quota: field_types.CpuQuota | None = Field(
        None, description="CPU limit, in CPUs, such as 1.5 (Docker's --cpus, a pod's limit)"
    )
    claims: Mapping[str, Annotated[Words, SOME_WORDS]] = Field(
        default_factory=dict, description="evidence path -> the expected value, or a list of allowed values"
    )
    requires: Mapping[str, Words] = Field(
        default_factory=dict, description="factor -> levels of it that this level works with"
    )
    architectures: ListOf[Literal["x86_64", "aarch64"]] = Field(
        (), description="processors that have it; others skip it. Default: all"
    )
    changes_numerics: bool = Field(False, description="results may differ; flagged in every table")
    turns: bool = Field(True, description="false: do not interleave; a pause would change how it behaves")

    @model_validator(mode="after")
    def _check_builds(self) -> Level:
        pinned = {canonicalize_name(item.partition("==")[0].strip()) for item in self.requirements if "==" in item}
        missing = next((name for name in self.build if canonicalize_name(name.strip()) not in pinned), None)
        path = next((file for file in self.preload if "/" in file), None)
        if missing is not None:
            raise about("build", f"{missing} needs an exact version in the requirements: {missing}==VERSION")
        if self.build and self.preload:
            raise about("build", "move it to a level that installs its requirements: it has no effect with preload")
        if path and (self.requirements or self.apt):
            message = f"{path} is already an absolute path; with a package, name the library by its file name"
            raise about("preload", message)
        return self

    @model_validator(mode="after")
    def _check_existing_python(self) -> Level:
        added = ["python", "apt", "suite", "base", "build"]
        if self.image or self.modules:  # an interpreter can have both, in a venv on top of it
            added += ["requirements", "index"]
        conflict = next((name for name in added if getattr(self, name)), None)
        wholes = [name for name in ("image", "conda", "interpreter", "modules") if getattr(self, name)]
        existing = wholes[0] if wholes else None
        if existing in ("image", "conda") and wholes[1:]:
            conflict = conflict or wholes[1]
        if self.channels and not self.conda:
            message = "`channels` needs `conda`, which is missing: channels are where conda packages come from"
            raise about("channels", message)
        if existing and conflict:
            instead = "build an image" if self.image else "name the Python of a venv"
            raise about(existing, f"it cannot be combined with {conflict}; {instead} that has both")
        return self

    @property
    def changes_installed_software(self) -> bool:
        """Whether this level changes the installed software of an image factor, not only preloaded libraries."""
        chosen = ("python", "suite", "base", "image", "conda", "interpreter", "modules", "index")
        return (bool(self.requirements) and not self.preload) or any(getattr(self, name) for name in chosen)

    @property
    def changes_image(self) -> bool:
        """Whether this level changes the image of an image factor: it installs or selects something."""
        return self.changes_installed_software or bool(self.requirements or self.apt)


class Factor(Frozen):
    """A factor and its levels in the order written. The first level is the reference."""

    name: str
    levels: Mapping[str, Level]

    @property
    def reference(self) -> str:
        """Name of the first level."""
        return next(iter(self.levels))

    @property
    def changes_installed_software(self) -> bool:
        """Whether any level changes installed files beyond adding libraries."""
        return any(level.changes_installed_software for level in self.levels.values())


class EnvironmentEntry(Frozen):
    """A named combination of levels. Factors that are not named are at their reference level."""

    name: str
    description: Text = ""
    levels: Mapping[str, str]


class Workload(Frozen):
    """A workload: options of the built-in benchmark, or the user's own command."""

    name: str
    description: Text = Field("", description="one line, shown in lists and reports")
    options: Mapping[str, OptionValue] = Field(default_factory=dict)
    command: Annotated[Command, SOME_WORDS] = Field((), min_length=1, description="your own program and its arguments")
    metric: MetricSource | None = Field(None, description="the program's performance")
    metrics: Mapping[str, MetricSource] = Field(
        default_factory=dict, description="name -> a number of the program; verdicts use the first one"
    )
    check: tuple[Check, ...] = Field((), description="numbers that show equal work, compared between environments")
    files: Text | None = Field(None, description="folder of the program; default: the folder of this file")
    env: Mapping[WrittenVariable, Text] = Field(
        default_factory=dict,
        description="environment variables of the program; an environment's own settings override them",
    )
    pass_env: ListOf[ProgramVariable] = Field(
        (), description="variables to pass from your shell; their values are not stored"
    )
    home: Literal["trial", "real"] = Field("trial", description="HOME: the trial's own folder, or yours (engine local)")
    setup: Command = Field(
        (), description="command to run once on this machine, in the program's folder, before the first block"
    )
    prepare: Command = Field((), description="command to run before the program in every trial, not timed")
    cleanup: Command = Field((), description="command to run on this machine, in the program's folder, at the end")
    mounts: ListOf[Folder] = Field((), description="folders to mount read-only, at their own paths, in containers too")

    @property
    def sources(self) -> Mapping[str, MetricSource]:
        """The program's metrics by name. Verdicts use the first one, which is the wall time by default."""
        return self.metrics or {"": self.metric or WALL_TIME}

    @property
    def tells_steps(self) -> bool:
        """Whether step times are available, from the built-in benchmark or from a program with a ``steps`` metric."""
        return not self.command or next(iter(self.sources.values())).steps is not None

    @model_validator(mode="after")
    def _check_one_json_file(self) -> Workload:
        if self.metric and self.metrics:
            raise about("metrics", "write either `metric` or `metrics`, not both")
        if any(source.steps for source in list(self.sources.values())[1:]):
            raise about("metrics", "`steps` must be the first metric, the one that verdicts use")
        metric_files = _json_files(self.sources.values())
        files = dict.fromkeys([*metric_files, *_json_files(self.check)])
        if len(files) > 1:
            key = "check" if len(set(metric_files)) < 2 else "metrics"
            raise about(key, f"all numbers of a program must come from one file, not from {' and '.join(files)}")
        return self

    @property
    def json_file(self) -> str:
        """The file that the program writes its numbers to; '' if there is none."""
        return next(iter(_json_files((*self.sources.values(), *self.check))), "")


def _json_files(reported: Iterable[ReportedNumber]) -> list[str]:
    return [source.json_file.partition(":")[0] for source in reported if source.json_file]


class Slurm(Frozen):
    """Slurm options of a design (launcher ``slurm``); command-line options override them."""

    nodes: int = Field(1, ge=1, le=1000, description="number of nodes that work in parallel, each on its own block")
    partition: SlurmWord | None = Field(None, description="partition; default: the cluster's default")
    account: SlurmWord | None = Field(None, description="account to charge")
    constraint: SlurmWord | None = Field(None, description="node features, so that all nodes have the same hardware")
    nodelist: ListOf[SlurmWord] = Field((), description="nodes by name; blocks are distributed over them in turn")
    time: Seconds | None = Field(None, description="time limit of one block; default: the total limit of its trials")
    memory: Bytes | None = Field(None, description="memory of one block's job; default: the whole node")
    gpus: SlurmWord | None = Field(None, description="GPUs per node, such as 2 or a100:2")
    modules: ListOf[SlurmWord] = Field((), description="modules to load first, so that apptainer is found")
    busy: Percent | None = Field(
        None,
        description="repeat a block when other programs use more than this share of the node's CPUs; "
        "default: report it",
    )
    options: ListOf[SlurmOption] = Field((), description="additional sbatch options, such as --qos=high")


class Design(Frozen):
    """The environments and workloads to compare, and the limits of the run."""

    name: str
    description: Text = ""
    environments: Names = Field((), description="environments to compare; the baseline is always included")
    factors: Mapping[str, Names] = Field(
        default_factory=dict, description="full factorial design over these levels of these factors"
    )
    cumulative: Names = Field(
        (), description="environments added one after another; each is compared with the one before"
    )
    workloads: Annotated[Names, SOME_WORDS] = Field(min_length=1, description="named workloads")
    application: Names = Field((), description="workloads that change the program; compared with the first workload")
    reference_values: Mapping[str, Text] = Field(
        default_factory=dict, description="environment or workload -> published numbers, shown next to yours"
    )
    engines: Names = Field(("local",), description="engines; if several, they are compared")
    baseline: Text = Field("baseline", description="the environment that all others are compared with")
    target: Percent = Field(0.03, description="stop when the half-width of every interval is at most this")
    margin: Percent = Field(0.03, description="call two environments the same if they surely differ by less than this")
    budget: Seconds = Field(300.0, description="stop after this time")
    claims_first: bool = Field(
        False, description="run the blocks that a verdict needs (min_blocks) even if they exceed the budget"
    )
    read_once: bool = Field(
        False, description="read the run only at its end and never extend it: its intervals are a little narrower"
    )
    trial_limit: Seconds = Field(300.0, description="stop a trial that runs longer")
    min_blocks: int = Field(6, ge=2, description="no verdict with fewer complete blocks")
    max_blocks: int = Field(40, ge=1, le=100_000)
    seed: int = Field(1, ge=0)
    schedule: Literal["auto", "sequential", "turns"] = Field(
        "auto", description="run trials one after another (sequential) or interleaved (turns); auto: turns if valid"
    )
    turn: int = Field(
        3, ge=1, le=100_000, description="timed steps per turn; for a program that prints no steps, tenths of a second"
    )
    turn_apart: int = Field(
        2, ge=0, le=1000, description="steps per turn that run first and do not count, while the caches are cold"
    )
    steady: bool = Field(
        False,
        description="also measure steady effects: the processes of some blocks go on (or one steady-state run each)",
    )
    race: bool = Field(False, description="stop environments early that are surely not the best (docs/choosing.md)")
    cpus: field_types.Cpus | None = Field(None, description="CPU list that every trial is confined to; default: all")
    memory: Bytes | None = Field(None, description="memory limit of a trial, such as 8GiB")
    shm: Bytes | None = Field(None, description="size of /dev/shm in Docker (default: half the memory)")
    gpus: Words = Field((), description="GPUs of a trial: all, or numbers or UUIDs; default: no GPU in containers")
    slurm: Slurm = Field(default_factory=lambda: Slurm.model_validate({}), description="options for launcher slurm")


def factorial_cells(design: Design) -> dict[str, dict[str, str]]:
    """Return cell name -> levels for each cell of a factorial design; the first cell is its baseline."""
    products = itertools.product(*design.factors.values()) if design.factors else ()
    cells = [dict(zip(design.factors, product, strict=True)) for product in products]
    return {cell_name(cell) if number else design.baseline: cell for number, cell in enumerate(cells)}


def cell_name(settings: Mapping[str, str]) -> str:
    """Return the name of an environment with these levels (by factor); too long a name is cut and gets a hash."""
    name = "+".join(f"{factor}-{level}" for factor, level in settings.items())
    if len(name) <= MAX_NAME_LENGTH:
        return name
    return f"{name[: MAX_NAME_LENGTH - 9]}+{sha256(name.encode()).hexdigest()[:8]}"


def unreachable_verdict_reason(design: Design) -> str:
    """Explain why a run of this design can never reach a verdict; '' if it can."""
    if design.min_blocks <= design.max_blocks:
        return ""
    return (
        f"no verdict is possible: it needs {design.min_blocks} blocks (min_blocks), but at most "
        f"{design.max_blocks} are run (max_blocks)"
    )


class Matrix(Frozen):
    """The complete matrix.yaml with its includes.

    ``digest`` is the sha256 of what was read. ``text`` is the whole matrix as one file without includes.
    """

    factors: Mapping[str, Factor]
    environments: Mapping[str, EnvironmentEntry]
    workloads: Mapping[str, Workload]
    designs: Mapping[str, Design]
    digest: str
    path: str
    text: str
