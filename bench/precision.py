"""Number formats: of weights and images, of the forward pass, and the gradient scaler that float16 needs."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Callable

import torch

from bench.options import Options

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def autocast(options: Options, device: str) -> Callable[[], AbstractContextManager[Any]]:
    """Return a function that creates an autocast context for this kind of device, or one that does nothing."""
    if options["autocast"] == "none":
        return nullcontext
    # A recorded graph must not depend on autocast's cache of one call.
    cached = not options["cuda_graphs"]
    return lambda: torch.autocast(device, dtype=DTYPES[options["autocast"]], cache_enabled=cached)


def scaler(options: Options, device: str) -> Any:
    """Return the gradient scaler that float16 needs against underflow, or None."""
    return torch.amp.GradScaler(device) if options["autocast"] == "float16" else None
