"""Programs of popular frameworks and tools, each benchmarked as it is by one command."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.local.conftest import Project

pytestmark = pytest.mark.timeout(900)

PROGRAMS = Path(__file__).parent / "programs"
SPEED = "metric: throughput"
#: kind -> its command and the expected message about the metric.
KINDS = {
    "torchrun": ("torchrun --nproc-per-node 2 train.py", SPEED),
    "nanogpt": ("python train.py --max_iters=30", "metric: steps per second, from 30 lines"),
    "makefile": ("make train", SPEED),
    "snakemake": ("snakemake --cores 2", SPEED),
    "spawn": ("python train.py", SPEED),
    "joblib": ("python train.py", SPEED),
    "numba": ("python train.py", SPEED),
    "libtorch": ("./train", SPEED),
}
#: Processes that share the work, for the kinds that start several.
SEVERAL = {"torchrun": 2, "spawn": 2, "joblib": 2}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")  # waiting threads sleep: nothing is measured here
    return tmp_path / "mine"


def compile_program(folder):
    torch = subprocess.run(
        ["python", "-c", "import torch; print(torch.__path__[0])"], check=True, capture_output=True, text=True
    ).stdout.strip()
    headers = [f"-I{torch}/include", f"-I{torch}/include/torch/csrc/api/include"]
    libraries = [f"-L{torch}/lib", f"-Wl,-rpath,{torch}/lib", "-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-lc10"]
    argv = ["g++", "-O0", "-std=c++20", *headers, "train.cpp", "-o", "train", *libraries]
    subprocess.run(argv, cwd=folder, check=True)


def digest(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and "results" not in path.parts}


@pytest.mark.parametrize("kind", KINDS)
def test_it_runs_as_it_is_and_every_process_that_works_is_verified(folder, kind):
    command, message = KINDS[kind]
    if kind == "libtorch" and not shutil.which("g++"):
        pytest.skip("no C++ compiler")
    shutil.copytree(PROGRAMS / kind, folder)
    if kind == "libtorch":
        compile_program(folder)
    before = digest(folder)
    project = Project(folder)
    for name in ("matrix.yaml", "containers", "programs/wait.py"):
        (folder / name).unlink()
    (folder / "programs").rmdir()
    done = project.run("bench", "--max-blocks", "1", "--environments", "tcmalloc", "--", *command.split())
    assert done.returncode == 0, done.stderr
    assert message in done.stderr
    trials = project.trials()
    assert [trial["outcome"] for trial in trials] == ["ok"] * 3
    assert not [trial["unproven"] for trial in trials if trial.get("unproven")]
    owners = {trial["environment"]: trial["record"]["evidence"]["malloc"]["library"] for trial in trials}
    assert owners == {"baseline": "libc", "control": "libc", "tcmalloc": "libtcmalloc"}
    assert all(len(trial["record"]["evidence"]["programs"]) >= SEVERAL.get(kind, 1) for trial in trials)
    assert digest(folder) == before
