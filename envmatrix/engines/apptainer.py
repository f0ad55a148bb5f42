"""Engine ``apptainer``: one SIF file per image, built from the Docker image or, without Docker, from a definition."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from envmatrix.build.cache import disk_errors, file_digest, file_stamp, has_stamp
from envmatrix.build.images.context import (
    BaseImage,
    bench_digest,
    bootstrapped_base,
    gather_build_inputs,
    rooted,
    write_context,
    write_one_layer_archive,
)
from envmatrix.build.images.definitions import APPTAINER, MOUNT_FOLDER, image_definition, named_definition
from envmatrix.build.images.file_listing import ENGINE_PATHS, listing_argv, store_listing
from envmatrix.build.images.labels import publisher_labels
from envmatrix.build.paths import BuildPaths
from envmatrix.engines import build_record as records
from envmatrix.engines.apptainer_command import (
    HOST_VARIABLES,
    NO_CONFIG,
    cgroup_bind_options,
    container_user,
    exec_argv,
    find_program,
    host_variables,
    identity,
    is_unprivileged_root,
    root_needs_namespace,
    user_description,
)
from envmatrix.engines.base import CommandLine, Engine, Job, NamedImage, Prepared, file_safe_name
from envmatrix.engines.docker import DockerEngine, give_work_folder_to_user
from envmatrix.engines.local import GuardedJob, guarded_job
from envmatrix.engines.podman import docker_or_podman_engine
from envmatrix.engines.process_limits import CgroupConfined, plain_place, remove_empty_run_cgroups
from envmatrix.engines.ready_made_images import prepare_ready_image
from envmatrix.engines.sif_build import (
    ARCHIVE,
    BUILD_VERSION,
    SQUASH_NAMED_OPTIONS,
    build_sif,
    ensure_sif,
    output_in_sif,
    sif_path,
)
from envmatrix.plan.environment import Environment, Image, Library
from envmatrix.plan.export_lines import posix_quote, program_command
from envmatrix.system.atomic_files import whole_file
from envmatrix.system.process import Exit
from envmatrix.system.progress import ProgressCallback

#: Peak space of a build besides its result, in multiples of its source. From a Docker image: its archive, Apptainer's
#: copy of that, and its files. From a SIF: its files (three to four times the SIF), and the new SIF.
_COPIES_OF_IMAGE, _COPIES_OF_SIF = 4, 6
_BENCH_DIGEST_CODE = f"""
import sys
sys.path.insert(0, {MOUNT_FOLDER!r})
try:
    from bench import code_digest
    print(code_digest.bench_digest())
except ImportError:
    pass
