"""The example of docs/how-to/write-a-launcher.md, laid out as an installer does."""

import re
from pathlib import Path

EXAMPLE = Path(__file__).parents[1] / "examples" / "launcher"


def lay_out_detached(folder):
    """Write its dist-info, with the entry points of its pyproject.toml; return the folders for ``PYTHONPATH``."""
    text = (EXAMPLE / "pyproject.toml").read_text()
    installed = folder / "envmatrix_detached-1.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: envmatrix-detached\nVersion: 1.0\n")
    ((group, points),) = re.findall(r'\[project\.entry-points\."(.+)"\]\n((?:.+ = ".+"\n)+)', text)
    (installed / "entry_points.txt").write_text(f"[{group}]\n{points}".replace('"', ""))
    return [str(folder), str(EXAMPLE)]
