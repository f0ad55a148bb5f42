"""The settings that oneDNN, the library behind torch's convolutions, actually uses.

torch hides oneDNN's functions, so its verbose lines are read: a small convolution runs twice after the timed part, and
a few more operations if a variable sets a size. https://uxlfoundation.github.io/oneDNN/dev_guide_verbose.html
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import tempfile
from collections.abc import Callable
from typing import Any, TypeVar

from bench.evidence.reading import attempt, first_match

_Result = TypeVar("_Result")


def collect() -> dict[str, Any] | None:
    """Return oneDNN's version, instruction set, kernel and maths mode, and whether it rounds or caches primitives."""
    torch = sys.modules["torch"]
    if not torch.backends.mkldnn.is_available():
        return None
    verbose_lines, sums = _convolved_twice(torch)
    return dict(
        described(verbose_lines),
        rounds=sums != _SUM,
        primitive_cache_size=attempt(lambda: _cache_size(torch)),
        matmul_min_dim=attempt(lambda: _matmul_min_dim(torch)),
    )


#: Enough channels to fill AMX tiles: with fewer, oneDNN skips some AMX kernels (ic % 32 in
#: src/cpu/x64/jit_brgemm_conv_utils.cpp).
_CHANNELS = 64
#: A number that float32 can represent and bfloat16 cannot, and the exact sum of 3 x 3 of it over all channels.
_IMAGE = 1 + 2**-12
_SUM = _CHANNELS * 9 * _IMAGE


def described(text: str) -> dict[str, Any]:
    """Return the evidence from oneDNN's verbose output of a convolution that ran twice."""
    runs = re.findall(r"^onednn_verbose,.*\bexec,cpu,convolution,([^,]+),.*$", text, re.MULTILINE)
    attributes = re.findall(r"^onednn_verbose,.*\bexec,cpu,convolution,.*$", text, re.MULTILINE)
    return {
        "version": first_match(r"info,oneDNN v([^ ]+)", text),
        "isa": first_match(r"info,cpu,isa:(.+)", text),
        "runtime": first_match(r"info,cpu,runtime:([^,\n]+)", text),
        "implementation": runs[0] if runs else None,
        "fpmath": (first_match(r"attr-fpmath:(\w+)", attributes[0]) or "strict") if attributes else None,
        # Whether the second run found a primitive in the cache; never if ONEDNN_PRIMITIVE_CACHE_CAPACITY=0. On Arm
        # PyTorch keeps the convolution itself, and oneDNN only its reorders.
        "primitive_cache": bool(re.search(r"create:cache_hit,cpu,(convolution|reorder)", text)) if runs else None,
    }


#: Number of primitives created to count those that are kept. Counting the default, 1024, would take seconds.
_MOST_COUNTED = 80
_CACHE_LIMITS = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "DNNL_PRIMITIVE_CACHE_CAPACITY")


def _cache_size(torch: Any) -> int | None:
    """Return how many primitives are kept, if a variable asks for a number that can be counted; otherwise None."""
    limit = next((os.environ[name] for name in _CACHE_LIMITS if name in os.environ), "")
    if not limit.isdecimal() or int(limit) >= _MOST_COUNTED:
        return None
    inputs = [torch.ones(size).to_mkldnn() for size in range(1, _MOST_COUNTED + 1)]
    text, _ = _verbose_lines(torch, lambda: [torch.relu(tensor) for tensor in (*inputs, *reversed(inputs))])
    return kept_primitives(text)


def kept_primitives(text: str) -> int | None:
    """Return how many of the primitives that were created first are found again, the newest first."""
    lookups = re.findall(r"create:cache_(hit|miss),cpu,eltwise", text)[_MOST_COUNTED:]
    return lookups.index("miss") if "miss" in lookups else None


_SMALLEST_PRODUCT = "TORCH_MKLDNN_MATMUL_MIN_DIM"
#: A larger product takes too long without a fast kernel for its type.
_LARGEST_PRODUCT = 1024


def _matmul_min_dim(torch: Any) -> int | None:
    """Return the size that the variable names, if oneDNN multiplies only larger matrices; otherwise None.

    Which types oneDNN multiplies depends on the processor: bfloat16 with AVX-512, float32 too on Arm.
    """
    size = int(os.environ.get(_SMALLEST_PRODUCT, "0"))
    if not 0 < size <= _LARGEST_PRODUCT:
        return None
    for kind in (torch.bfloat16, torch.float32):
        of_small, of_large = (torch.ones(edge, edge, dtype=kind) for edge in (size, size + 1))
        if _multiplies(torch, of_large):
            return None if _multiplies(torch, of_small) else size
    return None


def _multiplies(torch: Any, matrix: Any) -> bool:
    """Return whether oneDNN multiplies a matrix by itself."""
    text, _ = _verbose_lines(torch, lambda: torch.mm(matrix, matrix))
    return re.search(r"\bexec,cpu,(matmul|inner_product),", text) is not None


def _convolved_twice(torch: Any) -> tuple[str, float]:
    """Return oneDNN's verbose lines of a convolution that ran twice, and one number of its result."""
    convolve = torch.nn.functional.conv2d
    weights, images = torch.ones(_CHANNELS, _CHANNELS, 3, 3), torch.full((4, _CHANNELS, 8, 8), _IMAGE)

    def run() -> float:
        convolve(images, weights, padding=1)
        return float(convolve(images, weights, padding=1)[0, 0, 4, 4])

    return _verbose_lines(torch, run)


def _verbose_lines(torch: Any, run: Callable[[], _Result]) -> tuple[str, _Result]:
    """Call ``run`` under verbose mode; return what the library prints to standard output, and its result."""
    mode = torch.backends.mkldnn
    flush = ctypes.CDLL(None).fflush
    sys.stdout.flush()
    flush(None)
    with tempfile.TemporaryFile() as file:
        saved_stdout = os.dup(1)
        try:
            os.dup2(file.fileno(), 1)
            with torch.no_grad(), mode.verbose(mode.VERBOSE_ON_CREATION):
                result = run()
            flush(None)
        finally:
            os.dup2(saved_stdout, 1)
            os.close(saved_stdout)
        file.seek(0)
        return attempt(lambda: file.read().decode(errors="replace")) or "", result
