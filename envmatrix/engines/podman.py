"""Engine ``podman``: Docker's engine with Podman's API, at a socket of Podman's or of a service started here."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from envmatrix.block import interrupts
from envmatrix.build.paths import BuildPaths
from envmatrix.engines.base import Job, Prepared
from envmatrix.engines.docker import DockerEngine
from envmatrix.engines.docker_api import PODMAN_REMEDY, DockerClient, answers, is_rootless, podman_host, why_not
from envmatrix.engines.gpu_devices import NVIDIA, gpu_maker_of_image
from envmatrix.errors import EngineError
from envmatrix.plan.environment import Image, Library
from envmatrix.system.process import Order, SupervisedProcess, log_or_inherited_streams
from envmatrix.system.progress import ProgressCallback

#: The first Podman whose Docker API gives containers NVIDIA's GPUs; older ones ignore the request.
_GPU_VERSION = (5, 4)
#: Seconds for a service to answer after its start, and the longest that it runs.
_START_S, _SERVICE_S = 30.0, 10 * 86400.0
_DELEGATE = (
    "set `Delegate=cpu cpuset io memory pids` for user@.service (needs version 2 of control groups: "
    "https://rootlesscontaine.rs/getting-started/common/cgroup2/), or use Podman as root"
)

SLOW_STORAGE = "Podman copies the whole image for every container and removes it afterwards (storage driver vfs)"
FAST_STORAGE = (
    'write `[storage]` and, below it, `driver = "overlay"` to ~/.config/containers/storage.conf, and type '
    "`podman system reset`, which removes all images (https://docs.podman.io: containers-storage.conf)"
)


@dataclass(frozen=True)
class PodmanEngine(DockerEngine):
    """Runs trials in Podman's containers; rootless, the user inside is its root, who is you."""

    places: BuildPaths
    name: str = "podman"
    preference = 2
    all_gpus = "--device nvidia.com/gpu=all "

    def host(self) -> str:
        """Return the URL of the API; start a service if there is none. Raises EngineError if that is not possible."""
        return podman_host() or _own_service()

    def unavailable(self) -> str | None:
        """Return why Podman cannot be used here; None if it responds."""
        try:
            return why_not(self.host())
        except EngineError as error:
            return str(error)

    def prepare(self, image: Image, libraries: tuple[Library, ...], progress: ProgressCallback) -> Prepared:
        """Build or reuse the image; tell if its storage makes every container slow."""
        if self.is_slow():
            progress(f"{SLOW_STORAGE}\n  -> {FAST_STORAGE}")
        return super().prepare(image, libraries, progress)

    def is_slow(self) -> bool:
        """Return whether each container gets a whole copy of its image."""
        with self.client("looking at the storage") as client:
            return client.info().get("Driver") == "vfs"

    def why_no_pauses(self) -> str:
        """Return why Podman cannot pause a process; '': it can."""
        with self.client("looking for control groups") as client:
            if is_rootless(client) and client.info().get("CgroupVersion") == "1":
                return "rootless Podman pauses processes only with version 2 of control groups"
        return ""

    def why_no_cpu_quota(self) -> str | None:
        """Return why Podman cannot set CPU quotas; None if it can."""
        with self.client("checking for CPU quotas") as client:
            missing = _missing_controllers(client, {"cpu"})
        return f"{missing}\n  -> {_DELEGATE}" if missing else super().why_no_cpu_quota()

    def check_limits(self, client: DockerClient, job: Job) -> None:
        """Raise EngineError for a limit of ``job`` that Podman would ignore."""
        limits = job.limits
        if limits.gpus and gpu_maker_of_image(job.prepared.facts) == NVIDIA:
            version = str(client.version()["Version"])
            if tuple(map(int, re.findall(r"\d+", version)[:2])) < _GPU_VERSION:
                raise EngineError(
                    f"the API of Podman {version} gives containers no NVIDIA GPUs",
                    remedy="install Podman 5.4 or newer, or use `--engine apptainer`",
                )
        wanted = {
            "cpuset": limits.cpus or limits.memory_nodes,
            "memory": limits.memory_bytes,
            "cpu": limits.cpu_quota,
        }
        missing = _missing_controllers(client, {name for name, limit in wanted.items() if limit})
        if missing:
            raise EngineError(f"{job.label}: {missing}", remedy=_DELEGATE)


def _own_service() -> str:
    """Return the URL of the service of this process; start it, again if somebody ended it."""
    url = _start_service(os.getpid())
    if not answers(url.removeprefix("unix://")):
        _start_service.cache_clear()
        url = _start_service(os.getpid())
    return url


@cache
def _start_service(owner: int) -> str:
    """Start Podman's API until this process, ``owner``, ends, and return its URL."""
    program = shutil.which("podman")
    if program is None:
        raise EngineError("there is no Podman here, and no socket of it", remedy=f"install Podman, or {PODMAN_REMEDY}")
    with contextlib.ExitStack() as stack:
        # The name is that of a process's temporary files (``orphans``); a socket's path must be short.
        folder = Path(tempfile.mkdtemp(prefix=f"bench-podman.{owner}.", dir="/tmp"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        path, log = folder / "podman.sock", stack.enter_context((folder / "log").open("w+b"))
        argv = [program, "system", "service", "--time=0", f"unix://{path}"]
        order = Order(argv, None, folder, _SERVICE_S)
        service = stack.enter_context(SupervisedProcess(order, log_or_inherited_streams(log)))
        deadline = time.monotonic() + _START_S
        while not answers(str(path)):
            if interrupts.wait_readable([service], 0.05) or time.monotonic() > deadline:
                said = (folder / "log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
                why = said[-1] if said else f"no answer in {_START_S:.0f} s"
                raise EngineError(
                    f"`podman system service` does not start: {why}", remedy="`podman info` shows what is wrong"
                )
        atexit.register(stack.pop_all().close)
    return f"unix://{path}"


def docker_or_podman_engine(places: BuildPaths) -> DockerEngine | None:
    """Return the engine that has Docker's images: Docker, or Podman at a socket that answers; None: neither."""
    if why_not() is None:
        return DockerEngine(places)
    return PodmanEngine(places) if podman_host() else None


def _missing_controllers(client: DockerClient, wanted: set[str]) -> str:
    """Return which limits a rootless Podman would ignore, in words; '': none."""
    if not wanted or not is_rootless(client):
        return ""
    response = client.api.get(f"{client.api.base_url}/v4.0.0/libpod/info")
    controllers = response.json()["host"].get("cgroupControllers") or []
    missing = ", ".join(sorted(wanted.difference(controllers)))
    return f"your user may not use these controllers of control groups: {missing}" if missing else ""
