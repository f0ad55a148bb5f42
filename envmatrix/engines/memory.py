"""Memory limits and memory nodes of a process that no container confines."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_MPOL_BIND = 2
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
_ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Confinement:
    """``kind`` says what holds the limit; ``enter`` is called in the child; ``ran_out`` after it has ended."""

    kind: str
    enter: Callable[[], None] | None = None
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


def _killed(group: Path) -> bool:
    for name in ("memory.oom_control", "memory.events"):
        with contextlib.suppress(OSError):
            words = (group / name).read_text(encoding="ascii").split()
            return words[words.index("oom_kill") + 1] != "0" if "oom_kill" in words else False
    return False


@contextlib.contextmanager
def _limited_group(name: str, limit: int) -> Iterator[Confinement]:
    place = _group()
    if place is None:
        yield Confinement("RLIMIT_DATA", lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)))
        return
    parent, file, kind = place
    group = parent / name
    try:
        group.mkdir(exist_ok=True)
        (group / file).write_text(str(limit), encoding="ascii")
        _forbid_swap(group)
    except OSError:
        yield Confinement("RLIMIT_DATA", lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)))
        return
    members = str(group / "cgroup.procs")

    def enter() -> None:
        handle = os.open(members, os.O_WRONLY)
        os.write(handle, b"0")
        os.close(handle)

    try:
        yield Confinement(kind, enter, lambda: _killed(group))
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


def bind_memory(nodes: Sequence[int]) -> None:
    """Take memory from these NUMA nodes only; the policy stays over exec (set_mempolicy(2))."""
    mask = ctypes.c_ulong(sum(1 << node for node in nodes))
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None:
        raise OSError(f"memory nodes cannot be set on {platform.machine()}")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, _MPOL_BIND, ctypes.byref(mask), 8 * ctypes.sizeof(mask) + 1) != 0:
        raise OSError(ctypes.get_errno(), "set_mempolicy")


@contextlib.contextmanager
def confined(name: str, limit: int | None, nodes: Sequence[int]) -> Iterator[Confinement]:
    """Prepare a process's memory limit (bytes) and memory nodes; ``name`` is the cgroup's, where there is one."""
    with contextlib.ExitStack() as stack:
        limited = stack.enter_context(_limited_group(name, limit)) if limit else Confinement("none")

        def enter() -> None:
            if limited.enter:
                limited.enter()
            if nodes:
                bind_memory(nodes)

        yield Confinement(limited.kind, enter if limit or nodes else None, limited.ran_out)
