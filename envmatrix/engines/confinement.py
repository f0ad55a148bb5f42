"""Limit memory, CPU time and memory nodes of processes that run outside a container, with cgroups or rlimits."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from envmatrix.block.crowd import MOST_PROCESSES
from envmatrix.engines.base import QUOTA_PERIOD_US, Limits, quota_us
from envmatrix.errors import SkipEnvironmentError
from envmatrix.system.process import Place

_ROOT = Path("/sys/fs/cgroup")
#: For each version 1 controller: possible mount points, and the file of its limit.
_VERSION_1 = {
    "memory": (("memory",), "memory.limit_in_bytes"),
    "cpu": (("cpu", "cpu,cpuacct"), "cpu.cfs_quota_us"),
    "pids": (("pids",), "cgroup.procs"),  # the root group has no pids.max
}
_NO_QUOTA = "envmatrix cannot create a control group with a CPU quota here"
_DOCKER_REMEDY = "use `--engine docker`, or start envmatrix as root, or under a systemd that delegates `cpu` to you"


@dataclass(frozen=True)
class Confinement:
    """``kind`` is what enforces the memory limit; ``place`` is how the process starts.

    ``ran_out`` is called when it ends, and returns whether memory ran out.
    """

    kind: str
    place: Place
    ran_out: Callable[[], bool] = lambda: False


def plain_place(limits: Limits) -> Place:
    """Return where a process runs if no control group may be made: its memory limit is RLIMIT_DATA then."""
    return Place(limits.cpus, limits.memory_nodes, data_bytes=limits.memory_bytes)


def _parent_cgroup_v2(controller: str) -> Path | None:
    """Return the parent of this process's cgroup if child groups limited by a controller can be created there."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()
        path = next(line[3:] for line in lines if line.startswith("0::"))
        group = _ROOT / path.lstrip("/")
        controllers = (group.parent / "cgroup.subtree_control").read_text(encoding="ascii").split()
    except (OSError, StopIteration):
        return None
    return group.parent if controller in controllers and os.access(group.parent, os.W_OK) else None


def _find_cgroup(controller: str) -> tuple[Path, str] | None:
    """Return (parent folder, kind) of a cgroup that can limit ``memory`` or ``cpu`` here; None if there is none."""
    mounts, file = _VERSION_1[controller]
    for mount in mounts:
        if (_ROOT / mount / file).exists() and os.access(_ROOT / mount, os.W_OK):
            return _ROOT / mount, "cgroup v1"
    version_2 = _parent_cgroup_v2(controller)
    return (version_2, "cgroup v2") if version_2 else None


def limit_holder() -> str:
    """Return what enforces a memory limit here: ``cgroup v1``, ``cgroup v2`` or ``RLIMIT_DATA``."""
    cgroup = _find_cgroup("memory")
    return cgroup[1] if cgroup else "RLIMIT_DATA"


class CgroupConfined:
    """An engine whose processes start in cgroups created by envmatrix (``LimitsCpuTime``)."""

    def why_no_quota(self) -> str | None:
        """Return why CPU time cannot be limited here; None if it can."""
        return None if _find_cgroup("cpu") else f"{_NO_QUOTA}\n  -> {_DOCKER_REMEDY}"


def _ran_out_of_memory(group: Path) -> bool:
    for name in ("memory.oom_control", "memory.events"):
        with contextlib.suppress(OSError):
            fields = (group / name).read_text(encoding="ascii").split()
            return fields[fields.index("oom_kill") + 1] != "0" if "oom_kill" in fields else False
    return False


@contextlib.contextmanager
def _limit_memory(name: str, limit: int, place: Place) -> Iterator[Confinement]:
    without = Confinement("RLIMIT_DATA", replace(place, data_bytes=limit))
    cgroup = _find_cgroup("memory")
    if cgroup is None:
        yield without
        return
    parent, kind = cgroup
    group = parent / name
    try:
        group.mkdir(exist_ok=True)
        file = "memory.max" if kind == "cgroup v2" else _VERSION_1["memory"][1]
        (group / file).write_text(str(limit), encoding="ascii")
        _forbid_swap(group)
    except OSError:
        yield without
        return
    try:
        yield Confinement(kind, _enter_cgroup(place, group), lambda: _ran_out_of_memory(group))
    finally:
        remove_cgroup(group)


