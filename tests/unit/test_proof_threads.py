"""A check of the number of threads uses the threads that did the work: real processes, no torch."""

import pytest

from envmatrix.evidence.trial_record import read_evidence
from envmatrix.trials.trial_evidence_verification import verify_evidence
from tests.proving import PYTHON, TORCH, compiled, environment, evidence_of
from tests.watched import work


@pytest.mark.parametrize(("between", "holds"), [("2", True), ("1", False)])
def test_threads_that_were_others_for_a_while_are_a_contradiction(tmp_path, between, holds):
    (tmp_path / "torch.py").write_text(TORCH)
    program = f"import torch; torch.set_num_threads({between}); {work(tmp_path / 'looks')}; torch.set_num_threads(2)"
    found = evidence_of(tmp_path, [PYTHON, "-c", program], {"PYTHONPATH": str(tmp_path)})
    assert found.torch.threads == 2
    wrong = verify_evidence(environment(promised={"threads": "2"}), found).wrong
    assert wrong == (() if holds else ("claims threads is 2, but it was set to 1 while it ran",))


def test_threads_that_torchs_core_was_asked_for_are_noted_too(tmp_path):
    core = "set_num_threads = set_num_threads"
    (tmp_path / "torch.py").write_text(f"{TORCH}\n_C = SimpleNamespace({core})")
    program = f"import torch; torch._C.set_num_threads(1); {work(tmp_path / 'looks')}; torch._C.set_num_threads(2)"
    found = evidence_of(tmp_path, [PYTHON, "-c", program], {"PYTHONPATH": str(tmp_path)})
    assert found.torch.threads_set == [1, 2]


FORKED = {
    "works with one": ("torch.set_num_threads(1); work()", "", False),
    "works with two": ("torch.set_num_threads(2); work()", "", True),
    "has no effect here": ("torch.set_num_threads(1)", "work()", True),
}


@pytest.mark.parametrize("name", FORKED)
def test_what_a_forked_child_that_works_asks_for_counts_too(tmp_path, name):
    (tmp_path / "torch.py").write_text(TORCH)
    child, parent, holds = FORKED[name]
    program = f"""
import os, torch
def work():
    {work(tmp_path / "looks")}
torch.set_num_threads(2)
if os.fork():
    {parent or "pass"}
    os.wait()
else:
    {child}
    os._exit(0)
"""
    found = evidence_of(tmp_path, [PYTHON, "-c", program], {"PYTHONPATH": str(tmp_path)})
    wrong = verify_evidence(environment(promised={"threads": "2"}), found).wrong
    assert wrong == (() if holds else ("claims threads is 2, but it was set to 1 while it ran",))


def test_what_a_program_asked_for_is_known_though_it_ended_without_a_word(tmp_path):
    (tmp_path / "torch.py").write_text(TORCH)
    program = f"import os, torch; torch.set_num_threads(1); {work(tmp_path / 'looks')}; os._exit(0)"
    found = evidence_of(tmp_path, [PYTHON, "-c", program], {"PYTHONPATH": str(tmp_path)})
    assert found.source == "outside"
    assert verify_evidence(environment(promised={"threads": "2"}), found).wrong


def test_a_loading_worker_that_pytorch_gives_one_thread_is_no_contradiction(tmp_path):
    (tmp_path / "torch.py").write_text(TORCH)
    worker = "import torch; torch.set_num_threads(2)\nexec('torch.set_num_threads(1); torch.now = 2', dict(torch=torch,"
    program = f"{worker} __name__='torch.utils.data._utils.worker'))\n{work(tmp_path / 'looks')}"
    found = evidence_of(tmp_path, [PYTHON, "-c", program], {"PYTHONPATH": str(tmp_path)})
    assert found.torch.threads_set == [2]


