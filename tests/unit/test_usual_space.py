"""The search space for a program on the command line: settings that affect it, on a CPU and on GPUs."""

from pathlib import Path

import pytest

from envmatrix.api.tuning.space import make_default_space
from envmatrix.api.user_program.matrix_for_program import GeneratedMatrix, _gpu_process_count
from envmatrix.evidence.trial_record import Record
from envmatrix.matrix.model import Workload
from envmatrix.matrix.parse import parse
from envmatrix.matrix.template import FOR_ANY, FOR_TORCH, MatrixTemplate
from envmatrix.search.space import build_space

FACTS = {"physical_cores": "8", "logical_cpus": "16", "physical_cpu_list": "0-7", "sockets": "1"}
OF_CPU = {"openmp", "malloc", "threads", "affinity", "wait", "hugepages"}


def made(torch, on_gpu):
    workload = Workload(name="train", command=("python", "train.py"))
    text = MatrixTemplate("/usr/bin/python3", [workload], torch, list(FOR_TORCH if torch else FOR_ANY)[:4]).text()
    return GeneratedMatrix(parse(text, Path("matrix.yaml")), text, "train", 3.0, "", torch, on_gpu)


def levels_of(torch, on_gpu):
    return make_default_space(made(torch, on_gpu), Path("matrix.yaml"))[1]


@pytest.mark.parametrize(
    ("torch", "on_gpu", "factors"),
    [
        (True, 0, OF_CPU),
        (False, 0, {"malloc", "threads", "placement", "hugepages"}),
        (True, 1, {"malloc", "threads", "hugepages", "cuda-allocator", "cuda-loading"}),
        (False, 1, {"malloc", "threads", "hugepages", "cuda-allocator", "cuda-loading"}),
        (True, 2, {"malloc", "threads", "hugepages", "cuda-allocator", "cuda-loading", "nccl"}),
    ],
)
def test_what_a_program_was_seen_to_be_decides_which_factors_are_searched(torch, on_gpu, factors):
    assert set(levels_of(torch, on_gpu)) == factors


@pytest.mark.parametrize(("torch", "on_gpu"), [(True, 0), (False, 0), (True, 1), (True, 8)])
def test_every_usual_space_can_be_held(torch, on_gpu):
    matrix, levels = make_default_space(made(torch, on_gpu), Path("matrix.yaml"))
    named = [name for name in matrix.environments if name != "baseline"]
    space = build_space(matrix, levels, named, "baseline", FACTS)
    assert len(space.codes) > 100
    assert {"tcmalloc", "glibc-tuned"} <= set(space.named)


def test_levels_that_change_results_are_no_candidates():
    matrix, levels = make_default_space(made(True, 2), Path("matrix.yaml"))
    changing = {
        name for factor in matrix.factors.values() for name, level in factor.levels.items() if level.changes_numerics
    }
    assert changing == {"on", "off"}, "TF32 is in the library"
    assert changing.isdisjoint(name for names in levels.values() for name in names)


@pytest.mark.parametrize(
    ("evidence", "processes"),
    [
        (None, 0),
        ({"cuda": {"available": True, "used": False}}, 0),
        ({"cuda": {"used": True}, "programs": [{"pid": 7, "evidence": None}]}, 1),
        ({"cuda": {"used": True}, "programs": [{"pid": 7}, {"pid": 8, "evidence": {"cuda": {"used": True}}}]}, 2),
        ({"cuda": None, "programs": [{"pid": 7}, {"pid": 8, "evidence": {"cuda": {"used": True}}}]}, 1),
    ],
)
def test_a_gpu_that_is_there_is_not_one_that_was_worked_on(evidence, processes):
    assert _gpu_process_count(Record.model_validate({"evidence": evidence})) == processes
