"""Communication libraries: NCCL's and Gloo's presence and version, and settings hidden in files."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable
from functools import partial
from typing import Any

from bench.evidence import symbol_resolution
from bench.evidence.reading import attempt
from bench.recorded_variables import recorded_text

#: NCCL reads both at start-up, in addition to its variables, without reporting it.
#: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
_HIDDEN = ("/etc/nccl.conf", "~/.nccl.conf")
#: PyTorch's libraries that call NCCL (or RCCL, which has the same functions), and one such function.
_TORCH_LIBRARIES, _FUNCTION = ("libtorch_cuda.so", "libtorch_hip.so"), "ncclAllReduce"
_PREFIXES = ("GLOO_", "NCCL_", "TORCH_NCCL_", "UCX_", "FI_")


def collect() -> dict[str, Any]:
    """Return the evidence on collective communication."""
    torch = sys.modules["torch"]
    is_available, bound = attempt(torch.distributed.is_available), attempt(bound_nccl)
    return {
        "available": is_available,
        "gloo": attempt(torch.distributed.is_gloo_available) if is_available else None,
        "nccl": attempt(torch.distributed.is_nccl_available) if is_available else None,
        "mpi": attempt(torch.distributed.is_mpi_available) if is_available else None,
        "nccl_version": bound and bound["version"],
        "nccl_built_with": attempt(lambda: ".".join(map(str, torch.cuda.nccl.version()))),
        "nccl_loaded": bound,
        "hidden_settings": hidden_settings(_HIDDEN),
        "variables": {
            name: recorded_text(name, os.environ[name]) for name in sorted(os.environ) if name.startswith(_PREFIXES)
        },
    }


def hidden_settings(paths: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return {path: {NAME: value}} for each configuration file that exists; normally {}."""
    found = {}
    for path in map(os.path.expanduser, paths):
        settings = attempt(partial(_settings, path))
        if settings is not None:
            found[path] = settings
    return found


def _settings(path: str) -> dict[str, str]:
    with open(path, encoding="utf-8", errors="replace") as file:
        pairs = (line.split("#", 1)[0].partition("=") for line in file)
        return {
            name.strip(): recorded_text(name.strip(), value.strip()) for name, separator, value in pairs if separator
        }


def bound_nccl() -> dict[str, str] | None:
    """Return path and version of the NCCL whose functions PyTorch calls; several may be loaded.

    ncclGetVersion returns 22703 for 2.27.3.
    """
    for torch in symbol_resolution.loaded_paths():
        if os.path.basename(torch).startswith(_TORCH_LIBRARIES):
            path = attempt(partial(symbol_resolution.bound_owner, torch, _FUNCTION)) or symbol_resolution.symbol_owner(
                _FUNCTION, os.path.basename(torch)
            )
            if path is None:
                return None
            number = ctypes.c_int()
            symbol_resolution.library(path).ncclGetVersion(ctypes.byref(number))
            return {"path": os.path.realpath(path), "version": nccl_version(number.value)}
    return None


def nccl_version(number: int) -> str:
    """Return NCCL's version number as text; before 2.9 the minor version had one digit (nccl.h, NCCL_VERSION)."""
    base = 10000 if number >= 10000 else 1000
    return f"{number // base}.{number % base // 100}.{number % 100}"
