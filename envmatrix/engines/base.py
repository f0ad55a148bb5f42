"""What every engine takes and gives back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

from envmatrix.errors import SkipEnvironmentError
from envmatrix.images.cache import disk_errors
from envmatrix.plan.environment import Image, Library
from envmatrix.process import Exit
from envmatrix.say import Say


@dataclass(frozen=True)
class Prepared:
    """An image that is ready to start processes on one engine.

    ``reference`` is the venv's path, the Docker image id or the SIF's path; ``python`` the interpreter and
    ``libraries`` (library key -> folder) are paths INSIDE the environment. ``missing`` (library key -> reason and
    remedy) names those that cannot be had. ``loader`` holds the file names that the environment's own loader
    finds without a folder (None: not known). ``facts`` goes into run.json: digests, lock, versions of system
    packages, base choice.
    """

    image: str
    engine: str
    reference: str
    python: str
    libraries: Mapping[str, str]
    facts: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    loader: frozenset[str] | None = None


def library_path(prepared: Prepared, key: str, file: str) -> str:
    """Return what LD_PRELOAD must hold for ``file`` of library ``key`` inside the environment.

    An empty key means the environment's own loader finds it: the bare name is returned. Raises
    SkipEnvironmentError, with the install lines, for a library that cannot be had.
    """
    if key in prepared.libraries:
        return f"{prepared.libraries[key]}/{file}"
    if key:
        reason, _, remedy = prepared.missing.get(key, "it was not built").partition("\n  -> ")
        raise SkipEnvironmentError(f"library {key} cannot be had here: {reason}", remedy=remedy)
    if prepared.loader is not None and file not in prepared.loader:
        raise SkipEnvironmentError(
            f"{file} is not installed in {prepared.engine} image {prepared.image}",
            remedy="install it there, or name its package with `apt:` or `requirements:` in matrix.yaml",
        )
    return file


@dataclass(frozen=True)
class Mounts:
    """Host folders a job sees: ``work`` is writable (and its working folder), all of ``read`` is read-only."""

    work: Path
    read: Mapping[str, Path]


@dataclass(frozen=True)
class Limits:
    """The same limits for every engine. Empty or None means: as the host has it.

    ``shm_bytes`` sizes /dev/shm where the engine can (Docker); None: half the memory, as Linux and Apptainer have it.
    ``gpus`` are those that a container is given: ('all',), or numbers or UUIDs; empty: none. ``network``: whether
    it may reach other machines (a trial over several nodes); all others have no network where the engine can.
    """

    seconds: float
    cpus: tuple[int, ...] = ()
    memory_nodes: tuple[int, ...] = ()
    memory_bytes: int | None = None
    shm_bytes: int | None = None
    sys_nice: bool = False
    gpus: tuple[str, ...] = ()
    network: bool = False


@dataclass(frozen=True)
class Job:
    """One process in one environment. ``argv``, ``env`` and ``preload`` hold paths INSIDE the environment.

    Without a ``log`` the process has our own stdin, stdout and stderr.
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


@contextlib.contextmanager
def log_of(job: Job) -> Iterator[IO[bytes] | None]:
    """Open a job's log to append to; None where it has none."""
    if job.log is None:
        yield None
        return
    with disk_errors(job.log), job.log.open("ab") as log:
        yield log


@dataclass(frozen=True)
class CommandLine:
    """A job as one command, for a batch script to run: nothing of it depends on the host's own processes.

    ``env`` is the whole of the command's environment but for the variables of ``keep``, which it takes from the
    script (a client such as apptainer needs HOME and PATH). ``prefix`` places and limits it (taskset, prlimit);
    it runs outside ``env``, so that nothing is preloaded into it. ``needs`` are paths that must be on the node.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    keep: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()
    needs: tuple[Path, ...] = ()


class Engine(Protocol):
    """The execution layer. Methods raise EngineError, or SkipEnvironmentError for one image that cannot be had."""

    @property
    def name(self) -> str:
        """The word that matrix.yaml and ``--engine`` use."""

    def unavailable(self) -> str | None:
        """Say why this engine cannot be used here, or None when it can."""

    def prepare(self, image: Image, libraries: tuple[Library, ...], say: Say) -> Prepared:
        """Build what is missing of ``image`` (holding all ``libraries``), or find it built."""

    def inside(self, mounts: Mounts) -> Mapping[str, str]:
        """Return the paths, inside the environment, of 'work' and of each of ``mounts.read``."""

    def run(self, job: Job) -> Exit:
        """Run ``job`` to its end or limit; its output goes to its log. Leaves nothing behind."""

    def command_line(self, job: Job) -> CommandLine:
        """Return ``job`` as one command (pure), or raise EngineError where the engine is no command."""

    def sweep(self, run: str) -> int:
        """Remove whatever a killed run of that name left behind; return how many things."""
