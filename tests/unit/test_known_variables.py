"""Misspelt variables of a level: told with their place and the nearest known name, and no proof of anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from envmatrix.__main__ import main
from envmatrix.api.runs import tell_doubts
from envmatrix.matrix.parse import load, parse
from envmatrix.matrix.variables import FAMILIES, doubts, known, near
from envmatrix.plan.environment import resolve
from envmatrix.record.evidence import Evidence
from envmatrix.trials.proof import prove

MATRIX = """version: 2
factors:
  team:
    plain: {}
    misspelt:
      env:
        OMP_NUM_THREAD: "2"
        MY_OWN_SWITCH: "1"
    new: {env: {NCCL_OF_NEXT_YEAR: "1"}}
    claimed: {env: {NCCL_OF_NEXT_YEAR: "1"}, claims: {threads: "2"}}
environments:
  baseline: {}
  odd: {team: misspelt}
  next: {team: new}
  sure: {team: claimed}
workloads:
  mine: {command: [python, train.py]}
designs:
  default: {environments: [odd], workloads: mine}
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "train.py").write_text("")
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    return tmp_path / "matrix.yaml"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("OMP_NUM_THREAD", "OMP_NUM_THREADS"), ("KMP_AFINITY", "KMP_AFFINITY"), ("KMP_BLOCK_TIME", "KMP_BLOCKTIME"),
        ("GOMP_SPIN_COUNT", "GOMP_SPINCOUNT"), ("MALLOC_CONFIG", "MALLOC_CONF"), ("MALOC_CONF", "MALLOC_CONF"),
        ("OPM_NUM_THREADS", "OMP_NUM_THREADS"), ("MKL_NUM_THREAD", "MKL_NUM_THREADS"),
        ("NCCL_P2P_DISABLED", "NCCL_P2P_DISABLE"),
        ("NCLL_DEBUG", "NCCL_DEBUG"), ("TORCH_LOG", "TORCH_LOGS"), ("omp_num_threads", "OMP_NUM_THREADS"),
    ],
)  # fmt: skip
def test_a_misspelt_variable_has_the_known_name_that_was_meant(written, meant):
    assert near(written) == meant


@pytest.mark.parametrize("written", ["KMP_OF_NEXT_YEAR", "NCCL_OF_NEXT_YEAR"])
def test_an_unknown_name_of_a_known_family_is_like_none(written):
    assert near(written) == ""


@pytest.mark.parametrize(
    "written",
    [
        "OMP_NUM_THREADS",
        "MPI_NUM_THREADS",
        "TBB_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "NUM_THREADS",
        "SEED",
        "RCCL_DEBUG",
        "TORCHINDUCTOR_CPP_WRAPPER",
    ],
)
def test_a_known_name_and_one_of_no_family_are_not_doubted(written):
    assert near(written) is None


def test_every_name_of_the_list_belongs_to_a_family():
    assert len(known()) > 400
    assert [name for name in known() if not name.startswith(FAMILIES)] == []


def test_no_level_that_ships_with_envmatrix_is_doubted():
    assert list(doubts(load(Path(__file__).parents[2] / "matrix.yaml"))) == []


def test_check_tells_a_misspelt_variable_with_its_line_and_column(file, capsys):
    assert main(["check", "--matrix", str(file)]) == 0
    told = capsys.readouterr()
    assert (
        f"warning: {file}:7:9: team=misspelt: unproven: nothing shows that anything reads OMP_NUM_THREAD; did you mean "
        "OMP_NUM_THREADS?\n  -> write OMP_NUM_THREADS; else its trials count as unproven"
    ) in told.err
    assert f"{file}:9:17: team=new: unproven: nothing shows that anything reads NCCL_OF_NEXT_YEAR\n" in told.err
    assert "MY_OWN_SWITCH" not in told.err
    assert "team=claimed" not in told.err
    assert main(["check", "--matrix", str(file), "--json"]) == 0
    warnings = json.loads(capsys.readouterr().out)["warnings"]
    assert [(one["line"], one["column"]) for one in warnings] == [(7, 9), (9, 17)]


def test_a_run_tells_what_its_own_levels_misspell_before_anything_is_built(file):
    matrix, said = load(file), []
    tell_doubts(matrix, matrix.designs["default"], said.append)
    assert len(said) == 1
    assert "OMP_NUM_THREAD;" in said[0]


def test_the_place_of_a_matrix_that_is_no_file_is_its_name(tmp_path):
    (first, _) = doubts(parse(MATRIX, tmp_path / "pipe"))
    assert str(first).startswith(f"{tmp_path / 'pipe'}: team=misspelt: ")


@pytest.mark.parametrize(("name", "unproven"), [("odd", True), ("next", True), ("sure", False), ("baseline", False)])
def test_a_trial_with_a_variable_that_nothing_is_known_to_read_is_unproven(file, name, unproven):
    environment = resolve(load(file), name, {})
    found = prove(environment, Evidence.model_validate({"variables": dict(environment.variables)}))
    assert any("nothing shows that anything reads" in text for text in found.unproven) == unproven
