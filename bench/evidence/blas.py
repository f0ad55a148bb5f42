"""The BLAS library that multiplies matrices."""

from __future__ import annotations

import os
import sys
from typing import Any

from bench.evidence import loaded_libraries
from bench.evidence.reading import attempt, first_match


def collect() -> dict[str, Any]:
    """Return the library that defines ``sgemm``, and the BLAS that torch was built with.

    PyTorch's wheels link MKL statically into libtorch_cpu, so that file is the library and ``built_with`` is mkl.
    """
    path = loaded_libraries.symbol_owner("sgemm_") or loaded_libraries.symbol_owner("cblas_sgemm")
    torch = sys.modules.get("torch")
    build = attempt(torch.__config__.show) if torch else None
    return {
        "library": loaded_libraries.short_name(path) if path else None,
        "path": os.path.realpath(path) if path else None,
        "built_with": first_match(r"BLAS_INFO=(\w+)", build) or first_match(r"\bBLAS=(\w+)", build),
        "mkl_version": first_match(r"Math Kernel Library Version ([0-9.]+)", build),
        "onednn_version": first_match(r"(?:MKL-DNN|oneDNN) v([0-9.]+)", build),
    }
