"""What Inductor, torch.compile's own compiler, was really set to, where it compiled anything."""

from __future__ import annotations

import gc
import sys
from types import ModuleType
from typing import Any

#: Part of the name of what Inductor compiles to call a graph through C++.
_ENTRY = "inductor_entry_cpp"


def collect() -> dict[str, Any] | None:
    """Return the settings that Inductor holds now, or None where torch.compile compiled nothing."""
    config, utils = sys.modules.get("torch._inductor.config"), sys.modules.get("torch._dynamo.utils")
    if config is None or utils is None:
        return None
    graphs = utils.counters["stats"]["unique_graphs"]
    if not graphs:
        return None
    return {
        "graphs": graphs,
        "max_autotune": bool(config.max_autotune),
        # How often kernels were tried against each other: hardly ever on CPUs, and not where a cache has the winners.
        "autotuned": utils.counters["inductor"]["select_algorithm_autotune"],
        "freezing": bool(config.freezing),
        # It is loaded by what freezes: graphs with gradients are not, whatever the setting (compile_fx.py).
        "frozen": "torch._inductor.freezing" in sys.modules,
        "cpp_wrapper": bool(getattr(config, "cpp_wrapper", False)),
        "cpp_wrapped": bool(getattr(config, "cpp_wrapper", False)) and _cpp_wrapped(),
    }


def _cpp_wrapped() -> bool:
    """Say whether some graph is called through C++: the module that was compiled for that is alive (codecache.py).

    torch's own list of them is emptied where its caches are off, as they are here.
    """
    return any(type(item) is ModuleType and _ENTRY in item.__name__ for item in gc.get_objects())
