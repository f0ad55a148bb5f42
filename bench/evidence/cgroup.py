"""Limits that control groups (version 1 and 2) impose on this process."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from functools import partial

from bench.evidence.reading import attempt, number, text

_ROOT = "/sys/fs/cgroup"
_UNLIMITED = 1 << 60  # version 1 writes "no limit" as a number near 2**63


def memberships() -> dict[str, str]:
    """Return {controller: path} from /proc/self/cgroup; version 2 is the controller ''."""
    paths = {}
    for line in (text("/proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            paths[controller] = path
    return paths


def memory_limit_bytes() -> int | None:
    """Return the tightest memory limit of this group and its parents, or None if there is none."""
    return _tightest("memory", "memory.limit_in_bytes", "memory.max")


def oom_kills() -> int | None:
    """Return how many processes of this group the kernel's OOM killer has ended, or None if that is not counted."""
    for folder in folders("memory"):
        for name in ("memory.oom_control", "memory.events"):
            words = (text(f"{folder}/{name}") or "").split()
            if "oom_kill" in words:
                return int(words[words.index("oom_kill") + 1])
    return None


def memory_ran_out(kills: int | None) -> str:
    """Return text with the OOM kills beyond ``kills``: some engines do not report those of a container's children."""
    kills_now = attempt(oom_kills)
    killed = kills_now - kills if kills_now is not None and kills is not None else 0
    return f" as memory ran out ({killed} killed by the kernel)" if killed > 0 else ""


def open_freeze_events_file() -> int | None:
    """Open the file that signals when this version 2 group is frozen, or return None if there is none."""
    files = (attempt(partial(os.open, f"{folder}/cgroup.events", os.O_RDONLY)) for folder in folders(""))
    return next((file for file in files if file is not None), None)


def cpu_limit() -> float | None:
    """Return the CPU quota in CPUs (1.5 is one and a half), or None if there is none."""
    return min(_quotas().values(), default=None)


def cpu_periods() -> tuple[int, int] | None:
    """Return how many periods the group with the tightest CPU quota has run, and how many were throttled."""
    for folder in groups_by_quota():
        counts = cpu_stat(folder)
        if "nr_periods" in counts:
            return counts["nr_periods"], counts["nr_throttled"]
    return None


def groups_by_quota() -> list[str]:
    """Return the groups of the CPU controller, tightest quota first: groups below it do not count its throttling."""
    quotas = _quotas()
    return sorted(folders("cpu"), key=lambda folder: quotas.get(folder, math.inf))


def cpu_stat(folder: str) -> dict[str, int]:
    """Return the CPU counters of a group."""
    return {name: int(value) for name, value in map(str.split, (text(f"{folder}/cpu.stat") or "").splitlines())}


def _quotas() -> dict[str, float]:
    quotas = {}
    for folder in folders("cpu"):
        quota, period = number(folder + "/cpu.cfs_quota_us"), number(folder + "/cpu.cfs_period_us")
        if quota is not None and period and quota > 0:
            quotas[folder] = quota / period
        words = (text(folder + "/cpu.max") or "").split()
        if len(words) == 2 and words[0] != "max":
            quotas[folder] = int(words[0]) / int(words[1])
    return quotas


def cpu_set() -> str | None:
    """Return the CPU list of this group in the kernel's notation, or None."""
    for folder in folders("cpuset"):
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
            cpus = text(f"{folder}/{name}")
            if cpus:
                return cpus
    return None


def pids_limit() -> int | None:
    """Return the limit on processes and threads, or None if there is none."""
    return _tightest("pids", "pids.max")


def _tightest(controller: str, *names: str) -> int | None:
    limits = [number(f"{folder}/{name}") for folder in folders(controller) for name in names]
    return min((limit for limit in limits if limit is not None and limit < _UNLIMITED), default=None)


def folders(controller: str) -> Iterator[str]:
    """Yield this process's group folder and its parents, nearest first, for version 1 and version 2."""
    groups = memberships()
    mount_places = []
    if controller in groups:
        mounts = {"cpu": ("cpu", "cpu,cpuacct")}.get(controller, (controller,))
        mount_places += [(f"{_ROOT}/{mount}", groups[controller]) for mount in mounts]
    if "" in groups:
        mount_places += [(_ROOT, groups[""]), (_ROOT + "/unified", groups[""])]
    for mount, group in mount_places:
        # In a container, /proc shows the host's path, but the mount's root is the container's own group: go up to it.
        path_parts = [part for part in group.split("/") if part]
        for depth in range(len(path_parts), -1, -1):
            folder = "/".join([mount, *path_parts[:depth]])
            if os.path.isdir(folder):
                yield folder
