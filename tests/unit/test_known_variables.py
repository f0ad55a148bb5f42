"""Misspelt variables of a level are reported with their place and the nearest known name, and count as no evidence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from envmatrix.__main__ import main
from envmatrix.api.runs import report_unknown_variables
from envmatrix.evidence.evidence_models import Evidence
from envmatrix.matrix.known_variables import (
    FAMILIES,
    find_unread_variables,
    has_known_reader,
    known_variables,
    probably_meant_name,
)
from envmatrix.matrix.parse import load, parse
from envmatrix.plan.environment import Environment, Image, resolve_environment
from envmatrix.trials.execution import without_warnings_for_mentioned_variables
from envmatrix.trials.trial_evidence_verification import verify_evidence

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
        ("NCLL_DEBUG", "NCCL_DEBUG"), ("ONEDNN_MAX_CPU_ISAS", "ONEDNN_MAX_CPU_ISA"),
        ("OPENBLAS_NUM_THREAD", "OPENBLAS_NUM_THREADS"), ("PYTORCH_CUDA_ALOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"),
        ("GLIBC_TUNABLE", "GLIBC_TUNABLES"), ("DNNL_VERBOS", "DNNL_VERBOSE"),
        ("TORCH_LOG", "TORCH_LOGS"), ("omp_num_threads", "OMP_NUM_THREADS"),
    ],
)  # fmt: skip
def test_a_misspelt_variable_has_the_known_name_that_was_meant(written, meant):
    assert probably_meant_name(written) == meant


@pytest.mark.parametrize("written", ["KMP_OF_NEXT_YEAR", "NCCL_OF_NEXT_YEAR"])
def test_an_unknown_name_of_a_known_family_is_like_none(written):
    assert probably_meant_name(written) == ""


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
    assert probably_meant_name(written) is None


def test_it_is_known_who_reads_each_name_of_the_list():
    assert len(known_variables()) > 400
    assert [name for name in known_variables() if not has_known_reader(name)] == []
    assert [family for family in FAMILIES if not has_known_reader(family)] == []


def test_no_level_that_ships_with_envmatrix_is_doubted():
    assert list(find_unread_variables(load(Path(__file__).parents[2] / "matrix.yaml"))) == []


def test_check_tells_a_misspelt_variable_with_its_line_and_column(file, capsys):
    assert main(["check", "--matrix", str(file)]) == 0
    told = capsys.readouterr()
    assert (
        f"warning: {file}:7:9: team=misspelt: not verified: envmatrix knows no program or library that reads "
        "OMP_NUM_THREAD; did you mean OMP_NUM_THREADS?\n"
        "  -> write OMP_NUM_THREADS; otherwise its trials count as not verified"
    ) in told.err
    assert (
        f"{file}:9:17: team=new: not verified: envmatrix knows no program or library that reads NCCL_OF_NEXT_YEAR\n"
        in told.err
    )
    assert "MY_OWN_SWITCH" not in told.err
    assert "team=claimed" not in told.err
    assert main(["check", "--matrix", str(file), "--json"]) == 0
    warnings = json.loads(capsys.readouterr().out)["warnings"]
    assert [(one["line"], one["column"]) for one in warnings] == [(7, 9), (9, 17)]


def test_a_run_tells_what_its_own_levels_misspell_before_anything_is_built(file):
    matrix, said = load(file), []
    report_unknown_variables(matrix, matrix.designs["default"], said.append)
    assert len(said) == 1
    assert "OMP_NUM_THREAD;" in said[0]


def test_the_place_of_a_matrix_that_is_no_file_is_its_name(tmp_path):
    ((_, first), _) = find_unread_variables(parse(MATRIX, tmp_path / "pipe"))
    assert str(first).startswith(f"{tmp_path / 'pipe'}: team=misspelt: ")


@pytest.mark.parametrize(("name", "unproven"), [("odd", True), ("next", True), ("sure", False), ("baseline", False)])
def test_a_trial_with_a_variable_that_nothing_is_known_to_read_is_unproven(file, name, unproven):
    environment = resolve_environment(load(file), name, {})
    found = verify_evidence(environment, Evidence.model_validate({"variables": dict(environment.variables)}))
    assert any("envmatrix knows no program or library that reads" in text for text in found.unproven) == unproven


def trial(variables, seen, programs=()):
    """Return the messages about a trial of one level that sets ``variables`` and has no checks, from its evidence."""
    base = {"libraries": [], "source": "probe", **seen}
    evidence = {
        **base,
        "programs": [
            {"name": "a"},
            *({"name": "b", "evidence": {**base, **one, "variables": variables}} for one in programs),
        ],
    }
    environment = Environment("e", "", {}, Image("i"), variables, (), ())
    return verify_evidence(environment, Evidence.model_validate({**evidence, "variables": variables})).unproven


GNU = {"libraries": ["/t/libtorch_cpu.so", "/t/libgomp.so.1"], "openmp": {"library": "libgomp"},
       "torch": {"version": "2.13", "mkl": True, "onednn": True}, "malloc": {"library": "libc", "refused": []},
       "cuda": {"available": False}}  # fmt: skip
INTEL = {**GNU, "libraries": [*GNU["libraries"], "/i/libiomp5.so"], "openmp": {"library": "libiomp5"}}


@pytest.mark.parametrize(
    ("name", "seen", "why"),
    [
        ("KMP_BLOCKTIME", GNU, "Intel's or LLVM's OpenMP runtime, but this program uses libgomp"),
        ("GOMP_SPINCOUNT", INTEL, "GNU's OpenMP runtime, but this program uses libiomp5"),
        ("OMP_NUM_THREADS", {}, "an OpenMP runtime, but no program loads it"),
        ("MKL_NUM_THREADS", {**GNU, "torch": {"version": "2.13", "mkl": False}}, "MKL, but no program loads it"),
        ("MKL_CBWR", {}, "MKL, but no program loads it"),
        ("ONEDNN_MAX_CPU_ISA", {}, "oneDNN, but no program loads it"),
        ("OPENBLAS_NUM_THREADS", GNU, "OpenBLAS, but no program loads it"),
        ("MALLOC_CONF", GNU, "jemalloc, but libc provides malloc"),
        ("TCMALLOC_SAMPLE_PARAMETER", GNU, "tcmalloc, but libc provides malloc"),
        ("MALLOC_ARENA_MAX", {**GNU, "malloc": {"library": "libjemalloc"}}, "libjemalloc provides malloc"),
        ("PYTORCH_ALLOC_CONF", {}, "PyTorch, but no program loads it"),
        ("PYTORCH_CUDA_ALLOC_CONF", {**GNU, "libraries": ["/t/libtorch_cuda.so"]}, "CUDA, but there is no GPU"),
        ("NCCL_ALGO", {**GNU, "libraries": ["/t/libnccl.so.2"]}, "NCCL, but there is no GPU"),
        ("TORCHINDUCTOR_MAX_AUTOTUNE", GNU, "torch.compile, but nothing was compiled"),
    ],
)
def test_a_variable_whose_reader_is_in_no_program_is_not_in_effect(name, seen, why):
    (told,) = trial({name: "1"}, seen)
    assert told.startswith(f"not in effect: {name} is read by ")
    assert why in told


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("KMP_BLOCKTIME", INTEL), ("KMP_AFFINITY", {**GNU, "openmp": {"library": "libgomp", "workers": {"libomp": 1}}}),
        ("KMP_BLOCKTIME", {"libraries": ["/x/libomp.so.5"], "source": "outside"}), ("GOMP_CPU_AFFINITY", INTEL),
        ("OMP_NUM_THREADS", GNU), ("OMP_NUM_THREADS", {"libraries": ["/n/libscipy_openblas64_-1.so"]}),
        ("MKL_NUM_THREADS", GNU), ("MKL_NUM_THREADS", {"libraries": ["/m/libmkl_rt.so.2"]}), ("DNNL_VERBOSE", GNU),
        ("GLIBC_TUNABLES", {"libraries": ["/lib/libc.so.6"]}), ("MALLOC_ARENA_MAX", GNU), ("TORCH_LOGS", GNU),
        ("NCCL_ALGO", {"libraries": ["/t/libnccl.so.2"], "cuda": {"available": True}}),
        ("TORCHINDUCTOR_FREEZING", {**GNU, "inductor": {"graphs": 2}}), ("LD_BIND_NOW", {}), ("PYTHONHASHSEED", {}),
        ("TOKENIZERS_PARALLELISM", {"libraries": ["/s/tokenizers/tokenizers.abi3.so"]}),
    ],
)  # fmt: skip
def test_a_variable_whose_reader_is_there_is_told_nothing_of(name, seen):
    assert trial({name: "1"}, seen) == ()


def test_one_program_of_several_may_hold_the_reader():
    assert trial({"KMP_BLOCKTIME": "0"}, {}, [INTEL]) == ()
    assert trial({"KMP_BLOCKTIME": "0"}, {}, [GNU])[0].startswith("not in effect")


def test_what_nobody_could_look_into_may_hold_the_reader():
    (told,) = trial({"KMP_BLOCKTIME": "0"}, {"libraries": None})
    assert told.startswith("not verified: KMP_BLOCKTIME is read by Intel's or LLVM's OpenMP runtime")
    (told,) = trial({"MALLOC_CONF": "a:1"}, {"malloc": {"library": "redis-server"}, "source": "outside"})
    assert told.startswith("not verified: MALLOC_CONF is read by jemalloc")


def test_a_variable_of_ones_own_is_not_verified_unless_its_program_names_it(file):
    matrix = load(file)
    environment = resolve_environment(matrix, "odd", {})
    assert environment.unread == ("OMP_NUM_THREAD", "MY_OWN_SWITCH")
    workload = matrix.workloads["mine"].model_copy(update={"files": str(file.parent)})
    assert without_warnings_for_mentioned_variables(environment, workload, ["train.py"]).unread == environment.unread
    (file.parent / "train.py").write_text("import os; os.environ.get('MY_OWN_SWITCH', 'OMP_NUM_THREAD')")
    assert without_warnings_for_mentioned_variables(environment, workload, ["train.py"]).unread == ("OMP_NUM_THREAD",)
