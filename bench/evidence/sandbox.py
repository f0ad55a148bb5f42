"""Evidence on the sandbox: system call filters, privileges and control groups, with or without a container."""

from __future__ import annotations

import os
from typing import Any

from bench.evidence import cgroup
from bench.evidence.reading import attempt, fields


def collect() -> dict[str, Any]:
    """Return the evidence on the sandbox; seccomp 0 is off, 1 strict, 2 a filter."""
    status = fields("/proc/self/status")
    periods = attempt(cgroup.cpu_periods) or (None, None)
    return {
        "seccomp": attempt(lambda: int(status["Seccomp"])),
        "seccomp_filters": attempt(lambda: int(status["Seccomp_filters"])),
        "no_new_privs": attempt(lambda: bool(int(status["NoNewPrivs"]))),
        "speculation_store_bypass": status.get("Speculation_Store_Bypass"),
        "speculation_indirect_branch": status.get("SpeculationIndirectBranch"),
        "capabilities": status.get("CapEff"),
        "uid": attempt(os.getuid),
        "root_read_only": attempt(lambda: bool(os.statvfs("/").f_flag & os.ST_RDONLY)),
        "network": attempt(lambda: sorted(os.listdir("/sys/class/net"))),
        "container_traces": attempt(_traces),
        "cgroup": {
            "version": attempt(_version),
            "cpu_limit": attempt(cgroup.cpu_limit),
            "cpu_periods": periods[0],
            "throttled_periods": periods[1],
            "cpu_set": attempt(cgroup.cpu_set),
            "pids_limit": attempt(cgroup.pids_limit),
            "memory_limit_bytes": attempt(cgroup.memory_limit_bytes),
        },
        "nice": attempt(lambda: os.getpriority(os.PRIO_PROCESS, 0)),
        "scheduler": attempt(lambda: os.sched_getscheduler(0)),
    }


def _version() -> int | None:
    return 2 if os.path.exists("/sys/fs/cgroup/cgroup.controllers") else 1 if cgroup.memberships() else None


def _traces() -> list[str]:
    """Return the traces that container engines leave; one of them alone does not prove that an engine runs this."""
    files = [path for path in ("/.dockerenv", "/run/.containerenv", "/.singularity.d") if os.path.exists(path)]
    variables = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER", "container")
    return files + [name for name in variables if name in os.environ]
