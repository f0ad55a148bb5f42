"""Programs of popular frameworks and tools, each benchmarked as it is by one command."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pytest
import yaml

from envmatrix.build.python.interpreters import uv_program
from tests.local.conftest import Project

pytestmark = pytest.mark.timeout(900)

PROGRAMS = Path(__file__).parent / "programs"
SPEED = "metric: throughput"
WALL = "metric: wall time, because no number"


class Kind(NamedTuple):
    """A command and the expected message about the metric; ``working`` processes share the work."""

    command: str
    message: str = SPEED
    options: tuple[str, ...] = ()
    working: int = 1


KINDS = {
    "torchrun": Kind("torchrun --nproc-per-node 2 train.py", working=2),
    "torch.distributed.run": Kind("python -m torch.distributed.run --nproc-per-node 2 train.py", working=2),
    "nanogpt": Kind("python train.py --max_iters=30", "metric: steps per second, from 30 lines"),
    "makefile": Kind("make train"),
    "snakemake": Kind("snakemake --cores 2"),
    "spawn": Kind("python train.py", working=2),
    "joblib": Kind("python train.py", working=2),
    "numba": Kind("python train.py"),
    "libtorch": Kind("./train"),
    "trainer": Kind("python train.py", "metric: train_samples_per_second"),
    "accelerate": Kind("accelerate launch --cpu --num_processes 2 train.py", working=2),
    "lightning": Kind("python train.py", "it/s; higher is better"),
    "timm": Kind("python train.py", "/s; higher is better"),
    "hydra": Kind("python train.py optimizer.lr=0.1"),
    "papermill": Kind("papermill train.ipynb out.ipynb", "cell"),
    "pytest-benchmark": Kind(
        "pytest --benchmark-json=speed.json test_speed.py",
        "metric: from --metric-json",
        ("--metric-json", "speed.json:benchmarks.0.stats.ops"),
    ),
    "dataloader": Kind("python train.py", "images/s; higher is better"),
    "compile": Kind("python train.py", "it/s; higher is better"),
    "editable": Kind(".venv/bin/mine-train"),
    "src": Kind("python -m mine.train"),
    "data": Kind("python train.py"),
    "short": Kind("python sums.py", WALL),
}
#: Kinds that run the program of another one.
ALIKE = {"torch.distributed.run": "torchrun"}
#: Kinds whose trials take more than about 6 s, too long for 18 of them.
LONG = ("accelerate", "compile", "lightning", "papermill", "timm", "trainer")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")  # waiting threads sleep: nothing is measured here
    return tmp_path / "mine"


def need_compiler(_folder, _):
    if not shutil.which("g++"):
        pytest.skip("no C++ compiler")


def compile_program(folder, _):
    need_compiler(folder, _)
    torch = subprocess.run(
        ["python", "-c", "import torch; print(torch.__path__[0])"], check=True, capture_output=True, text=True
    ).stdout.strip()
    headers = [f"-I{torch}/include", f"-I{torch}/include/torch/csrc/api/include"]
    libraries = [f"-L{torch}/lib", f"-Wl,-rpath,{torch}/lib", "-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-lc10"]
    argv = ["g++", "-O0", "-std=c++20", *headers, "train.cpp", "-o", "train", *libraries]
    subprocess.run(argv, cwd=folder, check=True)


def install_editable(folder, _):
    """`pip install -e .` into a venv of the project; PyTorch comes from this session's packages."""
    uv = [uv_program(), "--quiet"]
    subprocess.run([*uv, "venv", "--python", sys.executable, ".venv"], cwd=folder, check=True)
    subprocess.run([*uv, "pip", "install", "--python", ".venv", "-e", "."], cwd=folder, check=True)
    site = next((folder / ".venv").glob("lib/python3*/site-packages"))
    packages = Path(pytest.__file__).parents[1]
    (site / "session.pth").write_text(f"{packages}\n")


def add_src(folder, monkeypatch):
    shutil.copytree(PROGRAMS / "editable" / "src", folder / "src")
    monkeypatch.setenv("PYTHONPATH", ":".join(filter(None, ["src", os.environ.get("PYTHONPATH")])))


def write_data(folder, _):
    (folder.parent / "data").mkdir()
    (folder.parent / "data" / "x.bin").write_bytes(bytes(4 * 256 * 256))


