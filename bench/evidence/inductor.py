"""The actual settings of Inductor, torch.compile's default compiler, if it compiled anything."""

from __future__ import annotations

import gc
import sys
from types import ModuleType
from typing import Any

#: Part of the module names that Inductor generates to call a graph through C++.
_ENTRY = "inductor_entry_cpp"


def collect() -> dict[str, Any] | None:
    """Return Inductor's current settings, or None if torch.compile compiled nothing."""
    config, utils = sys.modules.get("torch._inductor.config"), sys.modules.get("torch._dynamo.utils")
    if config is None or utils is None:
        return None
    graphs = utils.counters["stats"]["unique_graphs"]
    if not graphs:
        return None
    return {
        "graphs": graphs,
        "max_autotune": bool(config.max_autotune),
        # How often kernels were compared by timing: rarely on CPUs, and never if a cache has the winners.
        "autotuned": utils.counters["inductor"]["select_algorithm_autotune"],
        "freezing": bool(config.freezing),
        # The freezing pass loads this module. Graphs with gradients are never frozen (compile_fx.py).
        "frozen": "torch._inductor.freezing" in sys.modules,
        "cpp_wrapper": bool(getattr(config, "cpp_wrapper", False)),
        "cpp_wrapped": bool(getattr(config, "cpp_wrapper", False)) and _cpp_wrapped(),
    }


def _cpp_wrapped() -> bool:
    """Return whether any graph is called through C++, which its compiled module, if alive, shows (codecache.py).

    torch's own list of these modules is empty here, because its caches are off.
    """
    return any(type(item) is ModuleType and _ENTRY in item.__name__ for item in gc.get_objects())
