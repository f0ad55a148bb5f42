"""Engine ``docker``: containers by Docker's API, without network or capabilities."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import requests.exceptions

from envmatrix.block import interrupts
from envmatrix.block.fork_limit import MOST_PROCESSES
from envmatrix.block.process import Exit, cleanup_watcher
from envmatrix.build.cache import disk_errors
from envmatrix.build.images.context import BaseImage, bench_digest
from envmatrix.build.images.definitions import USER
from envmatrix.build.images.file_listing import ENGINE_PATHS, listing_argv, store_listing
from envmatrix.build.images.labels import publisher_labels
from envmatrix.build.paths import BuildPaths
from envmatrix.engines import build_record as records
from envmatrix.engines.base import QUOTA_PERIOD_US, WORK, Engine, Job, NamedImage, Prepared, log_of, quota_us
from envmatrix.engines.docker_api import APIError, DockerClient, connect, docker_errors, is_rootless, remove, why_not
from envmatrix.engines.docker_container_control import (
    RunningContainer,
    container_exit,
    count_pauses,
    start,
    start_and_watch_container,
    wait_for_exit,
)
from envmatrix.engines.docker_images import CACHE_LABEL, RUN_LABEL, DockerImages, held_image_id, image_id_and_layers
from envmatrix.engines.gpu_devices import NVIDIA, gpu_maker_of_image, gpu_options, visible_gpus
from envmatrix.engines.local import preload_variable
from envmatrix.engines.ready_made_images import prepare_ready_docker_image
from envmatrix.errors import EngineError, NoTrialError, StoreError
from envmatrix.plan.environment import Environment, Image, Library
from envmatrix.system.progress import ProgressCallback

#: The command that removes a container of an engine.
_END = "envmatrix.engines.container_remover"
_TMP_BYTES = 2**30
#: Seconds to wait for the rest of a container's output after its end.
_LAST_WORDS_S = 10.0


@dataclass(frozen=True)
class DockerEngine(Engine):
    """Runs trials in containers; each call opens and closes its own connection."""

    places: BuildPaths
    name: str = "docker"
    preference = 4
    sizes_shm = True
    passes_input = False
    all_gpus = "--gpus all "

    @property
    def isolation(self) -> str:
        """How a trial is isolated from the machine."""
        return "trials have no network, no capabilities and no root rights (rootless: yours); seccomp is off"

    def host(self) -> str:
        """Return the URL of the API; '': where Docker's own command finds it."""
        return ""

    @contextlib.contextmanager
    def client(self, doing: str) -> Iterator[DockerClient]:
        """Connect to the API; convert errors to EngineError with the failed action."""
        with docker_errors(doing):
            client = connect(self.host())
            try:
                yield client
            finally:
                client.close()

    def unavailable(self) -> str | None:
        """Return why the engine cannot be used here; None if it responds."""
        return why_not(self.host())

    def why_no_cpu_quota(self) -> str | None:
        """Return why the engine cannot set CPU quotas; None if it can."""
        with self.client("checking for CPU quotas") as client:
            return None if client.info().get("CpuCfsQuota") else f"this kernel has none (see `{self.name} info`)"

    def check_limits(self, client: DockerClient, job: Job) -> None:
        """Raise EngineError for a limit of ``job`` that the engine would ignore."""

    def prepare(self, image: Image, libraries: tuple[Library, ...], progress: ProgressCallback) -> Prepared:
        """Build or reuse the image."""
        with self.client("preparing an image") as client:
            images = DockerImages(client, self.places)
            images.remove_leftovers()
            if image.ready:
                return prepare_ready_docker_image(images, self.name, image, libraries, progress)
            return self._prepare(images, image, libraries, progress)

    def _prepare(
        self, images: DockerImages, image: Image, libraries: tuple[Library, ...], progress: ProgressCallback,
        *, fresh: bool = False,
    ) -> Prepared:  # fmt: skip
        client = images.client
        engine_id = f"{os.environ.get('DOCKER_HOST', '')} {client.info().get('DockerRootDir')}"  # Podman's ID changes
        build_record = records.record_file(self.places, self.name, image, libraries, engine_id)
        last_prepared = records.prepared_from(self.places.cache.read_json(build_record))
        if last_prepared and self._image_exists(client, last_prepared) and not fresh:
            return last_prepared
        tag, inputs = images.build(image, libraries, progress, fresh=fresh)
        attributes = client.images.get(tag).attrs
        listing = images.output(tag, listing_argv(inputs.python_path, "/", ENGINE_PATHS))
        facts = {**image_id_and_layers(attributes), "files_digest": store_listing(self.places.cache, listing)}
        prepared = records.built_image(
            self.places.cache, self.name, tag, inputs, lambda argv: images.output(tag, argv), facts
        )
        self.places.cache.write(build_record, json.dumps(records.prepared_fields(prepared)))
        return prepared

    def _image_exists(self, client: DockerClient, prepared: Prepared) -> bool:
        if "image_id" in prepared.facts and not self.bill_file(prepared).exists():
            return False
        image_id = prepared.facts.get("image_id", prepared.reference)
        return held_image_id(client, prepared.reference) == image_id

    def bill_file(self, prepared: Prepared) -> Path:
        """Return the path of the image's CycloneDX bill of materials."""
        return records.bill_file(self.places.cache, prepared)

    def prepare_with_current_bench(
        self, image: Image, libraries: tuple[Library, ...], progress: ProgressCallback
    ) -> Prepared:
        """Prepare the image with the current bench/ built in (benchmarks mount bench/ instead)."""
        with self.client("preparing an image") as client:
            images = DockerImages(client, self.places)
            prepared = self._prepare(images, image, libraries, progress)
            if images.bench_digest_inside(prepared.reference) == bench_digest(self.places):
                return prepared
            progress(f"{prepared.reference} contains an older bench/: rebuilding it")
            return self._prepare(images, image, libraries, progress, fresh=True)

    def base(self, image: Image, progress: ProgressCallback) -> BaseImage:
        """Return the base of an image with this engine."""
        with self.client("looking for a base image") as client:
            return DockerImages(client, self.places).base(image, progress)

    def build_named(
        self, environment: Environment, libraries: tuple[Library, ...], folder: Path, progress: ProgressCallback
    ) -> NamedImage:
        """Build and tag the stand-alone image of a named environment; write its bill of materials to ``folder``."""
        prepared = self.prepare_with_current_bench(environment.image, libraries, progress)
        with self.client(f"building {environment.name}") as client:
            publisher = publisher_labels(folder)
            tag = DockerImages(client, self.places).named(environment, prepared.reference, publisher, progress)
            digest = str(client.images.get(tag).id)
            bill = folder / f"{environment.name}.sbom.json"
            records.write_named_bill(self.places.cache, prepared, bill, tag.partition(":")[0], digest)
            return NamedImage(tag, f"{self.name} run --rm {self.all_gpus if environment.for_cuda else ''}{tag}")

    def save(self, prepared: Prepared, file: Path) -> None:
        """Write an image as a Docker archive, from which Apptainer builds a SIF."""
        with self.client("saving an image") as client:
            DockerImages(client, self.places).save(prepared.reference, file)

    def image_bytes(self, prepared: Prepared) -> int:
        """Return the size of an image's files in bytes."""
        with self.client("inspecting an image") as client:
            return int(client.images.get(prepared.reference).attrs["Size"])

    def holds(self, prepared: Prepared) -> bool:
        """Return whether the image still exists."""
        with self.client("looking for an image") as client:
            return self._image_exists(client, prepared)

    def run(self, job: Job) -> Exit:
        """Run ``job`` in its own container, which is always removed afterwards."""
        with self._container(job) as (client, container):
            return _run_to_end(client, container, job)

    @contextlib.contextmanager
    def started(self, job: Job) -> Iterator[RunningContainer]:
        """Start ``job`` in its own container, which is always removed afterwards."""
        with (
            self._container(job) as (client, container),
            _container_output(client, container, job),
            start_and_watch_container(client, container, job, self.host()) as running,
        ):
            yield running

    @contextlib.contextmanager
    def _container(self, job: Job) -> Iterator[tuple[DockerClient, str]]:
        with _as_no_trial_error(), self.client(f"running {job.label}") as client:
            self.check_limits(client, job)
            user = _container_user(client)
            give_work_folder_to_user(
                job.mounts.work, user, made_here=job.mounts.work.is_relative_to(self.places.cache.root)
            )
            config = container_config(job, user, self.places.cache.root)
            created = client.api.create_container_from_config(config, name=None)  # type: ignore[no-untyped-call]
            container = str(created["Id"])
            with cleanup_watcher([sys.executable, "-m", _END, self.name, container]):
                try:
                    yield client, container
                finally:
                    with interrupts.held():
                        remove(client, container)

    def sweep(self, run: str) -> int:
        """Remove the containers left by a killed run of that name with this cache."""
        labels = [f"{RUN_LABEL}={run}", f"{CACHE_LABEL}={self.places.cache.root}"]
        with self.client("sweeping") as client:
            leftover_containers = client.containers.list(all=True, filters={"label": labels})
            for container in leftover_containers:
                remove(client, str(container.id))
            return len(leftover_containers)


