"""A CPU quota around this process: that of its control group or of one above it, version 1 and 2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from envmatrix.doctor.finding import Finding, read

_ROOT = "/sys/fs/cgroup"
#: Where each version has the groups of CPU time, by the controller's name in /proc/self/cgroup.
_MOUNTS = {"cpu": (f"{_ROOT}/cpu", f"{_ROOT}/cpu,cpuacct"), "": (_ROOT, f"{_ROOT}/unified")}


@dataclass(frozen=True)
class Quota:
    """``cpus`` is how many CPUs' time there is, ``group`` whose quota it is; ``used_up`` the share of its periods."""

    cpus: float
    group: str
    used_up: float | None


def quota(root: Path) -> Quota | None:
    """Return the tightest one, None where there is none."""
    found = [one for group in _groups(root) for one in [_of(group, root)] if one]
    return min(found, key=lambda one: one.cpus, default=None)


def limits(root: Path) -> Iterator[Finding]:
    """Look for a CPU quota: OpenMP runtimes do not see it and start too many threads."""
    found = quota(root)
    if found:
        used = "" if found.used_up is None else f"; used up in {found.used_up:.0%} of its periods"
        yield Finding(
            "CPU quota", "bad", f"the time of {found.cpus:g} CPUs, by {found.group}{used}",
            "use a CPU set instead (cpuset, taskset), or no more threads than that: `envmatrix docs cpu-limit`",
        )  # fmt: skip


def _groups(root: Path) -> Iterator[str]:
    """Yield this process's groups and those above, the mounts' own too: a container sees its group there."""
    own = {"cpu": "/", "": "/"}
    for line in read("/proc/self/cgroup", root).splitlines():
        _, controllers, path = line.split(":", 2)
        own.update({name: path for name in controllers.split(",") if name in own})
    for name, mounts in _MOUNTS.items():
        parts = [part for part in own[name].split("/") if part]
        yield from ("/".join([mount, *parts[:depth]]) for mount in mounts for depth in range(len(parts), -1, -1))


def _of(group: str, root: Path) -> Quota | None:
    words = read(f"{group}/cpu.max", root).split() or [
        read(f"{group}/cpu.cfs_{name}_us", root) for name in ("quota", "period")
    ]
    if len(words) != 2 or not all(word.isdigit() for word in words) or words[1] == "0":  # "max", "-1", no such file
        return None
    counts = dict(line.split() for line in read(f"{group}/cpu.stat", root).splitlines() if len(line.split()) == 2)
    periods = int(counts.get("nr_periods", 0))
    used_up = int(counts.get("nr_throttled", 0)) / periods if periods else None
    return Quota(int(words[0]) / int(words[1]), group, used_up)
