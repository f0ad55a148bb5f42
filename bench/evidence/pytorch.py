"""Evidence that torch reports about itself."""

from __future__ import annotations

import os
from typing import Any

from bench.evidence.reading import attempt, first_match


def collect(torch: Any) -> dict[str, Any]:
    """Return torch's version, build, threads and the instruction set of its kernels."""
    return {
        "version": torch.__version__,
        "path": os.path.dirname(torch.__file__),
        "git": attempt(lambda: torch.version.git_version),
        "cuda": attempt(lambda: torch.version.cuda),
        "hip": attempt(lambda: torch.version.hip),
        "xpu": attempt(lambda: torch.version.xpu),
        "xpu_devices": attempt(lambda: _xpu_devices(torch)),
        "debug": attempt(lambda: torch.version.debug),
        "threads": attempt(torch.get_num_threads),
        "interop_threads": attempt(torch.get_num_interop_threads),
        "cpu_capability": attempt(lambda: _capability(torch)),
        "mkl": attempt(torch.backends.mkl.is_available),
        "onednn": attempt(torch.backends.mkldnn.is_available),
        "openmp": attempt(torch.backends.openmp.is_available),
        "build": attempt(torch.__config__.show),
    }


def _xpu_devices(torch: Any) -> list[str] | None:
    """Return the names of Intel's GPUs; None for a build without them."""
    if not torch.version.xpu:
        return None
    return [torch.xpu.get_device_name(number) for number in range(torch.xpu.device_count())]


def _capability(torch: Any) -> str | None:
    ask = getattr(getattr(torch.backends, "cpu", None), "get_cpu_capability", None)
    if ask is not None:
        return ask()
    return first_match(r"CPU capability usage: (\w+)", torch.__config__.show())