@contextlib.contextmanager
def _as_no_trial_error() -> Iterator[None]:
    """Convert engine errors to NoTrialError, which separates them from failures of the program."""
    try:
        yield
    except StoreError:  # writing the log failed
        raise
    except EngineError as error:
        raise NoTrialError(error.message, remedy=error.remedy) from error


def container_config(job: Job, user: str, cache: Path) -> dict[str, object]:
    """Return the configuration of a job's container for Docker's API.

    The program is the entry point: Podman replaces an empty one with the image's own. seccomp is off, as with
    Apptainer: the filter blocks set_mempolicy and can slow the CPU down. SELinux's labels would hide mounted folders.
    """
    limits = job.limits
    binds = [":".join(mount) for mount in job.container_mounts()]
    bad_bind = next((bind for bind in binds if bind.count(":") != 2), None)
    if bad_bind:
        raise EngineError(
            f"Docker cannot mount a folder with a colon in its path: {bad_bind}", remedy="rename the folder"
        )
    maker = gpu_maker_of_image(job.prepared.facts)
    chosen_gpus = visible_gpus(maker, limits.gpus) if limits.gpus and maker != NVIDIA else {}
    variables = {**job.prepared.variables, **job.env, **chosen_gpus, **preload_variable(job.preload)}
    host: dict[str, object] = {
        "Binds": binds,
        "NetworkMode": "none",
        "ReadonlyRootfs": True,
        "Tmpfs": {"/tmp": f"rw,exec,nosuid,nodev,mode=1777,size={_TMP_BYTES}"},  # noqa: S108 - inside the container
        "ShmSize": limits.shm_bytes or half_of_memory(),
        "CapDrop": ["ALL"],
        "CapAdd": [],
        "SecurityOpt": ["no-new-privileges", "seccomp=unconfined", "label=disable"],
        "CpusetCpus": ",".join(map(str, limits.cpus)),
        "CpusetMems": ",".join(map(str, limits.memory_nodes)),
        "PidsLimit": MOST_PROCESSES,
        "LogConfig": {"Type": "json-file", "Config": {}},
    }
    if limits.gpus:
        host |= gpu_options(maker, limits.gpus, job.prepared.engine)
    if limits.cpu_quota is not None:
        host |= {"CpuPeriod": QUOTA_PERIOD_US, "CpuQuota": quota_us(limits.cpu_quota)}
    if limits.memory_bytes:
        host |= {"Memory": limits.memory_bytes, "MemorySwap": limits.memory_bytes}
    return {
        "Image": job.prepared.reference,
        "Entrypoint": list(job.argv[:1]),
        "Cmd": list(job.argv[1:]),
        "Env": [f"{name}={value}" for name, value in variables.items()],
        "WorkingDir": str(job.mounts.start or WORK),
        "User": user,
        "NetworkDisabled": True,
        "Labels": {RUN_LABEL: job.run, CACHE_LABEL: str(cache), "org.envmatrix.trial": job.label},
        "HostConfig": host,
    }


