"""Limit memory, CPU time and memory nodes of processes that run outside a container, with cgroups or rlimits."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from envmatrix.block.fork_limit import MOST_PROCESSES
from envmatrix.engines.base import QUOTA_PERIOD_US, Job, Limits, file_safe_name, quota_us
from envmatrix.errors import SkipEnvironmentError
from envmatrix.system.process import Place

_PREFIX = "envmatrix-"
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
    """How a process starts, and the cgroup that limits its memory (None: RLIMIT_DATA, or no limit)."""

    place: Place
    memory_group: Path | None = None

    def ran_out(self) -> bool:
        """Return whether memory ran out, when the process has ended."""
        return self.memory_group is not None and _ran_out_of_memory(self.memory_group)


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


def _find_usable_cgroup(controller: str) -> tuple[Path, str] | None:
    """Return (parent folder, kind) of a cgroup that can limit ``memory`` or ``cpu`` here; None if there is none."""
    mounts, file = _VERSION_1[controller]
    for mount in mounts:
        if (_ROOT / mount / file).exists() and os.access(_ROOT / mount, os.W_OK):
            return _ROOT / mount, "cgroup v1"
    version_2 = _parent_cgroup_v2(controller)
    return (version_2, "cgroup v2") if version_2 else None


def memory_limit_mechanism() -> str:
    """Return what enforces a memory limit here: ``cgroup v1``, ``cgroup v2`` or ``RLIMIT_DATA``."""
    cgroup = _find_usable_cgroup("memory")
    return cgroup[1] if cgroup else "RLIMIT_DATA"


def _ran_out_of_memory(group: Path) -> bool:
    for name in ("memory.oom_control", "memory.events"):
        with contextlib.suppress(OSError):
            fields = (group / name).read_text(encoding="ascii").split()
            return fields[fields.index("oom_kill") + 1] != "0" if "oom_kill" in fields else False
    return False


def _limit_files(limits: Limits) -> dict[str, dict[str, dict[str, str]]]:
    """Return the wanted limits as controller -> kind of cgroup -> file -> text.

    CPU time is limited per period: https://docs.kernel.org/scheduler/sched-bwc.html. Processes and threads are limited
    for root only; the supervisor limits those of other users.
    """
    files: dict[str, dict[str, dict[str, str]]] = {}
    if limits.cpu_quota is not None:
        quota, period = str(quota_us(limits.cpu_quota)), str(QUOTA_PERIOD_US)
        version_1 = {"cpu.cfs_period_us": period, "cpu.cfs_quota_us": quota}
        files["cpu"] = {"cgroup v1": version_1, "cgroup v2": {"cpu.max": f"{quota} {period}"}}
    if limits.memory_bytes is not None:
        most = str(limits.memory_bytes)
        files["memory"] = {"cgroup v1": {"memory.limit_in_bytes": most}, "cgroup v2": {"memory.max": most}}
    if os.geteuid() == 0:
        files["pids"] = {kind: {"pids.max": str(MOST_PROCESSES)} for kind in ("cgroup v1", "cgroup v2")}
    return files


def _create_cgroup(group: Path, files: Mapping[str, str]) -> None:
    """Create a cgroup with these limits. Raises OSError."""
    group.mkdir(exist_ok=True)
    for file, text in files.items():
        (group / file).write_text(text, encoding="ascii")
    swap = group / "memory.swap.max"
    if "memory.max" in files and swap.exists():  # memory in swap would escape the limit
        swap.write_text("0", encoding="ascii")


@contextlib.contextmanager
def prepare_confinement(name: str, limits: Limits) -> Iterator[Confinement]:
    """Prepare a process's placement, memory limit, CPU quota and process limit, in a cgroup called ``name``.

    Raises SkipEnvironmentError if CPU time cannot be limited.
    """
    groups: dict[str, Path] = {}
    with contextlib.ExitStack() as opened:
        for controller, files in _limit_files(limits).items():
            parent, kind = _find_usable_cgroup(controller) or (None, "")
            if parent is None:
                if controller == "cpu":
                    raise SkipEnvironmentError(_NO_QUOTA, remedy=_DOCKER_REMEDY)
                continue
            opened.callback(remove_cgroup_once_empty, parent / name)
            try:
                _create_cgroup(parent / name, files[kind])
                groups[controller] = parent / name
            except OSError as error:
                if controller == "cpu":
                    message = f"cannot limit the CPU time of a process: {error.strerror} ({error.filename})"
                    raise SkipEnvironmentError(message, remedy=_DOCKER_REMEDY) from error
        data_bytes = None if "memory" in groups else limits.memory_bytes
        place = Place(limits.cpus, limits.memory_nodes, tuple(dict.fromkeys(groups.values())), data_bytes)
        yield Confinement(place, groups.get("memory"))


def cgroup_name(job: Job) -> str:
    """Return the name of a job's cgroup; a run of another project can have the same name at the same time."""
    return f"{_PREFIX}{file_safe_name(job.run)}.{file_safe_name(job.label)}.{os.getpid()}"


def remove_cgroup_once_empty(group: Path) -> bool:
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
    parents = {place[0] for controller in _VERSION_1 if (place := _find_usable_cgroup(controller))}
    return sorted(group for parent in parents for group in parent.glob(f"{prefix}*"))


class CgroupConfined:
    """An engine whose processes start in cgroups created by envmatrix (``LimitsCpuTime``)."""

    def why_no_cpu_quota(self) -> str | None:
        """Return why CPU time cannot be limited here; None if it can."""
        return None if _find_usable_cgroup("cpu") else f"{_NO_QUOTA}\n  -> {_DOCKER_REMEDY}"

    def sweep(self, run: str) -> int:
        """Remove the cgroups of a killed run, whose processes ended with it."""
        return remove_empty_run_cgroups(run)


def remove_empty_run_cgroups(run: str) -> int:
    """Remove the cgroups left by a killed run of that name; return their number."""
    return sum(remove_cgroup_once_empty(group) for group in leftover_cgroups(f"{_PREFIX}{file_safe_name(run)}."))
