"""Memory limits and memory nodes of a process that no container confines."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from envmatrix.engines.base import Limits
from envmatrix.process import Place

_ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Confinement:
    """``kind`` says what holds the limit, ``place`` is where the process starts; ``ran_out`` is asked at its end."""

    kind: str
    place: Place
    ran_out: Callable[[], bool] = lambda: False


def _own_group_v2() -> Path | None:
    """Return this process's cgroup where a child group with a memory limit may be made."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()
        path = next(line[3:] for line in lines if line.startswith("0::"))
        group = _ROOT / path.lstrip("/")
        controllers = (group.parent / "cgroup.subtree_control").read_text(encoding="ascii").split()
    except (OSError, StopIteration):
        return None
    return group.parent if "memory" in controllers and os.access(group.parent, os.W_OK) else None


def _group() -> tuple[Path, str, str] | None:
    """Return (parent folder, name of the limit's file, kind) of a cgroup that may hold a limit here."""
    version_1 = _ROOT / "memory"
    if (version_1 / "memory.limit_in_bytes").exists() and os.access(version_1, os.W_OK):
        return version_1, "memory.limit_in_bytes", "cgroup v1"
    version_2 = _own_group_v2()
    return (version_2, "memory.max", "cgroup v2") if version_2 else None


def limit_holder() -> str:
    """Return what holds a memory limit of a process here: ``cgroup v1``, ``cgroup v2`` or ``RLIMIT_DATA``."""
    found = _group()
    return found[2] if found else "RLIMIT_DATA"


def _killed(group: Path) -> bool:
    for name in ("memory.oom_control", "memory.events"):
        with contextlib.suppress(OSError):
            words = (group / name).read_text(encoding="ascii").split()
            return words[words.index("oom_kill") + 1] != "0" if "oom_kill" in words else False
    return False


@contextlib.contextmanager
def _limited_group(name: str, limit: int, place: Place) -> Iterator[Confinement]:
    without = Confinement("RLIMIT_DATA", replace(place, data_bytes=limit))
    parts = _group()
    if parts is None:
        yield without
        return
    parent, file, kind = parts
    group = parent / name
    try:
        group.mkdir(exist_ok=True)
        (group / file).write_text(str(limit), encoding="ascii")
        _forbid_swap(group)
    except OSError:
        yield without
        return
    try:
        yield Confinement(kind, replace(place, group=group), lambda: _killed(group))
    finally:
        remove_group(group)


def _forbid_swap(group: Path) -> None:
    """Let the limit be one on memory, as in Docker: what is swapped out would not count (cgroup v2)."""
    file = group / "memory.swap.max"
    if file.exists():
        file.write_text("0", encoding="ascii")


def remove_group(group: Path) -> bool:
    """Remove a cgroup once the last of its processes is gone; say whether it was."""
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


def leftover_groups(prefix: str) -> list[Path]:
    """Return the cgroups of that name's beginning that a killed run left behind."""
    place = _group()
    return sorted(place[0].glob(f"{prefix}*")) if place else []


@contextlib.contextmanager
def confined(name: str, limits: Limits) -> Iterator[Confinement]:
    """Prepare where a process runs and its memory limit; ``name`` is its cgroup's, where there is one."""
    place = Place(limits.cpus, limits.memory_nodes)
    if limits.memory_bytes is None:
        yield Confinement("none", place)
        return
    with _limited_group(name, limits.memory_bytes, place) as confinement:
        yield confinement
