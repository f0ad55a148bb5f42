"""Which of several NCCL libraries PyTorch calls: real libraries, without a GPU."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NCCL = "int ncclAllReduce(void) {{ return {0}; }} int ncclGetVersion(int *to) {{ *to = {0}; return 0; }}"
TORCH = "int ncclAllReduce(void); int work(void) { return ncclAllReduce(); }"
ASKED = """\
import ctypes, json, os, sys
for path, mode in json.loads(sys.argv[1]):
    library = ctypes.CDLL(path, mode)
    if "libtorch" in path and sys.argv[2] == "called":
        library.work()
from bench.evidence import collectives
print(json.dumps(collectives.bound_nccl()))
"""
NOW, LAZY, GLOBAL = 2, 1, 0x102


def made(folder, name, code, *options):
    compiler = shutil.which("cc")
    if not compiler:
        pytest.skip("no C compiler")
    folder.mkdir(exist_ok=True)
    source = folder / f"{name}.c"
    source.write_text(code)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / name, source, *options], check=True)
    return str(folder / name)


@pytest.fixture
def libraries(tmp_path):
    """Build PyTorch's NCCL 2.27.3, and another one, 2.20.5, with the same name and an alphabetically earlier path."""
    own = made(tmp_path / "z", "libnccl.so.2", NCCL.format(22703), "-Wl,-soname,libnccl.so.2")
    other = made(tmp_path / "a", "libnccl.so.2", NCCL.format(22005), "-Wl,-soname,libnccl.so.2")
    third = made(tmp_path / "a", "libmine.so", NCCL.format(21803), "-Wl,-soname,libmine.so")
    torch = made(tmp_path / "t", "libtorch_cuda.so", TORCH, own, f"-Wl,-rpath,{tmp_path / 'z'}")
    return {"own": own, "other": other, "third": third, "torch": torch}


def bound(libraries, loaded, how="bound", **variables):
    steps = [(libraries[name], mode) for name, mode in loaded]
    argv = [sys.executable, "-c", ASKED, json.dumps(steps), how]
    env = {"PYTHONDONTWRITEBYTECODE": "1", **{name: libraries[key] for name, key in variables.items()}}
    return json.loads(subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, check=True, timeout=60).stdout)


CASES = {
    "alone": ([("torch", NOW)], {}, "own", "2.27.3"),
    "another one is loaded later": ([("torch", NOW), ("other", NOW)], {}, "own", "2.27.3"),
    "another one was loaded before by its name": ([("other", NOW), ("torch", NOW)], {}, "other", "2.20.5"),
    "another one was loaded before for itself": ([("third", NOW), ("torch", NOW)], {}, "own", "2.27.3"),
    "another one was loaded before for all": ([("third", GLOBAL), ("torch", NOW)], {}, "third", "2.18.3"),
    "another one is loaded later for all": ([("torch", NOW), ("third", GLOBAL)], {}, "own", "2.27.3"),
    "another one is preloaded": ([("torch", NOW)], {"LD_PRELOAD": "third"}, "third", "2.18.3"),
    "nothing was called yet": ([("torch", LAZY), ("other", LAZY)], {}, "own", "2.27.3"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_nccl_is_told_that_pytorch_calls(libraries, case):
    loaded, variables, whose, version = CASES[case]
    assert bound(libraries, loaded, **variables) == {"path": libraries[whose], "version": version}


def test_it_is_told_as_bound_by_the_first_call_too(libraries):
    found = bound(libraries, [("torch", LAZY), ("third", GLOBAL)], "called")
    assert found == {"path": libraries["own"], "version": "2.27.3"}


def test_no_nccl_is_told_without_a_pytorch_that_calls_one(libraries):
    assert bound(libraries, [("other", NOW)]) is None