def half_of_memory() -> int:
    """Return half the memory, the default of Linux and Apptainer: Docker's 64 MiB crash DataLoader workers."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _container_user(client: DockerClient) -> str:
    """Return the user inside: never root, except with a rootless engine, whose root is the caller."""
    if is_rootless(client):
        return "0:0"
    return f"{USER}:{USER}" if os.getuid() == 0 else f"{os.getuid()}:{os.getgid()}"


def give_work_folder_to_user(work: Path, user: str, *, made_here: bool) -> None:
    """Let the container's user write to the work folder and, if ``made_here``, to its contents."""
    if os.getuid() != 0 or user == "0:0" or work.stat().st_uid != 0:
        return
    with disk_errors(work):
        for path in (work, *(work.rglob("*") if made_here else ())):
            os.chown(path, *map(int, user.split(":")), follow_symlinks=False)


def _run_to_end(client: DockerClient, container: str, job: Job) -> Exit:
    with _container_output(client, container, job):
        started = time.monotonic()
        output = start(client, container)
        timed_out = False
        try:
            code = wait_for_exit(client, container, output, math.ceil(job.limits.seconds))
        except (requests.exceptions.ReadTimeout, requests.exceptions.ConnectionError) as error:
            if time.monotonic() - started < job.limits.seconds:
                raise EngineError(f"{job.label}: the engine went away while it ran") from error
            with contextlib.suppress(APIError):
                client.api.kill(container)
            code, timed_out = int(client.api.wait(container, timeout=60)["StatusCode"]), True
        wall = time.monotonic() - started
    state = client.api.inspect_container(container)["State"]
    return replace(container_exit(code, wall, state, job, timed_out=timed_out), stops=count_pauses(client, container))


@contextlib.contextmanager
def _container_output(client: DockerClient, container: str, job: Job) -> Iterator[None]:
    """Write a container's output to the job's log when it ends, or copy it to our streams while it runs."""
    if job.log is None:
        frames = client.api.attach(container, stream=True, demux=True)
        copying = threading.Thread(target=copy_frames, args=(frames,), daemon=True)
        copying.start()
        yield
        copying.join(_LAST_WORDS_S)
        return
    yield
    with log_of(job) as log:
        if log:
            log.write(client.api.logs(container, stdout=True, stderr=True))


def copy_frames(frames: Iterable[tuple[bytes | None, bytes | None]]) -> None:
    """Copy pairs of output and error output to our streams, until they end or nobody reads ours."""
    with contextlib.suppress(OSError):
        for pair in frames:
            for number, chunk in enumerate(pair, 1):
                with open(number, "wb", closefd=False) as stream:
                    stream.write(chunk or b"")
