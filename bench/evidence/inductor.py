"""The actual settings of Inductor, torch.compile's default compiler, if it compiled anything."""

from __future__ import annotations

import gc
import re
import sys
from types import ModuleType
from typing import Any

from bench.evidence.reading import text

#: Part of the module names that Inductor generates to call a graph through C++.
_ENTRY = "inductor_entry_cpp"
#: A call of an operator of zentorch, AMD's plug-in, in a module that Inductor generated.
_ZENTORCH_CALL = re.compile(r"torch\.ops\.zentorch\.\w+\.\w+\(")


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
        # zentorch replaces operators only on CPUs with AVX-512.
        "zentorch_calls": _zentorch_calls() if "zentorch" in sys.modules else None,
    }


def _cpp_wrapped() -> bool:
    """Return whether any graph is called through C++, which its compiled module, if alive, shows (codecache.py).

    torch's own list of these modules is empty here, because its caches are off.
    """
    return any(_ENTRY in module.__name__ for module in _modules())


def _zentorch_calls() -> int:
    """Return how many calls of zentorch's operators the compiled graphs contain."""
    # A module that Inductor generated has a function that calls a graph.
    graphs = [module for module in _modules() if "torch._inductor" in module.__name__ and hasattr(module, "call")]
    paths = {str(module.__file__) for module in graphs if module.__file__}
    return sum(len(_ZENTORCH_CALL.findall(text(path) or "")) for path in paths)


def _modules() -> list[ModuleType]:
    """Return all modules that are alive, also those that are not listed in ``sys.modules``."""
    return [item for item in gc.get_objects() if type(item) is ModuleType]
