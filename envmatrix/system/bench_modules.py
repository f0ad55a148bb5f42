"""The five modules of ``bench/`` that the host uses too, so that host and benchmark agree.

``bench`` is not imported, because host code and trial code are kept separate. These modules need only the standard
library, and each is loaded by its path when it is first used. Type checkers see the modules themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench import digest, options, processor, quantities, variables

    __all__ = ["digest", "options", "processor", "quantities", "variables"]
else:
    import importlib.util

    from envmatrix.system.project import bench_folder

    _NAMES = ("digest", "options", "processor", "quantities", "variables")

    def __getattr__(name):
        if name not in _NAMES:
            raise AttributeError(name)
        spec = importlib.util.spec_from_file_location(f"_envmatrix_bench_{name}", bench_folder() / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        globals()[name] = module
        return module
