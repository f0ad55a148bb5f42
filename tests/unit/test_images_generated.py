from __future__ import annotations

from pathlib import Path

from envmatrix.build.generated_files import definition_files
from envmatrix.matrix import load

ROOT = Path(__file__).parents[2]


def test_the_committed_definitions_are_those_of_the_default_design() -> None:
    matrix = load(ROOT / "matrix.yaml")
    wanted = definition_files(matrix, ["baseline", *matrix.designs["default"].environments])
    folder = ROOT / "containers"
    found = {path.name: path.read_text() for path in (*folder.glob("*.Dockerfile"), *folder.glob("*.def"))}
    assert found == wanted, "run `envmatrix definitions default`"
