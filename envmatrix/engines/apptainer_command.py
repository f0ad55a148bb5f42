"""Build Apptainer's command line: the user, mounts and variables of a job."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from envmatrix.build.images.definitions import USER
from envmatrix.engines.base import WORK, Job, Limits
from envmatrix.engines.gpu_devices import AMD, INTEL, NVIDIA, gpu_maker_of_image, visible_gpus
from envmatrix.engines.local import preload_variable
from envmatrix.errors import EngineError
from envmatrix.system.host import status_field

#: Kernel and machine settings that uid 0 may change even without capabilities.
_KERNEL_PATHS = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs", "/sys")
_CGROUP_ROOT = "/sys/fs/cgroup"
#: Capability numbers from Linux's capability.h.
_SYS_ADMIN, _SYS_RESOURCE = 21, 24
#: Host variables that Apptainer itself needs; they are not set inside the container.
HOST_VARIABLES = ("PATH", "HOME", "USER", "TMPDIR", "APPTAINER_TMPDIR", "APPTAINER_CACHEDIR", "XDG_RUNTIME_DIR")
#: Keeps Apptainer from creating ``~/.apptainer``, which starting a SIF does not need.
NO_CONFIG = {"APPTAINER_CONFIGDIR": "/dev/null/none"}
#: Options that give a container GPUs, and the folder to which they bind the driver's libraries:
#: https://apptainer.org/docs/user/main/gpu.html
_GPU_OPTIONS = {NVIDIA: ("--nv",), AMD: ("--rocm",), INTEL: ("--bind", "/dev/dri")}
_LIBRARIES = {NVIDIA: "/.singularity.d/libs", AMD: "/.singularity.d/libs"}


def is_unprivileged_root() -> bool:
    """Return whether this is a root without the capabilities that Apptainer gives root (as in containers)."""
    return os.geteuid() == 0 and not _has_capability(_SYS_RESOURCE)


def container_user() -> str | None:
    """Return the uid:gid of a container run by root, as in Docker; None if it has its caller's."""
    return f"{USER}:{USER}" if os.geteuid() == 0 and not root_needs_namespace() else None


def identity() -> tuple[str, ...]:
    """Return the options that prevent root inside the container; an ordinary user needs none.

    A root that needs a user namespace keeps uid 0 in it. Kernel files that uid 0 could still change are then mounted
    read-only.
    """
    if container_user():
        return "--security", f"uid:{USER}", "--security", f"gid:{USER}"
    if os.geteuid() != 0:
        return ()
    return "--userns", *_read_only_binds(_KERNEL_PATHS)


def cgroup_bind_options(limits: Limits) -> tuple[str, ...]:
    """Return the options that show a job with a CPU quota its cgroups, which Apptainer normally hides."""
    if limits.cpu_quota is None or root_needs_namespace():  # with a namespace, all of /sys is visible
        return ()
    return tuple(_read_only_binds([_CGROUP_ROOT]))


def _read_only_binds(paths: Iterable[str]) -> Iterator[str]:
    """Yield options that mount paths read-only in place, and each file system mounted below them.

    A read-only mount does not affect the file systems below it.
    """
    table = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    mounted = [line.split(" ")[4] for line in table]
    for path in paths:
        mounts_below = sorted({point for point in mounted if point.startswith(f"{path}/") and "\\" not in point})
        for mount_point in (path, *mounts_below):
            if Path(mount_point).exists():
                yield from ("--bind", f"{mount_point}:{mount_point}:ro")


def user_description() -> str:
    """Describe the user that containers run as."""
    if container_user():
        return f"no root rights (uid {USER})"
    if os.geteuid() == 0:
        return "root's uid, with the kernel's settings read-only: root here has no loop device or cannot mount"
    return "your own uid"


def root_needs_namespace() -> bool:
    """Return whether this root cannot mount an image, and so needs a user namespace and FUSE like other users."""
    if os.geteuid() != 0:
        return False
    try:
        os.close(os.open("/dev/loop-control", os.O_RDWR))
    except OSError:
        return True
    return not _has_capability(_SYS_ADMIN)


def _has_capability(number: int) -> bool:
    effective = status_field("CapEff")
    return not effective or bool(int(effective, 16) >> number & 1)


def exec_argv(job: Job, program: str, whose: Sequence[str], marker: Path | None = None) -> list[str]:
    """Return the command of a job. ``whose`` is ``identity()``.

    Variables are set by ``env -i`` inside: Apptainer before 1.5 changes quotes and dollars in its own options, and this
    also keeps its own variables out. ``marker`` is an empty folder mounted to find the container's processes.
    """
    mounts = [*map(":".join, job.container_mounts()), *([f"{marker}:/mnt:ro"] if marker else [])]
    bad_mount = next((mount for mount in mounts if mount.count(":") != 2 or "," in mount), None)
    if bad_mount:
        raise EngineError(f"Apptainer cannot mount a folder with a colon or comma in its path: {bad_mount}")
    variables = {**job.prepared.variables, **job.env, **gpu_variables(job), **preload_variable(job.preload)}
    return [
        program, "--silent", "exec", *whose, "--containall", "--cleanenv", "--no-home",
        *(_GPU_OPTIONS[gpu_maker_of_image(job.prepared.facts)] if job.limits.gpus else ()),
        "--no-privs", *(() if job.limits.network else ("--net", "--network", "none")),
        "--pwd", str(job.mounts.start or WORK), *(word for mount in mounts for word in ("--bind", mount)),
        job.prepared.reference,
        "/usr/bin/env", "-i", *(f"{name}={value}" for name, value in variables.items()), *job.argv,
    ]  # fmt: skip


def gpu_variables(job: Job) -> dict[str, str]:
    """Return the variables of a job with GPUs: the path of the driver's libraries, which ``env -i`` would drop.

    Apptainer exposes every GPU, so a variable such as CUDA_VISIBLE_DEVICES selects among them.
    """
    gpus = job.limits.gpus
    if not gpus:
        return {}
    maker = gpu_maker_of_image(job.prepared.facts)
    libraries = ":".join(filter(None, (_LIBRARIES.get(maker), job.env.get("LD_LIBRARY_PATH"))))
    return {**({"LD_LIBRARY_PATH": libraries} if libraries else {}), **visible_gpus(maker, gpus)}


def host_variables() -> dict[str, str]:
    """Return the host variables for Apptainer itself."""
    return {**{name: os.environ[name] for name in HOST_VARIABLES if name in os.environ}, **NO_CONFIG}


def find_program() -> str | None:
    """Return the path of Apptainer, or of its predecessor Singularity; None if neither is installed."""
    return shutil.which("apptainer") or shutil.which("singularity")
