"""What an environment promises is held against every program that did the work: real processes, no torch."""

import ctypes.util
import json
import os
import platform
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from bench.evidence import outside, tree
from envmatrix.plan.environment import Environment, Image
from envmatrix.record import claims
from envmatrix.record.model import read_evidence
from envmatrix.trials.proof import prove
from envmatrix.trials.trial import packages_to_look_up
from tests.watched import work

ROOT = Path(__file__).parents[2]
PYTHON = os.path.realpath(sys.executable)
STATIC = """
#include <stdio.h>
static long looks(void) {
    long number = 0;
    FILE *file = fopen("FILE_OF_LOOKS", "r");
    if (file) { if (fscanf(file, "%ld", &number) != 1) number = 0; fclose(file); }
    return number;
}
int main(void) {
    long before = looks();
    do for (volatile long i = 0; i < 100000000; i++); while (looks() < before + 2);
    return 0;
}
"""
TORCH = """
from types import SimpleNamespace
__version__ = "0"
now = 2
part = SimpleNamespace(is_available=lambda: None)
backends = SimpleNamespace(mkl=part, mkldnn=part, openmp=part)
def get_num_interop_threads(): return 1
__config__ = SimpleNamespace(show=lambda: "")
def get_num_threads(): return now
def set_num_threads(number):
    global now
    now = number
"""


def other_malloc():
    """A library that glibc brings with it, that nobody loads, and that serves malloc when it is preloaded."""
    for folder in ("/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/lib64", "/usr/lib64"):
        if Path(folder, "libmemusage.so").exists():
            return f"{folder}/libmemusage.so"
    pytest.skip("this glibc has no second malloc beside it")


def environment(preload=(), promised=None, variables=None):
    return Environment(
        "mine", "", {}, Image("i"), variables or {}, tuple(("", Path(file).name) for file in preload),
        claims.read({path: [value] for path, value in (promised or {}).items()}),
    )  # fmt: skip


