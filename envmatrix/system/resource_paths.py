"""Paths of the benchmark, the matrix, the docs and the cache; a checkout takes precedence over the installed copy."""

from __future__ import annotations

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def bench_folder() -> Path:
    """Return the ``bench`` folder of the checkout or the installed package."""
    checkout = _PACKAGE.parent / "bench"
    return checkout if (checkout / "options.json").exists() else _PACKAGE / "_project" / "bench"


def bundled_matrix_file() -> Path:
    """Return the matrix.yaml that comes with envmatrix."""
    checkout = _PACKAGE.parent / "matrix.yaml"
    return checkout if checkout.exists() else _PACKAGE / "_project" / "matrix.yaml"


def output_folder(matrix: Path) -> Path:
    """Return the output folder for a matrix: its own, or the working folder for the package's matrix."""
    folder = matrix.resolve().parent
    return Path.cwd() if folder.is_relative_to(_PACKAGE) else folder


def bundled_package_locks() -> Path:
    """Return the folder of the committed locks."""
    checkout = _PACKAGE.parent / "containers" / "locks"
    return checkout if checkout.is_dir() else _PACKAGE / "_project" / "containers" / "locks"


def documentation_pages() -> dict[str, Path]:
    """Return the documentation pages by name, the README first."""
    checkout = _PACKAGE.parent / "docs"
    home = checkout.parent if (checkout / "matrix.md").exists() else _PACKAGE / "_project"
    return {"readme": home / "README.md", **{page.stem: page for page in sorted((home / "docs").rglob("*.md"))}}


def cache_folder() -> Path:
    """Return $ENVMATRIX_CACHE, or envmatrix's folder in the user's cache."""
    if configured := os.environ.get("ENVMATRIX_CACHE"):
        return Path(configured).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(base).absolute() / "envmatrix"
