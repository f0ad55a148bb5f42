"""The CPU quota of this process, from its control group or one above it (cgroup version 1 and 2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from envmatrix.doctor.finding import Finding, read_system_file

_ROOT = "/sys/fs/cgroup"
#: CPU controller -> mount points, by its name in /proc/self/cgroup (cgroup version 2 has an empty name).
_MOUNTS = {"cpu": (f"{_ROOT}/cpu", f"{_ROOT}/cpu,cpuacct"), "": (_ROOT, f"{_ROOT}/unified")}


@dataclass(frozen=True)
class Quota:
    """A CPU quota: ``cpus`` in CPUs, ``group`` that sets it, ``used_up`` the fraction of periods it throttled."""

    cpus: float
    group: str
    used_up: float | None


def tightest_quota(root: Path) -> Quota | None:
    """Return the tightest CPU quota, None without one."""
    quotas = [entry for group in _control_groups(root) for entry in [_read_quota(group, root)] if entry]
    return min(quotas, key=lambda entry: entry.cpus, default=None)


def check_cpu_quota(root: Path) -> Iterator[Finding]:
    """Check for a CPU quota: OpenMP runtimes do not see it and start too many threads."""
    tightest = tightest_quota(root)
    if tightest:
        used_text = (
            "" if tightest.used_up is None else f"; the limit was reached in {tightest.used_up:.0%} of its periods"
        )
        yield Finding(
            "CPU quota",
            "bad",
            f"the CPU time of {tightest.cpus:g} CPUs, set by {tightest.group}{used_text}",
            "use a CPU set instead (cpuset, taskset), or at most that many threads: `envmatrix docs cpu-limit`",
        )


def _control_groups(root: Path) -> Iterator[str]:
    """Yield this process's groups and those above, up to the mounts, as a container sees its group there."""
    own_paths = {"cpu": "/", "": "/"}
    for line in read_system_file("/proc/self/cgroup", root).splitlines():
        _, controllers, path = line.split(":", 2)
        own_paths.update({name: path for name in controllers.split(",") if name in own_paths})
    for name, mounts in _MOUNTS.items():
        parts = [part for part in own_paths[name].split("/") if part]
        yield from ("/".join([mount, *parts[:depth]]) for mount in mounts for depth in range(len(parts), -1, -1))


def _read_quota(group: str, root: Path) -> Quota | None:
    words = read_system_file(f"{group}/cpu.max", root).split() or [
        read_system_file(f"{group}/cpu.cfs_{name}_us", root) for name in ("quota", "period")
    ]
    if len(words) != 2 or not all(word.isdigit() for word in words) or words[1] == "0":  # "max", "-1" or no such file
        return None
    counts = dict(
        line.split() for line in read_system_file(f"{group}/cpu.stat", root).splitlines() if len(line.split()) == 2
    )
    periods = int(counts.get("nr_periods", 0))
    used_up = int(counts.get("nr_throttled", 0)) / periods if periods else None
    return Quota(int(words[0]) / int(words[1]), group, used_up)
