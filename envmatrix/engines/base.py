"""The engine interface: protocols, and the types that engines take and return."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, ClassVar, Protocol, runtime_checkable

from envmatrix.block.interleave import Running
from envmatrix.block.process import Exit, Overlay, Place
from envmatrix.build.cache import disk_errors, json_digest
from envmatrix.build.images.context import BaseImage
from envmatrix.build.images.definitions import MOUNT_FOLDER
from envmatrix.errors import EngineError, SkipEnvironmentError
from envmatrix.plan.environment import Environment, Image, Library, exists_for
from envmatrix.system.architectures import this_architecture
from envmatrix.system.atomic_files import full_disk_errors, insisting
from envmatrix.system.progress import ProgressCallback


@dataclass(frozen=True)
class Prepared:
    """An image that is ready to start processes with one engine.

    ``reference`` is the path of the venv, the Docker image id or the path of the SIF. ``python``, and the folders in
    ``libraries`` (library key -> folder), are paths INSIDE the environment. ``missing`` maps unavailable libraries to a
    reason and remedy. ``loader`` has the file names that the environment's loader finds by itself (None: unknown).
    ``facts`` goes into run.json: digests, lock, package versions, choice of base. ``without_torch`` is why an existing
    Python cannot import torch ('': it can). ``stamp`` is the image file's stamp when it was made ('': no file, or
    unknown). A ready-made image has its own ``variables``, and its libraries are ``mounted`` (path inside -> folder
    here).
    """

    image: str
    engine: str
    reference: str
    python: str
    libraries: Mapping[str, str]
    facts: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    loader: frozenset[str] | None = None
    without_torch: str = ""
    stamp: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    mounted: Mapping[str, str] = field(default_factory=dict)

    def check_torch(self) -> None:
        """Raise SkipEnvironmentError if the image has no PyTorch."""
        if self.without_torch:
            reason, _, remedy = self.without_torch.partition("\n  -> ")
            raise SkipEnvironmentError(reason, remedy=remedy)


def library_path(prepared: Prepared, key: str, file: str) -> str:
    """Return the LD_PRELOAD entry for ``file`` of library ``key`` inside the environment.

    With an empty key the environment's loader must find it, so the name or absolute path is returned as written. Raises
    SkipEnvironmentError, with commands to install it, if a library is unavailable.
    """
    if key in prepared.libraries:
        return f"{prepared.libraries[key]}/{file}"
    if key:
        reason, _, remedy = prepared.missing.get(key, "it was not built").partition("\n  -> ")
        raise SkipEnvironmentError(f"library {key} is not available: {reason}", remedy=remedy)
    if prepared.loader is not None and "/" not in file and file not in prepared.loader:
        raise SkipEnvironmentError(
            f"{file} is not installed in {prepared.engine} image {prepared.image}",
            remedy="install it there, or add its package with `apt:` or `requirements:` in matrix.yaml",
        )
    return file


#: The work folder inside a container.
WORK = "/work"


@dataclass(frozen=True)
class Mounts:
    """The host folders of a job: ``work`` is writable and the working folder; those in ``read`` are read-only.

    Folders in ``same`` are read-only too, and have the same path inside as outside.
    """

    work: Path
    read: Mapping[str, Path]
    same: tuple[Path, ...] = ()

    @property
    def start(self) -> Path | None:
        """The program's own folder, if one above it is in ``same``: ``work`` appears there too, and ``..`` is right.

        None: the process starts in ``work``.
        """
        files = self.read.get("files")
        return files if files and any(path in files.parents for path in self.same) else None

    def at_own_paths(self) -> list[tuple[str, str, str]]:
        """Return the mounts of ``same`` and ``start`` as (folder, path inside, ro or rw), outer folders first."""
        start = self.start
        mounts = [(str(path), str(path), "ro") for path in sorted(self.same) if path != start]
        return [*mounts, (str(self.work), str(start), "rw")] if start else mounts


#: The period of a CPU quota in microseconds, as for Docker's --cpus and Kubernetes' limits.
QUOTA_PERIOD_US = 100_000


def quota_us(cpus: float) -> int:
    """Return the CPU quota for this number of CPUs, in microseconds per period."""
    return round(cpus * QUOTA_PERIOD_US)


@dataclass(frozen=True)
class Limits:
    """Limits of a job, with the same meaning for every engine. Empty or None means no limit beyond the host's.

    ``shm_bytes`` is the size of /dev/shm if the engine ``sizes_shm``; None: half the memory, as in Linux. ``gpus`` are
    those a container gets: ('all',), numbers or UUIDs; empty: none. ``network``: whether it may reach other machines
    (for trials on several nodes); other jobs have no network if the engine can isolate it. ``cpu_quota`` is in CPUs,
    such as 1.5 (``LimitsCpuTime``).
    """

    seconds: float
    cpus: tuple[int, ...] = ()
    memory_nodes: tuple[int, ...] = ()
    memory_bytes: int | None = None
    shm_bytes: int | None = None
    gpus: tuple[str, ...] = ()
    network: bool = False
    cpu_quota: float | None = None


@dataclass(frozen=True)
class Job:
    """One process in one environment. ``argv``, ``env`` and ``preload`` contain paths INSIDE the environment.

    Without a ``log`` the process uses our stdin, stdout and stderr. ``folder`` is its working folder if the engine
    ``starts_anywhere``; None: the work folder. ``overlay`` catches what it writes there.
    """

    run: str
    label: str
    prepared: Prepared
    argv: tuple[str, ...]
    env: Mapping[str, str]
    preload: tuple[str, ...]
    mounts: Mounts
    limits: Limits
    log: Path | None
    folder: Path | None = None
    overlay: Overlay | None = None

    def container_mounts(self) -> list[tuple[str, str, str]]:
        """Return the mounts of its container as (folder here, path inside, ro or rw), outer folders first."""
        read = [(str(path), f"{MOUNT_FOLDER}/{name}", "ro") for name, path in self.mounts.read.items()]
        libraries = [(folder, inside, "ro") for inside, folder in self.prepared.mounted.items()]
        return [(str(self.mounts.work), WORK, "rw"), *read, *self.mounts.at_own_paths(), *libraries]


def file_safe_name(text: str) -> str:
    """Return a text as a safe file name; one that must change gets a hash to stay unique."""
    safe = re.sub(r"[^A-Za-z0-9_-]", "-", text)[:100]
    return safe if safe == text else f"{safe[:91]}-{json_digest(text)[:8]}"


@contextlib.contextmanager
def log_of(job: Job) -> Iterator[IO[bytes] | None]:
    """Open a job's log for appending; yield None if it has none."""
    if job.log is None:
        yield None
        return
    log_file = job.log
    with disk_errors(log_file), full_disk_errors(log_file), insisting(lambda: log_file.open("ab"), log_file) as log:
        yield log


