"""Evidence on huge pages, NUMA nodes and memory limits."""

from __future__ import annotations

import os
import re
from typing import Any

from bench.evidence import cgroup
from bench.evidence.reading import attempt, fields, number, selected_choice

_THP = "/sys/kernel/mm/transparent_hugepage"


def memory_requests(process: int | str, policy: bool = True) -> dict[str, Any]:
    """Return the huge page setting and NUMA policy of a process, given its id or "self".

    Reading the ``policy`` takes milliseconds, because the kernel counts pages.
    """
    status = fields(f"/proc/{process}/status")
    policy_text = attempt(lambda: _policy(process)) if policy else None
    kind, _, bound_nodes = (policy_text or "").partition(":")
    return {
        "thp_process": attempt(lambda: bool(int(status["THP_enabled"]))),
        "policy": policy_text,
        # The nodes that its memory comes from: bound by its policy, otherwise those of its control group.
        "nodes": bound_nodes if kind == "bind" else policy_text and status.get("Mems_allowed_list"),
    }


def _policy(process: int | str) -> str:
    with open(f"/proc/{process}/numa_maps", encoding="utf-8", errors="replace") as file:
        return file.readline().split()[1]


def collect() -> dict[str, Any]:
    """Return the evidence on memory; sizes in bytes."""
    memory_info = fields("/proc/meminfo")
    rollup = fields("/proc/self/smaps_rollup")
    return {
        "thp": selected_choice(_THP + "/enabled"),
        "thp_defrag": selected_choice(_THP + "/defrag"),
        "huge_pages_bytes": attempt(lambda: _kilobytes(rollup["AnonHugePages"])),
        "hugetlb_pages": attempt(lambda: int(memory_info["HugePages_Total"])),
        "numa_nodes": attempt(lambda: sum(bool(re.fullmatch(r"node\d+", name)) for name in os.listdir(_NODES))),
        "numa_balancing": number("/proc/sys/kernel/numa_balancing"),
        "nodes_allowed": fields("/proc/self/status").get("Mems_allowed_list"),
        "total_bytes": attempt(lambda: _kilobytes(memory_info["MemTotal"])),
        "limit_bytes": attempt(cgroup.memory_limit_bytes),
        "shm_bytes": attempt(_shm_bytes),
        "overcommit": number("/proc/sys/vm/overcommit_memory"),
        "swappiness": number("/proc/sys/vm/swappiness"),
        "page_bytes": attempt(lambda: os.sysconf("SC_PAGE_SIZE")),
        **memory_requests("self"),
    }


_NODES = "/sys/devices/system/node"


def _kilobytes(value: str) -> int:
    return int(value.split()[0]) * 1024


def _shm_bytes() -> int:
    file_system = os.statvfs("/dev/shm")
    return file_system.f_frsize * file_system.f_blocks