"""


@dataclass(frozen=True)
class ApptainerEngine(CgroupConfined, Engine):
    """Runs trials in SIF files without root, as on a cluster."""

    places: BuildPaths
    name: str = "apptainer"
    preference = 3
    has_portable_images = True

    @property
    def isolation(self) -> str:
        """How far a trial is isolated from the machine, which depends on the user who starts it."""
        return f"trials have no network, no capabilities and {user_description()}; seccomp is off"

    def unavailable(self) -> str | None:
        """Return why Apptainer cannot be used here; None if it can."""
        if find_program() is None:
            page = "https://apptainer.org/docs/admin/main/installation.html"
            return f"neither apptainer nor singularity is on PATH\n  -> install it: {page}"
        if not Path("/proc/self/ns/user").exists():
            return "this kernel has no user namespaces"
        return None

    def prepare(self, image: Image, libraries: tuple[Library, ...], progress: ProgressCallback) -> Prepared:
        """Build or reuse the image's SIF."""
        if image.ready:
            return self._prepare_ready_image(image, libraries, progress)
        build_record = records.record_file(self.places, self.name, image, libraries, *BUILD_VERSION)
        last_prepared = records.prepared_from(self.places.cache.read_json(build_record))
        if last_prepared and self.holds(last_prepared) and self.bill_file(last_prepared).exists():
            return last_prepared
        if last_prepared and not self.holds(last_prepared):
            shutil.rmtree(Path(last_prepared.reference).parent, ignore_errors=True)
        if docker := docker_or_podman_engine(self.places):
            prepared = self._from_docker(docker, docker.prepare(image, libraries, progress), progress)
        else:
            prepared = self._build_without_docker(image, libraries, progress)
        self.places.cache.write(build_record, json.dumps(records.prepared_fields(prepared)))
        return prepared

    def _prepare_ready_image(
        self, image: Image, libraries: tuple[Library, ...], progress: ProgressCallback
    ) -> Prepared:
        sif, digest = ensure_sif(self.places, image, progress)

        def inside(argv: Sequence[str], mounted: Mapping[str, str]) -> str:
            binds = [word for place, path in mounted.items() for word in ("--bind", f"{path}:{place}:ro")]
            return output_in_sif(sif, argv, binds)

        return prepare_ready_image(self.places, self.name, image, libraries, (str(sif), digest), inside, progress)

    def _from_docker(self, docker: DockerEngine, prepared: Prepared, progress: ProgressCallback) -> Prepared:
        sif = sif_path(self.places.cache, prepared.facts["image_id"])

        def build(place: Path) -> None:
            progress(f"building a SIF from {prepared.reference}")
            room = _COPIES_OF_IMAGE * docker.image_bytes(prepared)
            with self.places.cache.quick_scratch("sif", room) as scratch:
                docker.save(prepared, scratch / ARCHIVE)
                build_sif(place / "image.sif", f"docker-archive:{ARCHIVE}", scratch)

        digest, stamp = self._ensure_sif(sif, prepared.python, build)
        facts = {**prepared.facts, "files_digest": digest, "sif_from": "docker archive"}
        return replace(prepared, engine=self.name, reference=str(sif), facts=facts, stamp=stamp)

    def _ensure_sif(self, sif: Path, python: str, build: Callable[[Path], None]) -> tuple[str, str]:
        """Build or reuse a SIF; return the digest of its files and its stamp from the time it was built."""

        def build_and_look(place: Path) -> None:
            build(place)
            listing = output_in_sif(place / sif.name, listing_argv(python, "/", ENGINE_PATHS))
            files_digest = store_listing(self.places.cache, listing)
            (place / "files_digest").write_text(files_digest, encoding="ascii")
            (place / "stamp").write_text(file_stamp(place / sif.name), encoding="ascii")

        self.places.cache.folder(sif.parent, build_and_look)
        digest, stamp = ((sif.parent / name).read_text(encoding="ascii") for name in ("files_digest", "stamp"))
        return digest, stamp

    def _build_without_docker(
        self, image: Image, libraries: tuple[Library, ...], progress: ProgressCallback
    ) -> Prepared:
        """Build from a definition, on a base made with mmdebstrap; Docker is not needed."""
        base, tar = bootstrapped_base(image, self.places, progress)
        inputs = gather_build_inputs(self.places, image, libraries, base, progress)
        sif = sif_path(self.places.cache, inputs.key)

        def build(place: Path) -> None:
            progress(f"building a SIF of {image.name} from its definition (no Docker here)")
            with self.places.cache.scratch("context") as scratch:
                write_context(inputs, self.places.bench, scratch / "context")
                rooted(tar, scratch / "rooted.tar")
                write_one_layer_archive(scratch / "rooted.tar", scratch / "base.tar", base.reference)
                definition = image_definition(APPTAINER, image, base.reference)
                (scratch / "image.def").write_text(definition, encoding="utf-8")
                folders = {"BOOTSTRAP": "docker-archive", "FROM": "base.tar", "CONTEXT": "context"}
                arguments = {**folders, **inputs.build_arguments(bench_digest(self.places))}
                options = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
                build_sif(place / "image.sif", "image.def", scratch, options)

        digest, stamp = self._ensure_sif(sif, inputs.python_path, build)
        facts = {"files_digest": digest, "sif_from": "definition"}
        return records.built_image(
            self.places.cache, self.name, str(sif), inputs, lambda argv: output_in_sif(sif, argv), facts, stamp
        )

    def bill_file(self, prepared: Prepared) -> Path:
        """Return the path of the image's CycloneDX bill of materials."""
        return records.bill_file(self.places.cache, prepared)

    def base(self, image: Image, progress: ProgressCallback) -> BaseImage:
        """Return the base of an image: Docker's if Docker is available, otherwise one made here."""
        if docker := docker_or_podman_engine(self.places):
            return docker.base(image, progress)
        return bootstrapped_base(image, self.places, progress)[0]

    def image_file(self, prepared: Prepared) -> Path:
        """Return the SIF."""
        return Path(prepared.reference)

    def build_named(
        self, environment: Environment, libraries: tuple[Library, ...], folder: Path, progress: ProgressCallback
    ) -> NamedImage:
        """Write the stand-alone SIF of a named environment to ``folder``, with its bill of materials."""
        target = folder / f"{environment.name}.sif"
        if docker := docker_or_podman_engine(self.places):
            current = docker.prepare_with_current_bench(environment.image, libraries, progress)
            prepared = self._from_docker(docker, current, progress)
        else:
            prepared = self.prepare(environment.image, libraries, progress)
        inside_argv = [prepared.python, "-I", "-c", _BENCH_DIGEST_CODE]
        bench_inside = output_in_sif(Path(prepared.reference), inside_argv).strip()
        if bench_inside and bench_inside != bench_digest(self.places):
            progress(f"{target.name} contains an older bench/ than this checkout; its record has the versions")
        progress(f"building {target} on the SIF of {prepared.image}")
        room = _COPIES_OF_SIF * Path(prepared.reference).stat().st_size
        with self.places.cache.quick_scratch("named", room) as scratch:
            (scratch / "image.sif").symlink_to(prepared.reference)
            definition_text = named_definition(APPTAINER, environment, "image.sif", publisher_labels(folder))
            (scratch / "named.def").write_text(definition_text, encoding="utf-8")
            built_sif = scratch / "named.sif"
            build_sif(built_sif, "named.def", scratch, (), SQUASH_NAMED_OPTIONS)
            with disk_errors(target):
                target.parent.mkdir(parents=True, exist_ok=True)
                with built_sif.open("rb") as source, whole_file(target) as file:
                    shutil.copyfileobj(source, file)
                target.chmod(0o755)
        bill = target.with_name(f"{target.name}.sbom.json")
        records.write_named_bill(self.places.cache, prepared, bill, target.name, f"sha256:{file_digest(target)}")
        options = "--userns " if is_unprivileged_root() or root_needs_namespace() else ""
        return NamedImage(str(target), f"apptainer run {options}{'--nv ' if environment.for_cuda else ''}{target}")

    def holds(self, prepared: Prepared) -> bool:
        """Return whether the SIF exists and is unchanged."""
        return has_stamp(Path(prepared.reference), prepared.stamp)

    def run(self, job: Job) -> Exit:
        """Run ``job`` in a container; leave none of its processes running."""
        with self.started(job) as running:
            return running.exit()

    @contextlib.contextmanager
    def started(self, job: Job) -> Iterator[GuardedJob]:
        """Start ``job`` in a container."""
        marker = self._markers / f"{file_safe_name(job.run)}.{file_safe_name(job.label)}"
        with disk_errors(marker):
            marker.mkdir(parents=True, exist_ok=True)
        if user := container_user():
            give_work_folder_to_user(
                job.mounts.work, user, made_here=job.mounts.work.is_relative_to(self.places.cache.root)
            )
        argv = exec_argv(job, find_program() or "apptainer", (*identity(), *cgroup_bind_options(job.limits)), marker)
        try:
            with guarded_job(job, argv, host_variables(), has_client=True) as running:
                yield running
        finally:
            self._kill_marked(marker.name)

    @property
    def _markers(self) -> Path:
        return self.places.cache.root / "work" / "apptainer"

    def _kill_marked(self, marker: str) -> int:
        """Kill processes that still run under a marker, and remove the marker."""
        processes = _marked_processes(f"/{self._markers.name}/{marker}")
        for process in processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        for folder in self._markers.glob(f"{marker}*"):
            with contextlib.suppress(OSError):
                folder.rmdir()
        return len(processes)

    def command_line(self, job: Job) -> CommandLine:
        """Return ``job`` as a command; its variables are set inside the container, not by ``env``."""
        argv = exec_argv(job, "apptainer", identity())
        if owner := container_user():
            argv = ["sh", "-c", f'chown -R {owner} . 2>/dev/null; exec "$@"', "sh", *argv]
        needs = (Path(job.prepared.reference), *map(Path, job.prepared.mounted.values()))
        return CommandLine(
            tuple(argv), dict(NO_CONFIG), job.mounts.work, HOST_VARIABLES, plain_place(job.limits), needs
        )

    def script_lines(
        self, prepared: Prepared, variables: Mapping[str, str | None], placement: str, program: Sequence[str] = ()
    ) -> list[str]:
        """Return shell lines that start a program in the SIF with only ``variables`` set."""
        verb = "exec --userns" if is_unprivileged_root() else "exec"
        return [
            f"image={posix_quote(prepared.reference)}  # copy it to a file system that the nodes see, and change this",
            "# --cleanenv: only what is set here gets in. --nv: gives the container this node's GPUs.",
            f'exec {placement}apptainer {verb} --cleanenv --bind "$PWD" --pwd "$PWD" \\',
            '  $(command -v nvidia-smi >/dev/null && echo --nv) "$image" /usr/bin/env \\',
            *(f"  -u {name} \\" for name, value in variables.items() if value is None),
            *(f"  {posix_quote(f'{name}={value}')} \\" for name, value in variables.items() if value is not None),
            f"  {program_command(prepared.python, program)}",
        ]

    def sweep(self, run: str) -> int:
        """Kill the containers left by a killed run, and remove its cgroups."""
        return self._kill_marked(f"{file_safe_name(run)}.") + remove_empty_run_cgroups(run)


def _marked_processes(marker: str) -> list[int]:
    """Return the processes that have a folder mounted at /mnt whose path contains ``marker``.

    If Apptainer is killed, its container's processes are no longer its children, and their command line and variables
    are the job's own. Only their mounts identify them (proc_pid_mountinfo(5)). A mount's root is relative to its own
    file system, so only the last parts of its path are compared.
    """
    processes = []
    for table in Path("/proc").glob("[0-9]*/mountinfo"):
        with contextlib.suppress(OSError):
            lines = table.read_text(encoding="utf-8", errors="replace").splitlines()
            mounts = [fields for line in lines if len(fields := line.split(" ")) > 4]
            if any(fields[4].endswith("/mnt") and marker in fields[3] for fields in mounts):
                processes.append(int(table.parent.name))
    return processes
