"""The OpenMP runtime that torch uses, and the settings it accepted.

``GOMP_parallel`` is the symbol that PyTorch's code calls; Intel's and LLVM's runtimes define it too.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

from bench.evidence import openmp_runtimes_in_use, symbol_resolution
from bench.evidence.reading import attempt

# 0 to 4 are OpenMP's values; LLVM's and Intel's runtimes add 6 and 7 if KMP_AFFINITY is in effect (kmp.h).
_PROC_BIND = {0: "false", 1: "true", 2: "primary", 3: "close", 4: "spread", 6: "kmp-affinity", 7: "default"}
_SETTING = re.compile(r"^\s*(?:\[[^\]]*\]\s*)?([A-Z_]+)\s*=\s*'(.*)'\s*$")

# Runs in a new process: a runtime prints its settings only at start-up, which the library call triggers.
_DISPLAY = """\
import ctypes, os, sys
cpus = [int(cpu) for cpu in sys.argv[2].split(",") if cpu]
if cpus:
    os.sched_setaffinity(0, cpus)
ctypes.CDLL(sys.argv[1]).omp_get_max_threads()
"""


def collect(affinity_before: list[int] | None) -> dict[str, Any] | None:
    """Return the evidence on OpenMP, or None if this torch was built without it.

    Must run before other evidence computes anything: threads started by that are not the program's.
    """
    workers = attempt(openmp_runtimes_in_use.workers)
    path = symbol_resolution.symbol_owner("GOMP_parallel") or symbol_resolution.symbol_owner("__kmpc_fork_call")
    if path is None:
        return None
    handle = symbol_resolution.library(path)
    bind = attempt(lambda: symbol_resolution.call_function(handle, "omp_get_proc_bind"))
    settings = attempt(lambda: displayed_settings(path, affinity_before or [])) or {}
    blocktime = attempt(lambda: symbol_resolution.call_function(handle, "kmp_get_blocktime"))
    spins = settings.get("GOMP_SPINCOUNT")
    return {
        "library": symbol_resolution.short_name(path),
        "path": os.path.realpath(path),
        "version": attempt(lambda: _version(path)),
        "specification": settings.get("_OPENMP"),
        "threads": attempt(lambda: symbol_resolution.call_function(handle, "omp_get_max_threads")),
        "processors": attempt(lambda: symbol_resolution.call_function(handle, "omp_get_num_procs")),
        "places": attempt(lambda: symbol_resolution.call_function(handle, "omp_get_num_places")),
        "dynamic": attempt(lambda: symbol_resolution.call_function(handle, "omp_get_dynamic")),
        "thread_limit": attempt(lambda: symbol_resolution.call_function(handle, "omp_get_thread_limit")),
        "proc_bind": None if bind is None else _PROC_BIND.get(bind),
        "blocktime": blocktime,
        "affinity": settings.get("KMP_AFFINITY") or settings.get("OMP_PLACES") or None,
        "wait_policy": settings.get("OMP_WAIT_POLICY"),
        "spin_count": spins,
        # The default is also displayed as PASSIVE, but spins for a while before it sleeps.
        "sleeps": None if spins is None and blocktime is None else spins == "0" or blocktime == 0,
        "workers": workers,
        "settings": settings,
        "loaded": sorted(
            {name for name in map(symbol_resolution.short_name, symbol_resolution.loaded_paths()) if name in _RUNTIMES}
        ),
    }


_RUNTIMES = ("libgomp", "libiomp5", "libomp")


def displayed_settings(path: str, cpus: Iterable[int]) -> dict[str, str]:
    """Return the settings that the runtime accepted, as it prints them for OMP_DISPLAY_ENV=VERBOSE."""
    argv = [sys.executable, "-S", "-c", _DISPLAY, path, ",".join(map(str, cpus))]
    variables = dict(os.environ, OMP_DISPLAY_ENV="VERBOSE")
    result = subprocess.run(argv, env=variables, capture_output=True, timeout=10, check=False, stdin=subprocess.DEVNULL)
    lines = (result.stdout + result.stderr).decode(errors="replace").splitlines()
    return {match[1]: match[2] for match in map(_SETTING.match, lines) if match}


def _version(path: str) -> str | None:
    """Return the version that the runtime's file contains, or None; libgomp has only its compiler's."""
    with open(path, "rb") as file:
        content = file.read()
    for pattern in (
        rb"Intel\(R\) OMP version: ([0-9][0-9.]*)",
        rb"@\(#\) ?Intel\(R\) OpenMP\* Runtime Library version ([0-9.]+)",
        rb"LLVM(?:\(TM\))? OMP version: ([0-9][0-9.]*)",
        rb"GCC: \([^)]*\) ([0-9.]+)",
    ):
        match = re.search(pattern, content)
        if match:
            return match[1].decode()
    return None
