"""Synthetic data sets for tests: made once, and kept in the user's cache as for a run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from envmatrix.system.resource_paths import cache_folder

ROOT = Path(__file__).parents[1]


def lay_out(folder: Path, *names: str) -> Path:
    """Make these data sets the only ones in a data folder, complete and verified; return the folder."""
    kept = cache_folder() / "data"
    for name in names:
        argv = [sys.executable, "-m", "bench", "data", "--offline", "--data-dir", str(kept), "--data", name]
        subprocess.run(argv, cwd=ROOT, check=True, capture_output=True)
        (folder / name).symlink_to(kept / name)
    return folder
