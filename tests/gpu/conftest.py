"""Real trials on a GPU, with the CUDA build of PyTorch that GPU_PYTHON has (by default python3): `nox -s gpu`.

What is measured lies in build/gpu, as runs that can be looked at and kept.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
MATRIX = """\
version: 2
include: [envmatrix:gpu, envmatrix:gpu-tuning, envmatrix:collectives, envmatrix:inductor]
environments: {baseline: {torch: host}}
"""
_ASKED = "import torch; print(torch.version.cuda, torch.cuda.is_available(), torch.cuda.device_count())"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give a test at most ten minutes: the whole is to take 25."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.timeout(600))


@dataclass(frozen=True)
class Project:
    """A folder with a matrix of every level for GPUs, and the PATH whose python3 has PyTorch for CUDA."""

    folder: Path
    python: str
    gpus: int

    def run(self, *command: str, limit_s: float = 540) -> subprocess.CompletedProcess[str]:
        """Run ``envmatrix`` as a user types it."""
        path = f"{Path(self.python).parent}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            [sys.executable, "-m", "envmatrix", *command], cwd=self.folder, timeout=limit_s, check=False,
            env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        )  # fmt: skip

    def trials(self, name: str) -> list[dict[str, Any]]:
        """Return the trials of a run."""
        text = (self.folder / "results" / name / "trials.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="session")
def cuda_python() -> tuple[str, int]:
    """Return a Python with PyTorch for CUDA, and how many GPUs it sees; skip where it has none."""
    python = shutil.which(os.environ.get("GPU_PYTHON", "python3"))
    if python is None:
        pytest.skip("GPU_PYTHON is no program")
    done = subprocess.run([python, "-c", _ASKED], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{python} has no torch: set GPU_PYTHON to a Python that has a CUDA build of it")
    build, available, count = done.stdout.split()[-3:]
    if build == "None":
        pytest.skip(f"the torch of {python} is no CUDA build: set GPU_PYTHON to a Python that has one")
    return python, int(count) if available == "True" else 0


@pytest.fixture(scope="session")
def anywhere(cuda_python: tuple[str, int]) -> Project:
    """Give a project whose PyTorch is for CUDA; there may be no GPU."""
    folder = ROOT / "build" / "gpu"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "matrix.yaml").write_text(MATRIX)
    shutil.copy(HERE / "train.py", folder / "train.py")
    return Project(folder, *cuda_python)


@pytest.fixture(scope="session")
def project(anywhere: Project) -> Project:
    """Give the project, and skip where PyTorch sees no GPU."""
    if not anywhere.gpus:
        pytest.skip("PyTorch sees no GPU here")
    return anywhere
