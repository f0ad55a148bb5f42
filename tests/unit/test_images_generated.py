from __future__ import annotations

from pathlib import Path

import pytest

from envmatrix.api.locks_and_images import definition_files
from envmatrix.matrix import load
from envmatrix.plan.environment import resolve_environment

ROOT = Path(__file__).parents[2]
#: Beside the default design's: a CUDA build of PyTorch, and one with another NCCL.
FOR_GPUS = ("cuda-2.14", "nccl-2.29")


def test_the_committed_definitions_are_those_of_the_default_design() -> None:
    matrix = load(ROOT / "matrix.yaml")
    names = ["baseline", *matrix.designs["default"].environments, *FOR_GPUS]
    wanted = definition_files(resolve_environment(matrix, name, {}) for name in names)
    folder = ROOT / "containers"
    found = {path.name: path.read_text() for path in (*folder.glob("*.Dockerfile"), *folder.glob("*.def"))}
    assert found == wanted, f"run `envmatrix definitions default`, and `... {' '.join(FOR_GPUS)}`"


@pytest.mark.parametrize(("file", "option"), [("nccl-2.29.Dockerfile", "--gpus all"), ("nccl-2.29.def", "--nv")])
def test_a_definition_for_gpus_says_how_it_is_given_them_and_another_one_does_not(file: str, option: str) -> None:
    folder = ROOT / "containers"
    assert option in (folder / file).read_text()
    assert option not in (folder / file.replace("nccl-2.29", "baseline")).read_text()
