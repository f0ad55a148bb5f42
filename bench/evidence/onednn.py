"""The settings that oneDNN, the library behind torch's convolutions, actually uses.

torch hides oneDNN's functions. Instead, a small convolution runs twice in verbose mode after the timed part, and its
output is parsed. https://uxlfoundation.github.io/oneDNN/dev_guide_verbose.html
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import tempfile
from typing import Any

from bench.evidence.reading import attempt


def collect() -> dict[str, Any] | None:
    """Return oneDNN's version, instruction set, kernel and maths mode, and whether it rounds or caches primitives."""
    torch = sys.modules["torch"]
    if not torch.backends.mkldnn.is_available():
        return None
    verbose_lines, sums = _verbose_lines(torch)
    return dict(described(verbose_lines), rounds=sums != _SUM)


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
        "version": _first(r"info,oneDNN v([^ ]+)", text),
        "isa": _first(r"info,cpu,isa:(.+)", text),
        "runtime": _first(r"info,cpu,runtime:([^,\n]+)", text),
        "implementation": runs[0] if runs else None,
        "fpmath": (_first(r"attr-fpmath:(\w+)", attributes[0]) or "strict") if attributes else None,
        # Whether the second run found its primitive in the cache; never if ONEDNN_PRIMITIVE_CACHE_CAPACITY=0.
        "primitive_cache": bool(re.search(r"create:cache_hit,cpu,convolution", text)) if runs else None,
    }


def _first(pattern: str, text: str) -> str | None:
    match = re.search(pattern, text)
    return match[1].strip() if match else None


def _verbose_lines(torch: Any) -> tuple[str, float]:
    """Run a convolution twice in verbose mode; return the library's standard output, and one result."""
    mode, convolve = torch.backends.mkldnn, torch.nn.functional.conv2d
    weights, images = torch.ones(_CHANNELS, _CHANNELS, 3, 3), torch.full((4, _CHANNELS, 8, 8), _IMAGE)
    flush = ctypes.CDLL(None).fflush
    sys.stdout.flush()
    flush(None)
    with tempfile.TemporaryFile() as file:
        saved_stdout = os.dup(1)
        try:
            os.dup2(file.fileno(), 1)
            with torch.no_grad(), mode.verbose(mode.VERBOSE_ON_CREATION):
                convolve(images, weights, padding=1)
                sums = convolve(images, weights, padding=1)[0, 0, 4, 4].item()
            flush(None)
        finally:
            os.dup2(saved_stdout, 1)
            os.close(saved_stdout)
        file.seek(0)
        return attempt(lambda: file.read().decode(errors="replace")) or "", sums