@dataclass(frozen=True)
class CommandLine:
    """A job as one command, for a node to run: nothing of it depends on the host's own processes.

    ``env`` is the whole of the command's environment but for the variables of ``keep``, which it takes from the
    job (a client such as apptainer needs HOME and PATH). ``place`` confines it. ``needs`` are paths that must be on
    the node.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    keep: tuple[str, ...] = ()
    place: Place = field(default_factory=Place)
    needs: tuple[Path, ...] = ()


class Engine(Protocol):
    """The interface of an engine. Methods raise EngineError, or SkipEnvironmentError for one unavailable image.

    Engines are created with ``BuildPaths``. The protocols below describe optional features: an engine has one if it has
    its methods. Subclasses inherit the defaults defined here.
    """

    @property
    def name(self) -> str:
        """The name in matrix.yaml and for ``--engine``."""

    #: The order for ``--engine auto``, highest first; 0: used only if named.
    preference: ClassVar[int] = 0
    #: Whether the engine sets the size of /dev/shm to a design's ``shm``.
    sizes_shm: ClassVar[bool] = False
    #: Whether processes see this machine's files at their own paths, and can use its venvs and libraries.
    shares_files: ClassVar[bool] = False
    #: Whether a process can start in its job's ``folder``.
    starts_anywhere: ClassVar[bool] = False

    @property
    def passes_input(self) -> bool:
        """Whether a process without a log gets our standard input."""
        return True

    @property
    def isolation(self) -> str:
        """One line on how trials are isolated from the machine; '' if unknown."""
        return ""

    def unavailable(self) -> str | None:
        r"""Return why this engine cannot be used here, and the remedy after ``\n  -> ``; None if it can."""

    def why_no_pauses(self) -> str:
        """Return why it cannot pause a process here although it ``TakesTurns``; '': it can."""
        return ""

    def prepare(self, image: Image, libraries: tuple[Library, ...], progress: ProgressCallback) -> Prepared:
        """Build or reuse ``image`` with all ``libraries``."""

    def inside(self, mounts: Mounts) -> Mapping[str, str]:
        """Return the paths inside the environment of 'work' and of ``mounts.read``; by default a container's."""
        return {"work": WORK, **{name: f"{MOUNT_FOLDER}/{name}" for name in mounts.read}}

    def holds(self, prepared: Prepared) -> bool:
        """Return whether the prepared image exists unchanged; if not, a failed process is not a failed trial."""
        return True

    def run(self, job: Job) -> Exit:
        """Run ``job`` to its end or time limit, with its output in its log. Leaves nothing behind.

        Raises NoTrialError if the process could not start, or the engine failed while it ran.
        """

    def sweep(self, run: str) -> int:
        """Remove everything left by a killed run of that name; return the number of items."""


