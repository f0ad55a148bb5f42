"""Engine ``enroot``: unprivileged containers from a squashfs file, as used on clusters with Pyxis.

The squashfs is taken from the SIF, so Enroot, Apptainer and Docker run the same root file system. Enroot has no network
isolation and no limits of its own: a trial uses the host's network.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from envmatrix.build.cache import json_digest
from envmatrix.build.paths import BuildPaths
from envmatrix.engines.apptainer import ApptainerEngine
from envmatrix.engines.apptainer_command import find_program
from envmatrix.engines.base import WORK, CommandLine, Engine, Job, Prepared
from envmatrix.engines.local import guarded_job, preload_variable
from envmatrix.engines.process_limits import CgroupConfined, plain_place
from envmatrix.errors import EngineError, SkipEnvironmentError
from envmatrix.plan.environment import Image, Library
from envmatrix.system.process import Exit, Order, run, run_logged
from envmatrix.system.progress import ProgressCallback

_LIMIT_S = 1800.0
_HOST_VARIABLES = (
    "PATH", "HOME", "USER", "TMPDIR", "XDG_RUNTIME_DIR", "XDG_DATA_HOME", "ENROOT_DATA_PATH", "ENROOT_RUNTIME_PATH",
)  # fmt: skip
_PARTITION = re.compile(r"^\s*(\d+)\s*\|.*\bFS \(Squashfs/", re.MULTILINE)


def squashfs_partition_number(listing: str) -> str | None:
    """Return the number of the squashfs partition in the output of `apptainer sif list`; None if there is none."""
    partition = _PARTITION.search(listing)
    return partition[1] if partition else None


def container_name(reference: str) -> str:
    """Return the container name of an unpacked image."""
    return f"envmatrix-{json_digest(reference)[:16]}"


def start_argv(job: Job, image: str) -> list[str]:
    """Return the command of a job in ``image``, a container's name or a squashfs file.

    Variables are set by ``env -i`` inside, so that none from Enroot or the host reach the process.
    """
    mounts = job.container_mounts()
    bad_source = next((source for source, _, _ in mounts if re.search(r"[\s:,\\$]", source)), None)
    if bad_source:
        raise EngineError(
            f"Enroot cannot mount {bad_source!r}: its path contains a blank, colon, comma, dollar or backslash",
            remedy="use another folder for results, or set ENVMATRIX_CACHE to one",
        )
    variables = {**job.env, **preload_variable(job.preload)}
    binds = (f"{source}:{target}:none:x-create=dir,bind,{mode}" for source, target, mode in mounts)
    return [
        "enroot", "start", *(word for bind in binds for word in ("--mount", bind)),
        "--mount", "tmpfs:/tmp:tmpfs:x-create=dir,rw,mode=1777", "--", image,
        "/bin/sh", "-c", 'cd "$0" && exec "$@"', str(job.mounts.start or WORK),
        "/usr/bin/env", "-i", *(f"{name}={value}" for name, value in variables.items()), *job.argv,
    ]  # fmt: skip


@dataclass(frozen=True)
class EnrootEngine(CgroupConfined, Engine):
    """Runs trials in Enroot containers."""

    places: BuildPaths
    name: str = "enroot"
    has_portable_images = False

    @property
    def isolation(self) -> str:
        """How a trial is isolated: from other files, and little else."""
        as_root = "root rights inside (start envmatrix as another user to avoid that)"
        return f"trials have the machine's network and processes and {'your own uid' if os.geteuid() else as_root}"

    def unavailable(self) -> str | None:
        """Return why Enroot cannot be used here; None if it can."""
        if shutil.which("enroot") is None:
            return "enroot is not on PATH\n  -> install it: https://github.com/NVIDIA/enroot/blob/master/doc/installation.md"
        return ApptainerEngine(self.places).unavailable()

    def prepare(self, image: Image, libraries: tuple[Library, ...], progress: ProgressCallback) -> Prepared:
        """Extract the squashfs from the image's SIF and unpack it as a container, or reuse it."""
        if image.ready:
            raise SkipEnvironmentError(
                f"image {image.name} is {image.ready}, which `--engine enroot` cannot use",
                remedy="use `--engine docker` or `--engine apptainer`",
            )
        prepared = ApptainerEngine(self.places).prepare(image, libraries, progress)
        file = self.places.cache.root / "enroot" / json_digest(prepared.reference)[:24] / "image.sqsh"

        def take_out(place: Path) -> None:
            progress(f"extracting the squashfs from {prepared.reference}")
            _extract_squashfs(Path(prepared.reference), place / "image.sqsh")

        self.places.cache.folder(file.parent, take_out)
        name = container_name(str(file))
        if name not in _unpacked_containers():
            progress(f"unpacking {file} as {name}")
            created = run(["enroot", "create", "--name", name, str(file)], limit_s=_LIMIT_S)
            if not created.exit.ok:
                raise EngineError(f"enroot could not unpack the image: {created.last_words(2)}")
        return replace(prepared, engine=self.name, reference=str(file))

    def holds(self, prepared: Prepared) -> bool:
        """Return whether the image still exists, packed and unpacked."""
        return Path(prepared.reference).exists() and container_name(prepared.reference) in _unpacked_containers()

    def run(self, job: Job) -> Exit:
        """Run ``job`` in the unpacked container; it ends with this process."""
        argv = start_argv(job, container_name(job.prepared.reference))
        variables = {name: os.environ[name] for name in _HOST_VARIABLES if name in os.environ}
        with guarded_job(job, argv, variables, has_client=True) as running:
            return running.exit()

    def command_line(self, job: Job) -> CommandLine:
        """Return ``job`` as a command; it starts the squashfs file, because containers may be local to a node."""
        argv = tuple(start_argv(job, job.prepared.reference))
        placed = replace(plain_place(job.limits), data_bytes=None)
        return CommandLine(argv, {}, job.mounts.work, _HOST_VARIABLES, placed, (Path(job.prepared.reference),))

    def script_lines(
        self, prepared: Prepared, variables: Mapping[str, str | None], placement: str, program: Sequence[str] = ()
    ) -> list[str]:
        """Return shell lines that start a program in the squashfs with Apptainer."""
        return ApptainerEngine(self.places).script_lines(prepared, variables, placement, program)

    def image_file(self, prepared: Prepared) -> Path:
        """Return the squashfs file."""
        return Path(prepared.reference)

    def bill_file(self, prepared: Prepared) -> Path:
        """Return the path of the bill of materials of the SIF that the squashfs comes from."""
        return ApptainerEngine(self.places).bill_file(prepared)


def _unpacked_containers() -> list[str]:
    return run(["enroot", "list"], limit_s=_LIMIT_S).stdout.split()


def _extract_squashfs(sif: Path, target: Path) -> None:
    program = find_program() or "apptainer"
    listing = run([program, "sif", "list", str(sif)], limit_s=_LIMIT_S)
    number = squashfs_partition_number(listing.stdout)
    if number is None:
        raise EngineError(f"{sif} contains no squashfs: {listing.last_words(2)}")
    with target.open("wb") as file:
        exit_status = run_logged(Order([program, "sif", "dump", number, str(sif)], None, target.parent, _LIMIT_S), file)
    if not exit_status.ok:
        raise EngineError(f"cannot extract the squashfs from {sif}: the process {exit_status}")
