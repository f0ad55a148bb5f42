"""The BLAS library that multiplies matrices."""

from __future__ import annotations

import os
import sys
from typing import Any

from bench.evidence import symbol_resolution
from bench.evidence.reading import attempt, first_match


def collect() -> dict[str, Any]:
    """Return the library that defines ``sgemm``, and the BLAS that torch was built with.

    PyTorch's wheels link MKL statically into libtorch_cpu, so that file is the library and ``built_with`` is mkl.
    """
    path = symbol_resolution.symbol_owner("sgemm_") or symbol_resolution.symbol_owner("cblas_sgemm")
    torch = sys.modules.get("torch")
    build = attempt(torch.__config__.show) if torch else None
    return {
        "library": symbol_resolution.short_name(path) if path else None,
        "path": os.path.realpath(path) if path else None,
        "built_with": first_match(r"BLAS_INFO=(\w+)", build) or first_match(r"\bBLAS=(\w+)", build),
        "mkl_version": first_match(r"Math Kernel Library Version ([0-9.]+)", build),
        "onednn_version": first_match(r"(?:MKL-DNN|oneDNN) v([0-9.]+)", build),
    }
