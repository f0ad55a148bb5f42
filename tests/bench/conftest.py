"""Fixtures for real runs of bench/ with a Python that has torch (BENCH_PYTHON, or the Python of the tests)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stand_ins import lay_out

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def python():
    """Return an interpreter with torch, or skip the test."""
    found = os.environ.get("BENCH_PYTHON", sys.executable)
    probe = subprocess.run([found, "-c", "import torch"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip(f"{found} has no torch: set BENCH_PYTHON to one that has")
    return found


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory):
    return lay_out(tmp_path_factory.mktemp("data"), "fashion-mnist-stand-in", "cifar10-stand-in")


@pytest.fixture
def bench(python, data_dir, tmp_path):
    """Return a function that runs ``python -m bench run`` in a bare environment, giving (record or None, process)."""

    def run(command="run", *, env=None, status=0, group=None, **options):
        record = tmp_path / "record.json"
        record.unlink(missing_ok=True)
        enter = ["/bin/sh", "-c", 'echo $$ >"$0"/cgroup.procs && exec "$@"', str(group)] if group else []
        argv = [*enter, python, "-W", "ignore", "-m", "bench", command, "--record", str(record)]
        if command == "run":
            argv += ["--data-dir", str(data_dir)]
        for name, value in options.items():
            argv += ["--" + name.replace("_", "-"), str(value)]
        base = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
        if command == "run":  # spinning threads are ten times slower on a busy machine, and nothing is measured here
            base["OMP_WAIT_POLICY"] = "PASSIVE"
        done = subprocess.run(
            argv,
            cwd=ROOT,
            env={**base, **(env or {})},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == status, done.stderr
        return (json.loads(record.read_text()) if record.exists() else None), done

    return run
