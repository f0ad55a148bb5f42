"""The BLAS library that multiplies matrices."""

from __future__ import annotations

import os
import re
import sys
from typing import Any

from bench.evidence import dynamic
from bench.evidence.reading import attempt


def collect() -> dict[str, Any]:
    """Return the library that defines ``sgemm``, and the BLAS that torch was built with.

    PyTorch's wheels link MKL statically into libtorch_cpu, so that file is the library and ``built_with`` is mkl.
    """
    path = dynamic.symbol_owner("sgemm_") or dynamic.symbol_owner("cblas_sgemm")
    return {
        "library": dynamic.short_name(path) if path else None,
        "path": os.path.realpath(path) if path else None,
        "built_with": attempt(_built_with),
        "mkl_version": attempt(lambda: _from_config(r"Math Kernel Library Version ([0-9.]+)")),
        "onednn_version": attempt(lambda: _from_config(r"(?:MKL-DNN|oneDNN) v([0-9.]+)")),
    }


def _from_config(pattern: str) -> str | None:
    match = re.search(pattern, sys.modules["torch"].__config__.show())
    return match[1] if match else None


def _built_with() -> str | None:
    return _from_config(r"BLAS_INFO=(\w+)") or _from_config(r"\bBLAS=(\w+)")
