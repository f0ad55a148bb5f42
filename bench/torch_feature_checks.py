"""Checks that this environment's torch supports the chosen options (``needs`` in options.json)."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from typing import Any

from bench import options as workload_options
from bench.errors import SkipError
from bench.options import Options


def check(values: Options) -> None:
    """Raise SkipError, with the reason, for the first chosen option that this environment does not support."""
    for what, requirement in workload_options.requirements(values):
        for kind, needed in requirement.items():
            reason = _TESTS[kind](needed)
            if reason:
                raise SkipError(f"{what} needs {reason}")


def _torch_from(needed_version: str) -> str | None:
    version = sys.modules["torch"].__version__
    is_old = version_tuple(version) < version_tuple(needed_version)
    return f"torch {needed_version} or newer, and this is {version}" if is_old else None


def _module(name: str) -> str | None:
    try:
        is_here = importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        is_here = False
    return None if is_here else f"the Python module {name}, which is not in this environment"


def _accelerator(_wanted: bool) -> str | None:
    return None if sys.modules["torch"].cuda.is_available() else "an accelerator, and there is none here"


def _gpu(_wanted: bool) -> str | None:
    from bench.devices import why_no_cuda

    return why_no_cuda(sys.modules["torch"])


def _distributed(_wanted: bool) -> str | None:
    torch = sys.modules["torch"]
    if torch.distributed.is_available():
        return None
    return f"a torch with torch.distributed, and this {torch.__version__} was built without"


def _compiler(_wanted: bool) -> str | None:
    program = os.environ.get("CXX", "g++")
    return None if shutil.which(program) else f"a C++ compiler ({program}), which is not in this environment"


def _dynamo(_wanted: bool) -> str | None:
    torch = sys.modules["torch"]
    supported: Any = getattr(getattr(torch, "_dynamo", None), "is_dynamo_supported", None)
    if supported is None:
        supported = getattr(importlib.import_module("torch._dynamo"), "is_dynamo_supported", lambda: True)
    return None if supported() else f"a Python that this torch can compile, and this is {sys.version.split()[0]}"


def _onnx_export(_wanted: bool) -> str | None:
    # From 2.1 on, torch's exporter requires the onnx package.
    is_new_enough = version_tuple(sys.modules["torch"].__version__) >= (2, 1)
    return _module("onnx") if is_new_enough else None


#: One test per kind of need in options.json: it returns what is missing, or None.
_TESTS: Mapping[str, Callable[[Any], str | None]] = {
    "torch": _torch_from,
    "module": _module,
    "object": lambda reference: _module(reference.partition(":")[0]),
    "accelerator": _accelerator,
    "gpu": _gpu,
    "distributed": _distributed,
    "compiler": _compiler,
    "dynamo": _dynamo,
    "onnx_export": _onnx_export,
}


def version_tuple(version: str) -> tuple[int, ...]:
    """Return the release numbers of a version: 2.13.0+cpu is (2, 13, 0)."""
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


def compute_tensor_in_parallel() -> Any:
    """Return a 16 MiB tensor, computed in parallel; keep it while reading the evidence of a process without a workload.

    It starts and binds the OpenMP team and puts the allocator to use: huge pages appear only with large allocations.
    """
    torch = sys.modules["torch"]
    return torch.ones(1 << 22).add_(1)
