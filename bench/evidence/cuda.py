"""Evidence on the GPU: loaded libraries, driver, clocks, throttling, and other processes that use it."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable
from typing import Any

from bench.evidence import symbol_resolution
from bench.evidence.nvml import Nvml
from bench.evidence.reading import attempt, first_match, text

_LIBRARIES = ("libcuda", "libcudart", "libcudnn", "libcublas", "libcublasLt", "libnccl", "libnvidia-ml", "libnvrtc")


def collect() -> dict[str, Any]:
    """Return the evidence on CUDA; without CUDA it still shows driver, libraries and torch's build."""
    torch = sys.modules["torch"]
    is_initialized = attempt(torch.cuda.is_initialized)  # before any query below initialises CUDA
    paths = attempt(symbol_resolution.loaded_paths) or []
    return {
        "used": is_initialized,
        "built_with": attempt(lambda: torch.version.cuda),
        "available": attempt(torch.cuda.is_available),
        "driver": first_match(r"Module\s+([0-9.]+)", text("/proc/driver/nvidia/version")),
        "driver_cuda": attempt(_driver_cuda),
        "cudnn": attempt(torch.backends.cudnn.version),
        "libraries": libraries_by_family(paths),
        "devices": attempt(lambda: _devices(torch)),
        "settings": attempt(lambda: _settings(torch, is_initialized)),
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "nvml": attempt(nvml_evidence),
    }


def libraries_by_family(paths: Iterable[str]) -> dict[str, list[str]]:
    """Return {family: [paths]} of the CUDA libraries that are mapped, not just installed."""
    families: dict[str, list[str]] = {}
    for path in paths:
        family = os.path.basename(path).split(".so", 1)[0]
        if family in _LIBRARIES:
            families.setdefault(family, []).append(os.path.realpath(path))
    return families


def _driver_cuda() -> str:
    """Return the newest CUDA version that the loaded driver supports: 12080 is 12.8."""
    number = _driver_number("cuDriverGetVersion")
    return f"{number // 1000}.{number % 1000 // 10}"


def _driver_number(function: str) -> int:
    """Return what a function of the loaded driver (cuda.h) says. Raises an error if there is none, or it has none."""
    path = next(path for path in symbol_resolution.loaded_paths() if os.path.basename(path).startswith("libcuda.so"))
    number = ctypes.c_int()
    if getattr(symbol_resolution.library(path), function)(ctypes.byref(number)):
        raise OSError(f"{function} failed")
    return number.value


def _devices(torch: Any) -> list[dict[str, Any]]:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [
        {
            "name": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "memory_bytes": properties.total_memory,
            "multiprocessors": properties.multi_processor_count,
            "uuid": str(getattr(properties, "uuid", "")) or None,
        }
        for properties in map(torch.cuda.get_device_properties, range(count))
    ]


def _settings(torch: Any, used: bool | None) -> dict[str, Any]:
    """Return torch's settings for numerical formats, cuDNN and GPU memory."""
    options = attempt(lambda: torch.cuda.memory._snapshot()["allocator_settings"]) or {}
    return {
        "tf32_matmul": torch.backends.cuda.matmul.allow_tf32,
        "tf32_cudnn": torch.backends.cudnn.allow_tf32,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "allocator": attempt(torch.cuda.get_allocator_backend),
        "expandable_segments": options.get("expandable_segments"),
        "allocator_options": {name: value for name, value in options.items() if isinstance(value, (bool, int, float))}
        or None,
        # CUDA 11.7 added the function; the numbers are those of cuda.h.
        "module_loading": attempt(lambda: {1: "EAGER", 2: "LAZY"}.get(_driver_number("cuModuleGetLoadingMode"))),
        "tf32_probe": attempt(lambda: rounds_to_tf32(torch, "cuda")) if torch.cuda.is_available() else None,
        **_libraries_chosen(torch, used),
    }


def _libraries_chosen(torch: Any, used: bool | None) -> dict[str, Any]:
    """Return which libraries multiply matrices and solve on a GPU, and how; nothing for a build without one."""
    if not (torch.version.cuda or getattr(torch.version, "hip", None)):
        return {}
    blas, linalg = (_answer(torch.backends.cuda, f"preferred_{kind}_library") for kind in ("blas", "linalg"))
    tunable = getattr(torch.cuda, "tunable", None)
    return {
        "preferred_blas": blas and blas.name.lower(),
        "preferred_linalg": linalg and linalg.name.lower(),
        "tunableop": _answer(tunable, "is_enabled"),
        "tunableop_tuning": _answer(tunable, "tuning_is_enabled"),
        "cublaslt_workspace_bytes": _answer(torch._C, "_cuda_getCublasLtWorkspaceSize"),
        # PyTorch asks the GPU for its default: a process that has not begun to work on one is not made to.
        "cublas_workspace_bytes": _answer(torch._C, "_cuda_getCublasWorkspaceSize") if used else None,
    }


def _answer(place: Any, name: str) -> Any:
    """Return what a function of PyTorch says, None where this PyTorch does not have it."""
    function = getattr(place, name, None)
    return attempt(function) if function else None


def rounds_to_tf32(torch: Any, device: str) -> bool:
    """Return whether a product of fp32 matrices drops bits that fp32 keeps and TF32 (10 bits) does not.

    Variables such as NVIDIA_TF32_OVERRIDE act below torch, whose flags do not show them.
    """
    number = 1 + 2.0**-12
    left_factor = torch.full((64, 64), number, device=device)
    return (left_factor @ torch.eye(64, device=device))[0, 0].item() != number


def nvml_evidence() -> dict[str, Any]:
    """Return the state of every GPU from NVIDIA's management library. Raises OSError if it is missing."""
    with Nvml() as library:
        return {
            "driver": attempt(library.driver),
            "devices": [library.device(number) for number in range(library.count())],
        }