@pytest.mark.parametrize("asked", ["lib.omp_set_num_threads(1)", "lib['omp_set_num_threads'](ctypes.c_int(1))"])
@pytest.mark.parametrize("first", ["", "import ctypes; "])
def test_a_runtime_that_is_asked_through_ctypes_is_noted(tmp_path, asked, first):
    (tmp_path / "torch.py").write_text(TORCH)
    library = compiled(tmp_path, "libother.so", "void omp_set_num_threads(int n) {}", "-shared", "-fPIC")
    works = work(tmp_path / "looks")
    program = (
        f"{first}import torch, ctypes; lib = ctypes.CDLL({library!r}); {asked}; {works}; lib.omp_set_num_threads(2)"
    )
    found = evidence_of(tmp_path, [PYTHON, "-c", program], {"PYTHONPATH": str(tmp_path)})
    assert found.torch.threads_set == [1, 2]
    wrong = verify_evidence(environment(promised={"threads": "2"}), found).wrong
    assert wrong == ("claims threads is 2, but it was set to 1 while it ran",)


SPAWNED = """
import multiprocessing, os, sys
def child(ready):
    from ctypes import CDLL
    CDLL({library!r}).parallel()
    {work}
    os._exit(0)
if __name__ == "__main__":
    import torch
    one = multiprocessing.get_context("spawn").Process(target=child, args=(0,))
    one.start()
    one.join()
"""
LEADER = """
#include <omp.h>
#include <unistd.h>
void parallel(void) {
#pragma omp parallel
    usleep(1);
}
"""


@pytest.mark.parametrize(("claimed", "holds"), [("2", True), ("3", False)])
def test_whose_team_did_the_work_is_seen_of_a_child_that_ended_without_a_word(tmp_path, claimed, holds):
    site = tmp_path / "site"
    site.mkdir()
    (site / "torch.py").write_text(TORCH)
    library = compiled(tmp_path, "libwork.so", LEADER, "-shared", "-fPIC", "-fopenmp")
    (tmp_path / "spawned.py").write_text(SPAWNED.format(library=library, work=work(tmp_path / "looks", 1.0)))
    found = evidence_of(
        tmp_path, [PYTHON, str(tmp_path / "spawned.py")], {"PYTHONPATH": str(site), "OMP_NUM_THREADS": "2"}
    )
    child = next(one for one in [found, *(one.evidence for one in found.programs)] if one and one.source == "outside")
    assert child.openmp.workers == {"libgomp": 1}
    said = verify_evidence(environment(promised={"threads": claimed}), found)
    assert any("threads" in text for text in (*said.wrong, *said.unproven)) != holds, said


def test_a_library_that_could_set_threads_is_no_sign_that_it_did(tmp_path):
    site = tmp_path / "site"
    site.mkdir()
    (site / "torch.py").write_text(TORCH)
    code = "void omp_set_num_threads(int) __attribute__((weak)); void f(void) { omp_set_num_threads(1); }"
    library = compiled(tmp_path, "libnvJitLink.so.13", code, "-shared", "-fPIC")
    program = f"import torch, ctypes; lib = ctypes.CDLL({library!r}); {work(tmp_path / 'looks')}"
    found = evidence_of(tmp_path, [PYTHON, "-c", program], {"PYTHONPATH": str(site)})
    said = verify_evidence(environment(promised={"threads": "2"}), found)
    assert (said.wrong, said.unproven) == ((), ())


@pytest.mark.parametrize(("workers", "unproven"), [({"libgomp": 1}, 0), ({}, 2)])
def test_a_program_that_had_nothing_for_a_team_needs_none_where_another_one_had_it(workers, unproven):
    parent = {"source": "probe", "torch": {"threads": 2}, "openmp": {"library": "libgomp", "workers": {}}}
    child = {"pid": 2, "name": "python", "evidence": {**parent, "openmp": {"library": "libgomp", "workers": workers}}}
    seen = read_evidence({**parent, "programs": [{"pid": 1, "name": "python"}, child]})
    said = verify_evidence(environment(promised={"threads": "2", "openmp": "libgomp"}), seen)
    assert (said.wrong, len(said.unproven)) == ((), unproven), "two programs that are alike are one cause"
