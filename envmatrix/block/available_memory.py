"""Memory available to processes, and the number of processes killed for lack of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
#: The share of the free memory that interleaved processes may use together.
_MEMORY_SHARE = 0.8
#: Files with a control group's limit and its usage, by the controller's mount ("" in version 2).
_CGROUP_FILES = {"memory": ("memory.limit_in_bytes", "memory.usage_in_bytes"), "": ("memory.max", "memory.current")}


def usable_memory(free_bytes: int) -> int:
    """Return how many of the free bytes interleaved processes may use together."""
    return int(_MEMORY_SHARE * free_bytes)


def free_memory(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """Return the bytes available to new processes: of the machine, or left in this process's control groups."""
    words = (proc / "meminfo").read_text(encoding="ascii").split()
    available = [1024 * int(words[words.index("MemAvailable:") + 1])]
    for mount, path in [("memory", ""), ("", ""), *_own_groups(proc)]:
        limit_file, usage_file = _CGROUP_FILES[mount]
        group = cgroups / mount / path
        while True:
            try:
                limit = (group / limit_file).read_text(encoding="ascii").strip()
                used = int((group / usage_file).read_text(encoding="ascii"))
                available += [int(limit) - used] if limit != "max" else []
            except (OSError, ValueError):
                pass
            if group == cgroups / mount:
                break
            group = group.parent
    return max(0, min(available))


def memory_kills(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """Return how many processes of this process's control group were killed for lack of memory so far."""
    for mount, path in _own_groups(proc):
        try:
            file = cgroups / mount / path / ("memory.oom_control" if mount else "memory.events")
            words = file.read_text(encoding="ascii").split()
            return int(words[words.index("oom_kill") + 1])
        except (OSError, ValueError):
            continue
    return 0


def _own_groups(proc: Path) -> Iterator[tuple[str, str]]:
    """Yield the mount and the path of this process's control groups that may limit memory."""
    try:
        lines = (proc / "self" / "cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers in _CGROUP_FILES:
            yield controllers, path.lstrip("/")
