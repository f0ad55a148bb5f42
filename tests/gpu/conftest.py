"""Fixtures for trials on a real GPU, with the CUDA build of PyTorch in GPU_PYTHON (default: python3): `nox -s gpu`.

The runs are kept in build/gpu.
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
    """Limit each test to ten minutes; all together should take at most 25."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.timeout(600))


@dataclass(frozen=True)
class Project:
    """A folder with a matrix that includes all GPU levels, and a Python with a CUDA build of PyTorch."""

    folder: Path
    python: str
    gpus: int

    def run(self, *command: str, limit_s: float = 540) -> subprocess.CompletedProcess[str]:
        """Run ``envmatrix`` as a user would."""
        path = f"{Path(self.python).parent}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            [sys.executable, "-m", "envmatrix", *command], cwd=self.folder, timeout=limit_s, check=False,
            env={**os.environ, "PATH": path, "PYTHONPATH": _python_path()}, capture_output=True, text=True,
        )  # fmt: skip

    def trials(self, name: str) -> list[dict[str, Any]]:
        """Return the trials of a run."""
        text = (self.folder / "results" / name / "trials.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]


def _python_path() -> str:
    """Return the path of this checkout, and of packages that were installed into a folder (without a network)."""
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


@pytest.fixture(scope="session")
def cuda_python() -> tuple[str, int]:
    """Return a Python with a CUDA build of PyTorch, and its number of GPUs; skip if there is none."""
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
    """Return a project with a CUDA build of PyTorch, with or without a GPU."""
    folder = ROOT / "build" / "gpu"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "matrix.yaml").write_text(MATRIX)
    shutil.copy(HERE / "train.py", folder / "train.py")
    return Project(folder, *cuda_python)


@pytest.fixture(scope="session")
def project(anywhere: Project) -> Project:
    """Return the project; skip if PyTorch finds no GPU."""
    if not anywhere.gpus:
        pytest.skip("PyTorch sees no GPU here")
    return anywhere
