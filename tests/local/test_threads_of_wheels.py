"""Which threads did the work, in common kinds of programs and with PyTorch from `pip install torch`.

The wheel for CUDA is 2.9 GB with its libraries: its venv is built once and kept in envmatrix's cache.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from envmatrix.build.cache import Cache, json_digest
from envmatrix.build.python.interpreters import uv_program
from envmatrix.evidence import checks
from envmatrix.evidence.trial_record import read_evidence
from envmatrix.plan.environment import Environment, Image
from envmatrix.system.resource_paths import cache_folder
from envmatrix.trials.trial_evidence_verification import verify_evidence
from tests.engines.conftest import demand

pytestmark = [pytest.mark.local, pytest.mark.timeout(600)]

PROJECT = Path(__file__).parents[2]
#: On PyPI, this version is a wheel for CUDA.
WHEEL = ("torch==2.15.0", "numpy==2.4.6", "joblib==1.6.0")
WORK = """
import torch
def work(seconds=0.5):
    import time
    a = torch.randn(300, 300)
    end = time.process_time() + seconds
    while time.process_time() < end:
        a = a @ a
        a = a / a.norm()
"""
LOADER = f"""
{WORK}
class Data(torch.utils.data.Dataset):
    def __len__(self): return 32
    def __getitem__(self, index):
        return torch.randn(200, 200) @ torch.randn(200, 200)
if __name__ == "__main__":
    for batch in torch.utils.data.DataLoader(Data(), batch_size=16, num_workers=2):
        work()
"""
RANKS = f"""
{WORK}
import torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(300, 300))
for _ in range(4):
    model(torch.randn(64, 300)).sum().backward()
work()
dist.destroy_process_group()
"""
SPAWNED = f"""
{WORK}
import multiprocessing
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pool.map(work, [3.0, 3.0])
"""
JOBLIB = f"""
from joblib import Parallel, delayed
def job(number):
    space = {{}}
    exec({WORK!r}, space)
    space["work"](2.0)
if __name__ == "__main__":
    Parallel(n_jobs=2)(delayed(job)(number) for number in range(2))
"""
LOOKS = f"{WORK}\ndevice = torch.device('cuda' if torch.cuda.is_available() else 'cpu')\nwork()\n"
TWO = "python plain.py\npython plain.py\n"
#: kind -> file name, text, command.
KINDS = {
    "a plain loop": ("plain.py", f"{WORK}\nwork()\n", ("python", "plain.py")),
    "workers that load data": ("loader.py", LOADER, ("python", "loader.py")),
    "two ranks of torchrun": ("ranks.py", RANKS, ("torchrun", "--nproc-per-node", "2", "ranks.py")),
    "a pool of spawned processes": ("pool.py", SPAWNED, ("python", "pool.py")),
    "jobs of joblib": ("jobs.py", JOBLIB, ("python", "jobs.py")),
    "a shell script with two Pythons": ("plain.py", f"{WORK}\nwork()\n", ("sh", "two.sh")),
}


@pytest.fixture(scope="session")
def wheel():
    """Return the bin folder of a venv with PyTorch from PyPI."""
    folder = cache_folder() / "tests" / json_digest(WHEEL, sys.version)[:16]

    def build(place: Path) -> None:
        uv = [uv_program(), "--quiet"]
        subprocess.run(
            [*uv, "venv", "--python", sys.executable, "--relocatable", "--allow-existing", place], check=True
        )
        subprocess.run([*uv, "pip", "install", "--python", place / "bin" / "python", *WHEEL], check=True)

    try:
        Cache(cache_folder()).folder(folder, build)
    except subprocess.CalledProcessError as error:
        demand(f"no venv with PyTorch's wheel for CUDA: {error}")
    return folder / "bin"


@pytest.fixture
def cpu():
    """Return the bin folder of the venv that envmatrix built."""
    python = os.environ.get("BENCH_PYTHON")
    if not python:
        pytest.skip("no torch: `nox -s tests` has one")
    return Path(python).parent


def evidence_of(folder, programs, words, threads):
    env = {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(folder), "OMP_NUM_THREADS": threads}
    env |= {"OMP_WAIT_POLICY": "PASSIVE", "PYTHONPATH": str(PROJECT)}
    argv = [programs / "python", "-m", "bench", "command", "--record", folder / "record.json", "--", *words]
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return read_evidence(json.loads((folder / "record.json").read_text())["evidence"])


def proven(found, threads):
    of_team = {"openmp": ["libgomp"], "openmp.sleeps": ["true"]} if int(threads) > 1 else {}
    promised = checks.parse_claims({"threads": [threads], **of_team})
    said = verify_evidence(Environment("mine", "", {}, Image("i"), {"OMP_NUM_THREADS": threads}, (), promised), found)
    return said.wrong, said.unproven


@pytest.mark.parametrize("built", ["cpu", "wheel"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_threads_that_did_the_work_are_proven(tmp_path, request, kind, built):
    programs = request.getfixturevalue(built)
    if built == "cpu" and "joblib" in kind:
        pytest.skip("the venv of environments has no joblib")
    name, text, words = KINDS[kind]
    (tmp_path / name).write_text(text)
    (tmp_path / "two.sh").write_text(TWO)
    threads = "1" if "torchrun" in words or "joblib" in kind else "2"
    assert proven(evidence_of(tmp_path, programs, words, threads), threads) == ((), ())


def test_a_program_that_takes_the_cpu_as_there_is_no_gpu_is_told_once(people_of_wheel):
    (people_of_wheel.folder / "looks.py").write_text(LOOKS)
    done = people_of_wheel.run("bench", "--max-blocks", "1", "--environments", "one-thread", "--", "python", "looks.py")
    assert done.returncode == 0, done.stderr
    assert "unproven" not in done.stdout + done.stderr
    assert done.stderr.split("it took")[1].count("it looked for a GPU, found none") == 1
    assert done.stdout.count("it looked for a GPU, found none") == 1


@pytest.fixture
def people_of_wheel(project, wheel, monkeypatch):
    (project.folder / "matrix.yaml").unlink()
    monkeypatch.setenv("PATH", f"{wheel}:{os.environ['PATH']}")
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")  # waiting threads sleep: nothing is measured here
    return project
