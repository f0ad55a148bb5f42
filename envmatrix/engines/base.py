"""What every engine takes and gives back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol, runtime_checkable

from envmatrix.block.interleave import Running
from envmatrix.block.process import Exit, Place
from envmatrix.build.cache import disk_errors
from envmatrix.build.context import BaseImage
from envmatrix.errors import SkipEnvironmentError
from envmatrix.plan.environment import Environment, Image, Library
from envmatrix.system.progress import ProgressCallback
from envmatrix.system.write_retry import insisting


@dataclass(frozen=True)
class Prepared:
    """An image that is ready to start processes on one engine.

    ``reference`` is the venv's path, the Docker image id or the SIF's path; ``python`` the interpreter and
    ``libraries`` (library key -> folder) are paths INSIDE the environment. ``missing`` (library key -> reason and
    remedy) names those that cannot be had. ``loader`` holds the file names that the environment's own loader
    finds without a folder (None: not known). ``facts`` goes into run.json: digests, lock, versions of system
    packages, base choice. ``without_torch`` says why a Python that was there before cannot import torch ('': it can).
    ``stamp`` is that of the image's file when it was made ('': it is none, or not known).
    A ready image has ``variables`` of its own, and ``mounted`` (path inside -> folder here) are its libraries.
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
        """Raise SkipEnvironmentError where only a program without PyTorch can run."""
        if self.without_torch:
            reason, _, remedy = self.without_torch.partition("\n  -> ")
            raise SkipEnvironmentError(reason, remedy=remedy)


def library_path(prepared: Prepared, key: str, file: str) -> str:
    """Return what LD_PRELOAD must hold for ``file`` of library ``key`` inside the environment.

    An empty key means the environment's own loader finds it: what was written, a bare name or an absolute path, is
    returned. Raises SkipEnvironmentError, with the install lines, for a library that cannot be had.
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


@dataclass(frozen=True)
class Mounts:
    """Host folders a job sees: ``work`` is writable (and its working folder), all of ``read`` is read-only.

    Those of ``same`` are read-only too, and have the same path inside as outside.
    """

    work: Path
    read: Mapping[str, Path]
    same: tuple[Path, ...] = ()


#: The period of a CPU quota in microseconds: what Docker's --cpus and Kubernetes' limits take.
QUOTA_PERIOD_US = 100_000


def quota_us(cpus: float) -> int:
    """Return the CPU time of a period, in microseconds, that is so many CPUs' worth."""
    return round(cpus * QUOTA_PERIOD_US)


@dataclass(frozen=True)
class Limits:
    """The same limits for every engine. Empty or None means: as the host has it.

    ``shm_bytes`` sizes /dev/shm where the engine can (``sizes_shm``); None: half the memory, as Linux has it.
    ``gpus`` are those that a container is given: ('all',), or numbers or UUIDs; empty: none. ``network``: whether
    it may reach other machines (a trial over several nodes); all others have no network where the engine can.
    ``cpu_quota`` is CPU time per time: 1.5 is that of one and a half CPUs (``LimitsCpuTime``).
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
    """One process in one environment. ``argv``, ``env`` and ``preload`` hold paths INSIDE the environment.

    Without a ``log`` the process has our own stdin, stdout and stderr. ``folder`` is where it starts, None: in the work
    folder; only an engine that ``starts_anywhere`` is given one.
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