def check_usable(engine: Engine) -> None:
    """Raise EngineError if an engine cannot be used here."""
    reason, _, remedy = (engine.unavailable() or "").partition("\n  -> ")
    if reason:
        raise EngineError(
            f"engine {engine.name} cannot be used here: {reason}",
            remedy=remedy or "run `envmatrix doctor` for details",
        )


@runtime_checkable
class TakesTurns(Protocol):
    """An engine whose jobs can be interleaved: several are started, and paused in turn."""

    def started(self, job: Job) -> AbstractContextManager[Running]:
        """Start ``job``; at the end of the context it is ended and removed. Raises like ``Engine.run``."""


@runtime_checkable
class LimitsCpuTime(Protocol):
    """An engine that can enforce ``Limits.cpu_quota``."""

    def why_no_cpu_quota(self) -> str | None:
        """Return why it cannot limit CPU time here, and the remedy; None if it can."""


def check_quota(engine: Engine, environment: Environment) -> None:
    """Raise SkipEnvironmentError if the engine cannot enforce the CPU quota of ``environment``."""
    if environment.cpu_quota is None:
        return
    reason = "this engine cannot limit CPU time" if not isinstance(engine, LimitsCpuTime) else engine.why_no_cpu_quota()
    if reason:
        why, _, remedy = reason.partition("\n  -> ")
        raise SkipEnvironmentError(
            f"`cpu_quota` is not available with engine {engine.name}: {why}", remedy=remedy or "use `--engine docker`"
        )


def check_architecture(environment: Environment) -> None:
    """Raise SkipEnvironmentError if a level of ``environment`` does not exist for this machine's processors."""
    here = this_architecture()
    for level, architectures in environment.architectures.items():
        if not exists_for(architectures, here):
            raise SkipEnvironmentError(
                f"{level} does not exist for {here}, this machine's architecture, only for {', '.join(architectures)}",
                remedy="use another level, or a machine with that architecture",
            )


@runtime_checkable
class RunsAsCommand(Protocol):
    """An engine whose jobs are commands, so that batch scripts can run them on other machines."""

    def command_line(self, job: Job) -> CommandLine:
        """Return ``job`` as one command."""

    def script_lines(
        self, prepared: Prepared, variables: Mapping[str, str | None], placement: str, program: Sequence[str] = ()
    ) -> list[str]:
        """Return shell lines that start the user's program, for a script that users edit.

        Variables that are None must be unset. ``placement`` comes before the command ('': no placement). Without
        ``program``, which is given only if a run measured one, the lines start a placeholder ``train.py``.
        """


@dataclass(frozen=True)
class NamedImage:
    """A stand-alone image: ``reference`` is its tag or path, ``start`` the command that starts it."""

    reference: str
    start: str


@runtime_checkable
class BuildsImages(Protocol):
    """An engine that builds images on a base, including stand-alone ones that do not need envmatrix."""

    def base(self, image: Image, progress: ProgressCallback) -> BaseImage:
        """Return the base of an image with this engine; a lock pins what is added to it."""

    def build_named(
        self, environment: Environment, libraries: tuple[Library, ...], folder: Path, progress: ProgressCallback
    ) -> NamedImage:
        """Build the stand-alone image of a named environment with the current bench/.

        Its bill of materials, and the image if it is a file, are written to ``folder``.
        """


@runtime_checkable
class HasBills(Protocol):
    """An engine that can list the components of its images."""

    def bill_file(self, prepared: Prepared) -> Path:
        """Return the path of the image's CycloneDX bill of materials."""


@runtime_checkable
class HasImageFiles(Protocol):
    """An engine whose images are single files, which can be bundled."""

    @property
    def has_portable_images(self) -> bool:
        """Whether it starts an image file from another machine unchanged."""

    def image_file(self, prepared: Prepared) -> Path:
        """Return the image's file."""
