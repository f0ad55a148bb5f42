"""envmatrix measures how much faster a PyTorch program runs when only its environment changes.

From Python: ``envmatrix.run("quick", budget="5m").best``. The public API is ``__all__``; each function's docstring
lists its parameters, result and errors. Names are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from envmatrix.version import __version__

if TYPE_CHECKING:
    from envmatrix.api.environment_exec_and_export import export
    from envmatrix.api.paired_reruns import rerun
    from envmatrix.api.reproduction_packs import reproduce
    from envmatrix.api.result import Result
    from envmatrix.api.run_results import compare, effects, history
    from envmatrix.api.runs import load, resume, run
    from envmatrix.api.tuning.search import TuneResult, tune
    from envmatrix.errors import (
        EngineError,
        EnvmatrixError,
        InputError,
        InterruptedRunError,
        NothingRanError,
        SkipEnvironmentError,
        StoreError,
    )
    from envmatrix.results import Trial
    from envmatrix.runner.reproduction.reproduced_effects import Reproduction
    from envmatrix.stats.comparisons.result import Comparison
    from envmatrix.stats.effects import Effect
    from envmatrix.stats.history import History
    from envmatrix.stats.steady_state.effect import SteadyEffect


__all__ = [
    "Comparison", "Effect", "EngineError", "EnvmatrixError", "History", "InputError", "InterruptedRunError",
    "NothingRanError", "Reproduction", "Result", "SkipEnvironmentError", "SteadyEffect", "StoreError", "Trial",
    "TuneResult", "__version__", "compare", "effects", "export", "history", "load", "reproduce", "rerun", "resume",
    "run", "tune",
]  # fmt: skip

#: Module -> its public names.
_HOMES = {
    "envmatrix.api.run_results": ("compare", "effects", "history"),
    "envmatrix.api.environment_exec_and_export": ("export",),
    "envmatrix.api.reproduction_packs": ("reproduce",),
    "envmatrix.api.paired_reruns": ("rerun",),
    "envmatrix.api.result": ("Result",),
    "envmatrix.api.runs": ("load", "resume", "run"),
    "envmatrix.api.tuning.search": ("TuneResult", "tune"),
    "envmatrix.errors": (
        "EngineError",
        "EnvmatrixError",
        "InputError",
        "InterruptedRunError",
        "NothingRanError",
        "SkipEnvironmentError",
        "StoreError",
    ),
    "envmatrix.runner.reproduction.reproduced_effects": ("Reproduction",),
    "envmatrix.stats.comparisons.result": ("Comparison",),
    "envmatrix.stats.effects": ("Effect",),
    "envmatrix.stats.history": ("History",),
    "envmatrix.stats.steady_state.effect": ("SteadyEffect",),
    "envmatrix.results": ("Trial",),
}


def __getattr__(name: str) -> object:
    """Import a public name on first use, so that ``envmatrix --help`` does not wait for numpy."""
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'envmatrix' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
