"""The wheel as users get it: built from the sdist, installed into a fresh venv, used outside the checkout.

``python -m tests.installed`` prints the time from ``pip install`` to the first answer about a program of 5 seconds,
with an empty cache; use an idle machine. Its arguments are passed to ``envmatrix bench``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from envmatrix.build.python.interpreters import uv_program

ROOT = Path(__file__).parents[1]
FIVE_SECONDS = "import time\nend = time.process_time() + 5\nwhile time.process_time() < end:\n    sum(range(10**5))\n"


def build(folder: Path) -> Path:
    """Build the sdist, then the wheel from it; return the wheel."""
    argv = [uv_program(), "build", "--quiet", "--python", sys.executable, "--out-dir", folder, ROOT]
    subprocess.run(argv, check=True)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    assert sdist.stat().st_size < 20e6
    return wheel


def install(wheel: Path, folder: Path) -> Path:
    """Install a wheel into a fresh venv; return the path of its command."""
    subprocess.run([uv_program(), "venv", "--quiet", "--python", sys.executable, folder], check=True)
    subprocess.run([uv_program(), "pip", "install", "--quiet", "--python", folder / "bin/python", wheel], check=True)
    return folder / "bin" / "envmatrix"


def outside() -> dict[str, str]:
    """Return the variables of a shell without any reference to the checkout."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="envmatrix-installed-") as place:
        folder = Path(place)
        wheel = build(folder / "dist")
        (folder / "five.py").write_text(FIVE_SECONDS)
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        began = time.monotonic()
        subprocess.run([folder / "venv/bin/python", "-m", "pip", "install", "--quiet", wheel], check=True)
        command = folder / "venv/bin/envmatrix"
        print(f"{time.monotonic() - began:6.1f} s  installed", flush=True)
        argv = [command, "bench", *sys.argv[1:], "--", sys.executable, "five.py"]
        env = outside() | {"ENVMATRIX_CACHE": str(folder / "cache"), "COLUMNS": "120"}
        with subprocess.Popen(argv, cwd=folder, env=env, text=True, stderr=subprocess.STDOUT,
                              stdout=subprocess.PIPE) as process:  # fmt: skip
            for line in process.stdout or ():
                print(f"{time.monotonic() - began:6.1f} s  {line}", end="", flush=True)
        print(f"{time.monotonic() - began:6.1f} s  the table, exit code {process.returncode}")
    return process.returncode


if __name__ == "__main__":
    sys.exit(main())
