"""Paths that engines build from and write to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from envmatrix.build.cache import Cache
from envmatrix.system import resource_paths


@dataclass(frozen=True)
class BuildPaths:
    """``cache`` has everything built, ``locks`` the committed locks, and ``bench`` the benchmark's source."""

    cache: Cache
    locks: Path
    bench: Path


def project_paths() -> BuildPaths:
    """Return the paths of this checkout, or of the installed package, for this user."""
    return BuildPaths(
        Cache(resource_paths.cache_folder()), resource_paths.bundled_package_locks(), resource_paths.bench_folder()
    )