#: What a person did once before, for some kinds.
BEFORE = {
    "libtorch": compile_program,
    "compile": need_compiler,
    "editable": install_editable,
    "src": add_src,
    "data": write_data,
}


def digest(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and "results" not in path.parts}


def allocators(trial):
    """Return the allocator of each process that worked; the first one's evidence is the trial's own."""
    evidence = trial["record"]["evidence"]
    return [(program.get("evidence") or evidence)["malloc"]["library"] for program in evidence["programs"]]


@pytest.fixture(params=KINDS)
def name(request):
    return request.param


@pytest.fixture
def project(folder, name, monkeypatch):
    """Return a folder that contains the program of a kind and nothing else."""
    program = PROGRAMS / ALIKE.get(name, name)
    if program.exists():
        shutil.copytree(program, folder)
    BEFORE.get(name, lambda *_: None)(folder, monkeypatch)
    project = Project(folder)
    for file in ("matrix.yaml", "containers", "programs/wait.py"):
        (folder / file).unlink()
    (folder / "programs").rmdir()
    return project


def run_one_block(project, kind, *options):
    """Run one block without a matrix, check the metric, and return what was printed."""
    command = ["--", *kind.command.split()]
    done = project.run("bench", "--max-blocks", "1", "--environments", "tcmalloc", *options, *kind.options, *command)
    assert done.returncode == 0, done.stderr
    assert kind.message in done.stderr, done.stderr


def test_it_runs_as_it_is_and_every_process_that_works_is_verified(project, name):
    kind = KINDS[name]
    before = digest(project.folder.parent)
    run_one_block(project, kind)
    trials = project.trials()
    assert [trial["outcome"] for trial in trials] == ["ok"] * 3
    assert not [trial["unproven"] for trial in trials if trial.get("unproven")]
    assert all(len(allocators(trial)) >= kind.working for trial in trials)
    seen = {trial["environment"]: set(allocators(trial)) for trial in trials}
    assert seen == {"baseline": {"libc"}, "control": {"libc"}, "tcmalloc": {"libtcmalloc"}}
    assert digest(project.folder.parent) == before


@pytest.fixture(scope="session")
def slower(tmp_path_factory):
    """Return a library that makes every process do 2.5 times the work."""
    if not shutil.which("cc"):
        pytest.skip("no C compiler")
    library = tmp_path_factory.mktemp("slower") / "slower.so"
    argv = ["cc", "-O1", "-shared", "-fPIC", "-o", library, Path(__file__).with_name("slower.c"), "-pthread", "-lrt"]
    subprocess.run(argv, check=True)
    return library


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", [name for name in KINDS if name not in LONG])
def test_an_environment_that_adds_work_is_slower_and_a_copy_of_the_baseline_is_not(project, name, slower):
    run_one_block(project, KINDS[name], "--save")
    file = project.folder / "matrix.yaml"
    matrix = yaml.safe_load(file.read_text())
    matrix["factors"]["work"] = {"its-own": {}, "more": {"preload": str(slower)}}
    matrix["environments"]["slower"] = {"work": "more"}
    file.write_text(yaml.safe_dump(matrix))
    blocks = ("--min-blocks", "6", "--max-blocks", "6", "--budget", "50m")
    done = project.run("bench", "--environments", "slower", *blocks, "--name", "truth", limit_s=3300)
    assert done.returncode == 0, done.stderr
    trials, summary = project.trials(), json.loads((project.newest() / "summary.json").read_text())
    (found,) = (effect for effect in summary["effects"] if effect["primary"])
    assert found["high"] < 1, found
    # With 16 kinds, one whole suite in 60 fails by chance.
    assert summary["control"]["p"] > 0.001, summary["control"]
    (metric,) = (workload["metric"] for workload in matrix["workloads"].values())
    better = metric.get("better", "lower" if metric.get("wall") else "higher")
    assert (middle(trials, "slower") > middle(trials, "baseline")) == (better == "lower")
    if found["withheld"] in {"cpu-contention", "slow-trials"}:
        pytest.skip(f"speed-up {found['ratio']:.2f}, but no verdict: {found['withheld']}, the machine is too busy")
    assert found["verdict"] == "slower", found


def middle(trials, environment):
    """Return the median of the metric, as the program printed it, in one environment."""
    return median(trial["record"]["metrics"]["value"] for trial in trials if trial["environment"] == environment)