@contextlib.contextmanager
def log_of(job: Job) -> Iterator[IO[bytes] | None]:
    """Open a job's log to append to; None where it has none."""
    if job.log is None:
        yield None
        return
    log_file = job.log
    with disk_errors(log_file), insisting(lambda: log_file.open("ab"), log_file) as log:
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
    """The execution layer. Methods raise EngineError, or SkipEnvironmentError for one image that cannot be had.

    An engine is made with ``Places``. What more it can do, the protocols below say: it can when it has their methods.
    A class that inherits from this one has the answers that stand here.
    """

    @property
    def name(self) -> str:
        """The word that matrix.yaml and ``--engine`` use."""

    @property
    def preference(self) -> int:
        """Which engines ``--engine auto`` tries, the highest first; 0: only when asked for by name."""
        return 0

    @property
    def sizes_shm(self) -> bool:
        """Whether /dev/shm is as large as a design's ``shm`` says."""
        return False

    @property
    def shares_files(self) -> bool:
        """Whether a process sees this machine's files by their own paths, so that a venv or library here is its own."""
        return False

    @property
    def starts_anywhere(self) -> bool:
        """Whether a process starts in its job's ``folder``, if that has one."""
        return False

    @property
    def isolation(self) -> str:
        """What a trial is kept from and what not, in one line; '' where that is not known."""
        return ""

    def unavailable(self) -> str | None:
        """Say why this engine cannot be used here and what to do about it, or None when it can."""

    def prepare(self, image: Image, libraries: tuple[Library, ...], progress: ProgressCallback) -> Prepared:
        """Build what is missing of ``image`` (holding all ``libraries``), or find it built."""

    def inside(self, mounts: Mounts) -> Mapping[str, str]:
        """Return the paths, inside the environment, of 'work' and of each of ``mounts.read``."""

    def holds(self, prepared: Prepared) -> bool:
        """Whether what was prepared is still there, and as it was; where it is not, no process says anything of it."""
        return True

    def run(self, job: Job) -> Exit:
        """Run ``job`` to its end or limit; its output goes to its log. Leaves nothing behind.

        Raises NoTrialError when the process could not be started, or the engine went away while it ran.
        """

    def sweep(self, run: str) -> int:
        """Remove whatever a killed run of that name left behind; return how many things."""


@runtime_checkable
class TakesTurns(Protocol):
    """An engine whose jobs can run side by side and be held, so that they take turns."""

    def started(self, job: Job) -> AbstractContextManager[Running]:
        """Start ``job``; at the end of the context it is ended, and nothing of it is left. Raises as ``Engine.run``."""


@runtime_checkable
class LimitsCpuTime(Protocol):
    """An engine that can hold a process to ``Limits.cpu_quota``."""

    def why_no_quota(self) -> str | None:
        """Say why it cannot here, and what to do about it, or None when it can."""


def check_quota(engine: Engine, environment: Environment) -> None:
    """Raise SkipEnvironmentError where an engine cannot limit CPU time as ``environment`` wants it."""
    if environment.cpu_quota is None:
        return
    reason = "this engine cannot limit CPU time" if not isinstance(engine, LimitsCpuTime) else engine.why_no_quota()
    if reason:
        why, _, remedy = reason.partition("\n  -> ")
        raise SkipEnvironmentError(
            f"`cpu_quota` is not available with engine {engine.name}: {why}",
            remedy=remedy or "use `--engine docker`",
        )


@runtime_checkable
class RunsAsCommand(Protocol):
    """An engine whose jobs are commands, so that a batch script can run them on another machine."""

    def command_line(self, job: Job) -> CommandLine:
        """Return ``job`` as one command: a pure function."""

    def script_lines(
        self, prepared: Prepared, variables: Mapping[str, str | None], placement: str, program: Sequence[str] = ()
    ) -> list[str]:
        """Return shell lines that start a user's own program there, for a script that people edit.

        A variable that is None must not be set. ``placement`` stands before the command ('' for anywhere). Without
        ``program`` it is a ``train.py`` that people replace; it is only given if a run measured one.
        """


@dataclass(frozen=True)
class NamedImage:
    """An image that stands alone: ``reference`` is its tag or path, ``start`` the command that starts it."""

    reference: str
    start: str


@runtime_checkable
class BuildsImages(Protocol):
    """An engine that builds images on a base, also such that need no envmatrix to be used."""

    def base(self, image: Image, progress: ProgressCallback) -> BaseImage:
        """Return what an image starts from with this engine; a lock pins what is added to it."""

    def build_named(
        self, environment: Environment, libraries: tuple[Library, ...], folder: Path, progress: ProgressCallback
    ) -> NamedImage:
        """Build the stand-alone image of a named environment, with today's bench/.

        Its bill of materials, and the image where it is a file, lie in ``folder``.
        """


@runtime_checkable
class HasBills(Protocol):
    """An engine that knows what its images are made of."""

    def bill_file(self, prepared: Prepared) -> Path:
        """Return where the image's CycloneDX bill of materials lies."""


@runtime_checkable
class HasImageFiles(Protocol):
    """An engine whose images are single files, which a pack carries."""

    @property
    def starts_packed(self) -> bool:
        """Whether it starts an image file that was made elsewhere as it is."""

    def image_file(self, prepared: Prepared) -> Path:
        """Return the image's file."""