def _forbid_swap(group: Path) -> None:
    """Disable swap, which would otherwise escape the memory limit (cgroup v2)."""
    file = group / "memory.swap.max"
    if file.exists():
        file.write_text("0", encoding="ascii")


def _enter_cgroup(place: Place, group: Path) -> Place:
    return replace(place, groups=tuple(dict.fromkeys((*place.groups, group))))


@contextlib.contextmanager
def _limit_cpu_time(name: str, cpus: float, place: Place) -> Iterator[Place]:
    """Limit the CPU time of processes per period with cpu.max (v2) or cpu.cfs_quota_us (v1).

    https://docs.kernel.org/scheduler/sched-bwc.html
    """
    cgroup = _find_cgroup("cpu")
    if cgroup is None:
        raise SkipEnvironmentError(_NO_QUOTA, remedy=_DOCKER_REMEDY)
    parent, kind = cgroup
    group, quota = parent / name, quota_us(cpus)
    files = {"cpu.max": f"{quota} {QUOTA_PERIOD_US}"}
    if kind == "cgroup v1":
        files = {"cpu.cfs_period_us": f"{QUOTA_PERIOD_US}", "cpu.cfs_quota_us": f"{quota}"}
    try:
        try:
            group.mkdir(exist_ok=True)
            for file, text in files.items():
                (group / file).write_text(text, encoding="ascii")
        except OSError as error:
            message = f"cannot limit the CPU time of a process: {error.strerror} ({error.filename})"
            raise SkipEnvironmentError(message, remedy=_DOCKER_REMEDY) from error
        yield _enter_cgroup(place, group)
    finally:
        remove_cgroup(group)


@contextlib.contextmanager
def _limit_processes(name: str, place: Place) -> Iterator[Place]:
    """Limit processes and threads of root, as far as possible; the supervisor limits those of other users."""
    cgroup = None if os.geteuid() else _find_cgroup("pids")
    if cgroup is None:
        yield place
        return
    group = cgroup[0] / name
    try:
        try:
            group.mkdir(exist_ok=True)
            (group / "pids.max").write_text(str(MOST_PROCESSES), encoding="ascii")
        except OSError:
            yield place
        else:
            yield _enter_cgroup(place, group)
    finally:
        remove_cgroup(group)


def remove_cgroup(group: Path) -> bool:
    """Remove a cgroup after its last process ends; return whether that succeeded."""
    for _ in range(50):
        try:
            group.rmdir()
        except FileNotFoundError:
            return True
        except OSError:
            time.sleep(0.02)
        else:
            return True
    return False


def leftover_cgroups(prefix: str) -> list[Path]:
    """Return the cgroups with that name prefix left by a killed run."""
    parents = {place[0] for controller in _VERSION_1 if (place := _find_cgroup(controller))}
    return sorted(group for parent in parents for group in parent.glob(f"{prefix}*"))


@contextlib.contextmanager
def prepare_confinement(name: str, limits: Limits) -> Iterator[Confinement]:
    """Prepare a process's placement, memory limit, CPU quota and process limit, in a cgroup called ``name``.

    Raises SkipEnvironmentError if CPU time cannot be limited.
    """
    place = Place(limits.cpus, limits.memory_nodes)
    with contextlib.ExitStack() as opened:
        if limits.cpu_quota is not None:
            place = opened.enter_context(_limit_cpu_time(name, limits.cpu_quota, place))
        confined = Confinement("none", place)
        if limits.memory_bytes is not None:
            confined = opened.enter_context(_limit_memory(name, limits.memory_bytes, place))
        yield replace(confined, place=opened.enter_context(_limit_processes(name, confined.place)))