def evidence_of(tmp_path, argv, env=None):
    record = tmp_path / "record.json"
    base = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME")}
    done = subprocess.run(
        [sys.executable, ROOT / "tests/watched.py", tmp_path / "looks", "command", "--record", record, "--", *argv],
        cwd=ROOT, env={**base, "PYTHONDONTWRITEBYTECODE": "1", **(env or {})},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return read_evidence(json.loads(record.read_text())["evidence"])


def compiled(folder, name, code, *options):
    compiler = shutil.which("cc")
    if not compiler or not ctypes.util.find_library("c"):
        pytest.skip("no C compiler")
    source, made = folder / f"{name}.c", folder / name
    source.write_text(code)
    if subprocess.run([compiler, *options, "-o", made, source], capture_output=True, check=False).returncode:
        pytest.skip(f"this compiler cannot do {' '.join(options)}")
    return str(made)


def static_program(folder):
    return compiled(folder, "work", STATIC.replace("FILE_OF_LOOKS", str(folder / "looks")), "-static")


LOOKED_AT = "until read n < {file} && [ $n -ge 4 ]; do i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done; done"
PROGRAMS = {
    "as it is": ([PYTHON, "-c", "{work}"], True),
    "isolated from its variables": ([PYTHON, "-I", "-c", "{work}"], True),
    "gone by os._exit": ([PYTHON, "-c", "{work}; import os; os._exit(0)"], True),
    "forked": ([PYTHON, "-c", "import os; os.fork(); {work}"], True),
    "not Python": (["sh", "-c", LOOKED_AT], True),
    "without variables": (["env", "-i", PYTHON, "-c", "{work}"], False),
    "behind a wrapper that has it": (["sh", "-c", f"{PYTHON} -c 'import json'; env -i {PYTHON} -c '{{work}}'"], False),
    "one of two that work": (["sh", "-c", f"{PYTHON} -c '{{work}}'; env -i {PYTHON} -c '{{work}}'"], False),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_preload_that_is_not_mapped_in_what_did_the_work_is_no_proof(tmp_path, name):
    argv, holds = PROGRAMS[name]
    argv = [part.format(work=work(tmp_path / "looks"), file=tmp_path / "looks") for part in argv]
    library = other_malloc()
    found = evidence_of(tmp_path, argv, {"LD_PRELOAD": library})
    said = prove(environment([library], {"malloc": Path(library).name.split(".so")[0]}), found)
    if holds:
        assert said.wrong == said.unproven == ()
    else:
        assert any("is preloaded, but it is not mapped in it" in text for text in said.wrong), said
        assert any("claims malloc is" in text for text in said.wrong)


def test_a_static_program_has_no_preload(tmp_path):
    library = other_malloc()
    found = evidence_of(tmp_path, [static_program(tmp_path)], {"LD_PRELOAD": library})
    assert "not mapped in it" in prove(environment([library]), found).wrong[0]
    assert prove(environment(promised={"malloc": "libc"}), found).unproven


def test_what_cannot_be_seen_of_a_program_is_unproven_and_no_contradiction(tmp_path):
    found = evidence_of(tmp_path, [PYTHON, "-I", "-c", work(tmp_path / "looks")], {"OMP_NUM_THREADS": "2"})
    said = prove(environment(promised={"threads": "2"}, variables={"OMP_NUM_THREADS": "2"}), found)
    assert said.wrong == ()
    assert said.unproven == (
        "claims threads is 2, but it could not be read back",
        "not in effect: OMP_NUM_THREADS is read by an OpenMP runtime, and no program loads it",
    )


def test_any_package_that_a_claim_names_is_looked_up(tmp_path):
    version = metadata.version("PyYAML")
    mine = environment(promised={"packages.PyYAML": version, "packages.pydantic_core": "2.*"})
    said = packages_to_look_up([environment(), mine])
    assert said == {"BENCH_PACKAGES": "PyYAML,pydantic_core"}
    assert packages_to_look_up([environment(promised={"threads": "1"})]) == {}
    found = evidence_of(tmp_path, [sys.executable, "-c", work(tmp_path / "looks")], said)
    assert prove(mine, found) == prove(environment(), found)
    assert prove(environment(promised={"packages.PyYAML": "0.1"}), found).wrong == (
        f"claims packages.PyYAML is 0.1, but it was {version}",
    )


def test_which_python_a_program_is_that_nobody_could_ask_is_not_taken_from_the_one_that_watches_it():
    mine = {"system.python": platform.python_version(), "system.gil": "*", "packages.numpy": "*"}
    seen = read_evidence(dict(outside.evidence(tree.Program(1, "python3")), source="outside"))
    said = prove(environment(promised=mine), seen)
    assert (said.wrong, len(said.unproven)) == ((), 3)


def test_what_was_asked_of_the_kernel_for_its_memory_is_seen_of_any_program(tmp_path):
    asked = {"BENCH_HUGE_PAGES": "never", "BENCH_INTERLEAVE": "0"}
    argv = ["env", "-i", PYTHON, "-I", "-c", work(tmp_path / "looks")]
    found = evidence_of(tmp_path, argv, asked)
    promised = {"memory.thp_process": "false", "memory.policy": "interleave:0"}
    said = prove(environment(promised=promised, variables=asked), found)
    assert (found.source, said.wrong, said.unproven) == ("outside", (), ())


@pytest.mark.parametrize(("path", "unproven"), [("/usr/bin/gawk", 0), ("/usr/bin/python3.9", 1), (None, 1)])
def test_a_helper_that_is_no_python_has_nothing_to_show_of_one(path, unproven):
    inside = {"system": {"python": "3.13.1"}, "source": "probe"}
    helper = {"pid": 2, "name": "helper", "path": path, "evidence": {"source": "outside", "libraries": ["/libc.so.6"]}}
    seen = read_evidence({**inside, "programs": [{"pid": 1, "path": "/usr/bin/python3.13"}, helper]})
    said = prove(environment(promised={"system.python": "3.13.*"}), seen)
    assert (said.wrong, len(said.unproven)) == ((), unproven)


@pytest.mark.parametrize(
    ("parallel", "wrong", "unproven"),
    [({"nccl": {"NCCL_ALGO": "Ring"}}, 0, 0), ({"nccl": {"NCCL_ALGO": "Tree"}}, 1, 0), (None, 0, 1)],
)
def test_what_nccl_took_in_an_own_program_proves_its_setting_and_a_helper_without_torch_is_not_asked(
    parallel, wrong, unproven
):
    rank = {"source": "probe", "libraries": ["/libtorch_cuda.so"], **({"parallel": parallel} if parallel else {})}
    helper = {"pid": 2, "name": "helper", "evidence": {"source": "probe", "libraries": ["/libc.so.6"]}}
    seen = read_evidence({**rank, "programs": [{"pid": 1}, helper]})
    said = prove(environment(promised={"parallel.nccl.NCCL_ALGO": "Ring"}), seen)
    assert (len(said.wrong), len(said.unproven)) == (wrong, unproven)


def test_a_variable_that_one_working_program_did_not_get_is_a_contradiction(tmp_path):
    program = f"{PYTHON} -c '{work(tmp_path / 'looks')}'"
    found = evidence_of(tmp_path, ["sh", "-c", f"{program}; A=2 {program}"], {"A": "1", "BENCH_VARIABLES": "A"})
    assert "A should be '1', but the process saw '2'" in " ".join(prove(environment(variables={"A": "1"}), found).wrong)


@pytest.mark.parametrize(("between", "holds"), [("2", True), ("1", False)])
def test_threads_that_were_others_for_a_while_are_a_contradiction(tmp_path, between, holds):
    (tmp_path / "torch.py").write_text(TORCH)
    program = f"import torch; torch.set_num_threads({between}); {work(tmp_path / 'looks')}; torch.set_num_threads(2)"
    found = evidence_of(tmp_path, [PYTHON, "-c", program], {"PYTHONPATH": str(tmp_path)})
    assert found.torch.threads == 2
    wrong = prove(environment(promised={"threads": "2"}), found).wrong
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
    "does nothing": ("torch.set_num_threads(1)", "work()", True),
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
    wrong = prove(environment(promised={"threads": "2"}), found).wrong
    assert wrong == (() if holds else ("claims threads is 2, but it was set to 1 while it ran",))


def test_what_a_program_asked_for_is_known_though_it_ended_without_a_word(tmp_path):
    (tmp_path / "torch.py").write_text(TORCH)
    program = f"import os, torch; torch.set_num_threads(1); {work(tmp_path / 'looks')}; os._exit(0)"
    found = evidence_of(tmp_path, [PYTHON, "-c", program], {"PYTHONPATH": str(tmp_path)})
    assert found.source == "outside"
    assert prove(environment(promised={"threads": "2"}), found).wrong


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
    wrong = prove(environment(promised={"threads": "2"}), found).wrong
    assert wrong == ("claims threads is 2, but it was set to 1 while it ran",)


SETTERS = {"OpenMP's": "omp_set_num_threads", "PyTorch's": "_ZN2at15set_num_threadsEi", "none": "omp_get_num_threads"}


@pytest.mark.parametrize("calls", SETTERS)
def test_compiled_code_that_can_set_threads_leaves_their_number_unproven(tmp_path, calls):
    site = tmp_path / "site"
    site.mkdir()
    (site / "torch.py").write_text(TORCH)
    code = f"void {SETTERS[calls]}(int) __attribute__((weak)); void f(void) {{ {SETTERS[calls]}(1); }}"
    library = compiled(tmp_path, "libmine.so", code, "-shared", "-fPIC")
    program = f"import torch, ctypes; lib = ctypes.CDLL({library!r}); {work(tmp_path / 'looks')}"
    found = evidence_of(tmp_path, [PYTHON, "-c", program], {"PYTHONPATH": str(site)})
    said = prove(environment(promised={"threads": "2"}), found)
    told = (f"{library} can change threads without its being noted",)
    assert (said.wrong, said.unproven) == ((), () if calls == "none" else told)


def test_an_orphan_that_works_is_held_against_the_environment(tmp_path):
    library = other_malloc()
    # the first process waits for its end of the pipe, which closes when the orphan has ended
    program = f"""
import os, subprocess, sys
mine, its = os.pipe()
if os.fork():
    os.close(its)
    os.wait()
    os.read(mine, 1)
elif not os.fork():
    os.set_inheritable(its, True)
    os.execvp("env", ["env", "-i", sys.executable, "-c", '{work(tmp_path / "looks")}'])
"""
    found = evidence_of(tmp_path, [PYTHON, "-c", program], {"LD_PRELOAD": library})
    assert found.unseen_share < 0.1
    assert "not mapped in it" in " ".join(prove(environment([library]), found).wrong)


def test_tunables_are_seen_whole_from_outside(tmp_path):
    # glibc's loader ends each one that it reads with a NUL, where everybody who looks from outside sees it
    tunables = "glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=536870912"
    found = evidence_of(tmp_path, [PYTHON, "-I", "-c", work(tmp_path / "looks")], {"GLIBC_TUNABLES": tunables})
    assert prove(environment(variables={"GLIBC_TUNABLES": tunables}), found).wrong == ()
    assert found.variables["GLIBC_TUNABLES"] == tunables


def test_programs_that_ended_before_anybody_looked_prove_nothing(tmp_path):
    program = f"for n in $(seq 60); do {shutil.which('true')}; done"
    found = evidence_of(tmp_path, ["sh", "-c", program]).model_copy(update={"unseen_share": 0.5})
    promised = environment(promised={"sandbox.seccomp": "*"})
    assert "50% of its CPU time" in prove(promised, found).unproven[0]
    assert prove(environment(), found).unproven == ()


def test_watching_a_program_costs_a_hundredth_of_a_second_and_a_five_hundredth_of_the_time(tmp_path):
    record = tmp_path / "record.json"
    argv = [sys.executable, "-m", "bench", "command", "--record", str(record), "--", "sleep", "2"]
    subprocess.run(argv, cwd=ROOT, check=True, timeout=60)
    assert json.loads(record.read_text())["timing"]["watch_ns"] < 40e6
