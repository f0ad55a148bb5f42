"""The benchmark compiled for the Pythons of trials, which write no compiled files themselves."""

from __future__ import annotations

from envmatrix.build.cache import json_digest
from envmatrix.build.paths import BuildPaths
from envmatrix.system.process import run

_COMPILED_S = 120.0


def compile_bench(places: BuildPaths, python: str, version: str) -> None:
    """Compile the cache's copy of the benchmark for a Python, once; otherwise every trial compiles what it imports.

    Python compares a compiled file of this kind with its source when it loads it, so trials still run the source.
    """
    if not places.bench.is_relative_to(places.cache.root):
        return
    argv = [python, "-I", "-S", "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", str(places.bench)]
    done = places.bench.parent / f"compiled-{json_digest(python, version)[:16]}"
    places.cache.folder(done, lambda _: run(argv, limit_s=_COMPILED_S))
