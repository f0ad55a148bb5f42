"""Fixtures for real multi-process runs with a Python that has torch (BENCH_PYTHON, or the Python of the tests)."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.stand_ins import lay_out

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def python():
    """Return an interpreter with torch, or skip the test."""
    found = os.environ.get("BENCH_PYTHON", sys.executable)
    if subprocess.run([found, "-c", "import torch"], capture_output=True, check=False).returncode:
        pytest.skip(f"{found} has no torch: set BENCH_PYTHON to one that has")
    return found


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory):
    return lay_out(tmp_path_factory.mktemp("data"), "fashion-mnist-stand-in")


@pytest.fixture
def variables(tmp_path):
    """Yield the bare environment of a run; its temporary files are in the test's folder, through a link."""
    base = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    # A DataLoader's socket paths may have 107 bytes at most, and a test's own folder may be too deep.
    with tempfile.TemporaryDirectory() as scratch:
        (tmp_path / "tmp").symlink_to(scratch)
        # Nothing is measured here, and spinning threads are ten times slower on a busy machine.
        yield {**base, "TMPDIR": scratch, "OMP_WAIT_POLICY": "PASSIVE"}


@pytest.fixture
def command(python, data_dir, tmp_path):
    """Return a function that makes the arguments of a short run, whose record is ``tmp_path/record.json``."""

    def make(**options):
        argv = [python, "-W", "ignore", "-m", "bench", "run", "--record", str(tmp_path / "record.json")]
        argv += ["--data-dir", str(data_dir)]
        given = {"steps": 3, "warmup_steps": 1, "eval_samples": 200, "batch_size": 32, **options}
        for name, value in given.items():
            argv += ["--" + name.replace("_", "-"), str(value)]
        return argv

    return make


@pytest.fixture
def bench(command, variables, tmp_path):
    """Return a function that runs bench with options and returns (record or None, finished process)."""

    def run(*, status=0, env=None, **options):
        done = subprocess.run(
            command(**options),
            cwd=ROOT,
            env={**variables, **(env or {})},
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
        assert done.returncode == status, done.stderr
        record = tmp_path / "record.json"
        return (json.loads(record.read_text()) if record.exists() else None), done

    return run


@pytest.fixture(scope="session")
def lightning(python):
    """Skip the test if the Python of the tests has no Lightning."""
    _needs(python, "lightning.pytorch", "Lightning (the environment `lightning` has)")


@pytest.fixture(scope="session")
def horovod(python):
    """Skip the test if the Python of the tests has no Horovod."""
    _needs(python, "horovod.torch", "Horovod (the environment `horovod` has)")


def _needs(python, module, what):
    if subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False).returncode:
        wanted = os.environ.get("ENVMATRIX_TEST_ENVIRONMENT", "baseline") in what
        (pytest.fail if wanted else pytest.skip)(f"{python} has no {what}")
