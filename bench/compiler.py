"""Puts off torch's compiler, which the first optimiser imports although nothing is compiled (docs/record.md)."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any, Callable

_NAME = "torch._dynamo"


class _Later(ModuleType):
    """Stands for torch._dynamo, of which eager steps want two things that do nothing; all else brings the real one."""

    def graph_break(self, *_: Any, **__: Any) -> None:
        """Break no graph: none is being recorded."""

    def disable(self, fn: Callable[..., Any] | None = None, recursive: bool = True, **_: Any) -> Any:
        """Return a function as it is: where nothing is compiled there is nothing to keep it from."""
        return (lambda one: one) if fn is None else fn

    def __getattr__(self, name: str) -> Any:
        # Whoever walks through sys.modules asks every module for these; only an import asks for its path.
        if name.startswith("__") and name != "__path__":
            raise AttributeError(f"module {_NAME!r} has no attribute {name!r}")
        return getattr(_real(), name)


def put_off() -> bool:
    """Let torch's compiler be imported only when something of it is used; say whether that could be done.

    It is a second of CPU time at the first optimiser: half of what a process takes until its first step.
    """
    torch = sys.modules["torch"]
    if _NAME in sys.modules or importlib.util.find_spec(_NAME) is None:
        return False
    later = _Later(_NAME)
    sys.modules[_NAME] = later
    torch._dynamo = later  # type: ignore[attr-defined]  # where `import torch._dynamo` would have put it
    return True


def _real() -> ModuleType:
    if isinstance(sys.modules.get(_NAME), _Later):
        del sys.modules[_NAME]
    return importlib.import_module(_NAME)
