"""Memory settings that a process requests before it works: no huge pages, NUMA interleaving. Children inherit them."""

from __future__ import annotations

import ctypes
import os
import re

from bench.errors import BenchError, RunError

HUGE_PAGES_VARIABLE = "BENCH_HUGE_PAGES"
INTERLEAVE_VARIABLE = "BENCH_INTERLEAVE"
_PR_SET_THP_DISABLE = 41  # prctl(2)
_MPOL_INTERLEAVE = 3  # set_mempolicy(2)
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
_NODES = "/sys/devices/system/node/online"


def ask() -> None:
    """Apply the memory settings in this process's variables.

    ``BENCH_HUGE_PAGES`` is never; ``BENCH_INTERLEAVE`` is all, or a list of NUMA nodes. Raises BenchError for another
    value, RunError if the kernel refuses.
    """
    pages, nodes = os.environ.get(HUGE_PAGES_VARIABLE), os.environ.get(INTERLEAVE_VARIABLE)
    if pages is not None:
        if pages != "never":
            raise BenchError(f"{HUGE_PAGES_VARIABLE} must be never, not {pages!r}")
        _without_huge_pages()
    if nodes is not None:
        _interleave(_listed(_online() if nodes == "all" else nodes))


def _without_huge_pages() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0) != 0:
        raise RunError(f"transparent huge pages cannot be turned off: {os.strerror(ctypes.get_errno())}")


def _online() -> str:
    try:
        with open(_NODES, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return "0"


def _listed(text: str) -> list[int]:
    """Return the nodes of a list such as 0-1,3."""
    if not re.fullmatch(r"\d{1,3}(-\d{1,3})?(,\d{1,3}(-\d{1,3})?)*", text):
        raise BenchError(f"{INTERLEAVE_VARIABLE} must be all, or a list of NUMA nodes such as 0-1, not {text!r}")
    nodes: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        nodes += range(int(first), int(last or first) + 1)
    return nodes


def _interleave(nodes: list[int]) -> None:
    number, libc = _SET_MEMPOLICY.get(os.uname().machine), ctypes.CDLL(None, use_errno=True)
    if number is None:
        raise RunError(f"memory cannot be interleaved on {os.uname().machine}")
    bits = 8 * ctypes.sizeof(ctypes.c_ulong)
    mask = (ctypes.c_ulong * (max(nodes, default=0) // bits + 1))()
    for node in nodes:
        mask[node // bits] |= 1 << (node % bits)
    if libc.syscall(number, _MPOL_INTERLEAVE, ctypes.byref(mask), len(mask) * bits + 1) != 0:
        why = os.strerror(ctypes.get_errno())
        raise RunError(f"memory cannot be interleaved over the NUMA nodes {nodes}: {why}")
