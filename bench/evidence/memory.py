"""Huge pages, NUMA nodes and memory limits."""

from __future__ import annotations

import os
import re
from typing import Any

from bench.evidence import cgroup
from bench.evidence.reading import attempt, fields, number, selected, text

_THP = "/sys/kernel/mm/transparent_hugepage"


def collect() -> dict[str, Any]:
    """Return the evidence on memory; sizes in bytes."""
    total = fields("/proc/meminfo")
    rollup = fields("/proc/self/smaps_rollup")
    return {
        "thp": selected(_THP + "/enabled"),
        "thp_defrag": selected(_THP + "/defrag"),
        "thp_process": attempt(lambda: bool(int(fields("/proc/self/status")["THP_enabled"]))),
        "huge_pages_bytes": attempt(lambda: _kilobytes(rollup["AnonHugePages"])),
        "hugetlb_pages": attempt(lambda: int(total["HugePages_Total"])),
        "numa_nodes": attempt(lambda: sum(bool(re.fullmatch(r"node\d+", name)) for name in os.listdir(_NODES))),
        "numa_balancing": number("/proc/sys/kernel/numa_balancing"),
        "nodes_allowed": fields("/proc/self/status").get("Mems_allowed_list"),
        "total_bytes": attempt(lambda: _kilobytes(total["MemTotal"])),
        "limit_bytes": attempt(cgroup.memory_limit_bytes),
        "shm_bytes": attempt(_shm_bytes),
        "overcommit": number("/proc/sys/vm/overcommit_memory"),
        "swappiness": number("/proc/sys/vm/swappiness"),
        "page_bytes": attempt(lambda: os.sysconf("SC_PAGE_SIZE")),
        "policy": attempt(lambda: (text("/proc/self/numa_maps") or "").split("\n", 1)[0].split()[1]),
    }


_NODES = "/sys/devices/system/node"


def _kilobytes(value: str) -> int:
    return int(value.split()[0]) * 1024


def _shm_bytes() -> int:
    found = os.statvfs("/dev/shm")
    return found.f_frsize * found.f_blocks
