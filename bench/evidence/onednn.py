"""What oneDNN, the library behind torch's convolutions, really took from its variables.

torch hides oneDNN's functions, so its own verbose lines are read: one small convolution runs twice after the timed
part. https://uxlfoundation.github.io/oneDNN/dev_guide_verbose.html
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
    """Return version, instruction set, implementation, fp32 maths mode, and whether it rounds and caches primitives."""
    torch = sys.modules["torch"]
    if not torch.backends.mkldnn.is_available():
        return None
    verbose_lines, sums = _verbose_lines(torch)
    return dict(described(verbose_lines), rounds=sums != _SUM)


#: So many channels fill the tiles of AMX: with fewer, some of oneDNN's kernels for it are not taken (ic % 32 in
#: src/cpu/x64/jit_brgemm_conv_utils.cpp).
_CHANNELS = 64
#: One more than 1 that float32 holds and bfloat16 does not, and what 3 x 3 of all channels of it add up to, exactly.
_IMAGE = 1 + 2**-12
_SUM = _CHANNELS * 9 * _IMAGE


def described(text: str) -> dict[str, Any]:
    """Read oneDNN's verbose lines (of a convolution that ran twice) into evidence."""
    runs = re.findall(r"^onednn_verbose,.*\bexec,cpu,convolution,([^,]+),.*$", text, re.MULTILINE)
    attributes = re.findall(r"^onednn_verbose,.*\bexec,cpu,convolution,.*$", text, re.MULTILINE)
    return {
        "version": _first(r"info,oneDNN v([^ ]+)", text),
        "isa": _first(r"info,cpu,isa:(.+)", text),
        "runtime": _first(r"info,cpu,runtime:([^,\n]+)", text),
        "implementation": runs[0] if runs else None,
        "fpmath": (_first(r"attr-fpmath:(\w+)", attributes[0]) or "strict") if attributes else None,
        # Primitives that were looked up again and were there: none with ONEDNN_PRIMITIVE_CACHE_CAPACITY=0.
        "primitive_cache": bool(re.search(r"create:cache_hit,cpu,convolution", text)) if runs else None,
    }


def _first(pattern: str, text: str) -> str | None:
    match = re.search(pattern, text)
    return match[1].strip() if match else None


def _verbose_lines(torch: Any) -> tuple[str, float]:
    """Run a convolution twice under verbose mode, return what the library prints to standard output, and one result."""
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
