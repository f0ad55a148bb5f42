"""The data sets that are made up, for tests: made once, and kept in the user's cache as a run keeps them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from envmatrix.system.project import cache_folder

ROOT = Path(__file__).parents[1]


def lay_out(folder: Path, *names: str) -> Path:
    """Let a folder of data have these sets, whole and verified, and no other; return it."""
    kept = cache_folder() / "data"
    for name in names:
        argv = [sys.executable, "-m", "bench", "data", "--offline", "--data-dir", str(kept), "--data", name]
        subprocess.run(argv, cwd=ROOT, check=True, capture_output=True)
        (folder / name).symlink_to(kept / name)
    return folder
