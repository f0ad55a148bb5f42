"""Apptainer's command line: as whom, with what mounted, and with which variables a job is started."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from envmatrix.build.definitions import MOUNT_FOLDER, USER
from envmatrix.engines.base import Job, Limits
from envmatrix.engines.local import preload_variable
from envmatrix.errors import EngineError

WORK = "/work"
#: Where uid 0 may change the kernel or the machine, whatever capabilities it lacks.
_KERNEL_PATHS = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs", "/sys")
_CGROUP_ROOT = "/sys/fs/cgroup"
#: Numbers of capabilities: capability.h of Linux.
_SYS_ADMIN, _SYS_RESOURCE = 21, 24
#: Variables of the host that Apptainer itself needs; none of them gets inside.
HOST_VARIABLES = ("PATH", "HOME", "USER", "TMPDIR", "APPTAINER_TMPDIR", "APPTAINER_CACHEDIR", "XDG_RUNTIME_DIR")
#: Where ``--nv`` binds the driver's libraries: https://apptainer.org/docs/user/main/gpu.html
_NV_LIBRARIES = "/.singularity.d/libs"


def lacks_privilege() -> bool:
    """Say whether this is a root that cannot give what Apptainer gives root by default (containers, some clusters)."""
    return os.geteuid() == 0 and not _has_capability(_SYS_RESOURCE)


def container_user() -> str | None:
    """Return uid:gid that a container has instead of its caller's, as in Docker; None: it has the caller's."""
    return f"{USER}:{USER}" if os.geteuid() == 0 and not needs_namespace() else None


def identity() -> tuple[str, ...]:
    """Return the options that keep root from being root inside; an ordinary user needs none.

    A root that needs a namespace has no other uid in it: what of the kernel uid 0 could change all the same is mounted
    read-only.
    """
    if container_user():
        return "--security", f"uid:{USER}", "--security", f"gid:{USER}"
    if os.geteuid() != 0:
        return ()
    return "--userns", *_read_only_binds(_KERNEL_PATHS)


def cgroup_options(limits: Limits) -> tuple[str, ...]:
    """Return the options that show a job with a CPU quota its control groups, which Apptainer hides as a rule."""
    if limits.cpu_quota is None or needs_namespace():  # there all of /sys is seen
        return ()
    return tuple(_read_only_binds([_CGROUP_ROOT]))


def _read_only_binds(paths: Iterable[str]) -> Iterator[str]:
    """Yield the options that mount paths where they are, read-only, and each file system that is mounted below them.

    Those below a mount that is made read-only stay as they were.
    """
    table = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    mounted = [line.split(" ")[4] for line in table]
    for path in paths:
        mounts_below = sorted({point for point in mounted if point.startswith(f"{path}/") and "\\" not in point})
        for mount_point in (path, *mounts_below):
            if Path(mount_point).exists():
                yield from ("--bind", f"{mount_point}:{mount_point}:ro")


def user_description() -> str:
    """Say in words as whom containers run."""
    if container_user():
        return f"no root rights (uid {USER})"
    if os.geteuid() == 0:
        return "root's uid, with the kernel's settings read-only: root here has no loop device or cannot mount"
    return "your own uid"


def needs_namespace() -> bool:
    """Say whether this is a root that cannot mount an image: a user namespace and FUSE then do, as for other users."""
    if os.geteuid() != 0:
        return False
    try:
        os.close(os.open("/dev/loop-control", os.O_RDWR))
    except OSError:
        return True
    return not _has_capability(_SYS_ADMIN)


def _has_capability(number: int) -> bool:
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        effective = next(int(line.split()[1], 16) for line in lines if line.startswith("CapEff:"))
    except (OSError, StopIteration, ValueError):
        return True
    return bool(effective >> number & 1)


def exec_argv(job: Job, program: str, whose: Sequence[str], marker: Path | None = None) -> list[str]:
    """Return the command of a job: a pure function, compared whole in a test. ``whose`` is ``identity()``.

    The variables go through ``env -i`` inside: Apptainer before 1.5 mangles quotes and dollars in its own
    options, and this way nothing of its own reaches the process either. ``marker`` is an empty folder mounted so
    that the container's processes can be found by it (see ``marked_processes``).
    """
    mounts = [
        f"{job.mounts.work}:{WORK}:rw",
        *(f"{path}:{MOUNT_FOLDER}/{name}:ro" for name, path in job.mounts.read.items()),
    ]
    mounts += [f"{path}:{path}:ro" for path in job.mounts.same]
    mounts += [f"{path}:{inside}:ro" for inside, path in job.prepared.mounted.items()]
    mounts += [f"{marker}:/mnt:ro"] if marker else []
    bad_mount = next((mount for mount in mounts if mount.count(":") != 2 or "," in mount), None)
    if bad_mount:
        raise EngineError(f"Apptainer cannot mount a folder with a colon or comma in its path: {bad_mount}")
    variables = {**job.prepared.variables, **job.env, **gpu_variables(job), **preload_variable(job.preload)}
    return [
        program, "--silent", "exec", *whose, "--containall", "--cleanenv", "--no-home",
        *(["--nv"] if job.limits.gpus else []),
        "--no-privs", *(() if job.limits.network else ("--net", "--network", "none")), "--pwd", WORK,
        *(word for mount in mounts for word in ("--bind", mount)),
        job.prepared.reference, "/usr/bin/env", "-i",
        *(f"{name}={value}" for name, value in variables.items()), *job.argv,
    ]  # fmt: skip


def gpu_variables(job: Job) -> dict[str, str]:
    """Return what a job with GPUs needs: ``env -i`` would hide where ``--nv`` puts the driver's libraries.

    ``--nv`` shows every GPU; CUDA_VISIBLE_DEVICES then chooses among them.
    """
    gpus = job.limits.gpus
    if not gpus:
        return {}
    libraries = ":".join(filter(None, (_NV_LIBRARIES, job.env.get("LD_LIBRARY_PATH"))))
    visible_devices = {} if gpus == ("all",) else {"CUDA_VISIBLE_DEVICES": ",".join(gpus)}
    return {"LD_LIBRARY_PATH": libraries, **visible_devices}


def host_variables() -> dict[str, str]:
    """Return all that Apptainer itself may know of the host."""
    return {name: os.environ[name] for name in HOST_VARIABLES if name in os.environ}


def find_program() -> str | None:
    """Return Apptainer's command, or its older name's, None when neither is here."""
    return shutil.which("apptainer") or shutil.which("singularity")
