"""Where engines find what they build from, and where they put it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from envmatrix.build.cache import Cache
from envmatrix.system import project


@dataclass(frozen=True)
class BuildPaths:
    """``cache`` holds everything built; ``locks`` the committed locks; ``bench`` is the folder of bench/."""

    cache: Cache
    locks: Path
    bench: Path


def project_paths() -> BuildPaths:
    """Return the places of this checkout (or of the installed package) for this user."""
    return BuildPaths(Cache(project.cache_folder()), project.locks_folder(), project.bench_folder())
