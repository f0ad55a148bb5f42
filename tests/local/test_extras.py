"""The level with torchao and onnx next to the reference torch: workloads that need them run and are not skipped."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stand_ins import lay_out

pytestmark = [pytest.mark.local, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
SHORT = (
    "--task=inference",
    "--model=lenet5",
    "--steps=2",
    "--warmup-steps=1",
    "--eval-samples=64",
    "--pretrain-steps=2",
)


@pytest.fixture(scope="module")
def python():
    if not os.environ.get("BENCH_SITE_PACKAGES"):
        pytest.skip("no torch: `nox -s tests` has one")
    env = {name: value for name, value in os.environ.items() if name not in ("PIP_CONFIG_FILE", "PIP_NO_INDEX")}
    done = subprocess.run(
        [sys.executable, "tests/torch_python.py"], cwd=ROOT, capture_output=True, text=True, check=False,
        env={**env, "ENVMATRIX_TEST_ENVIRONMENT": "extras"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])["BENCH_PYTHON"]


@pytest.fixture
def ran(python, tmp_path):
    lay_out(tmp_path, "fashion-mnist-stand-in")

    def run(*options):
        record = tmp_path / "record.json"
        argv = [python, "-W", "ignore", "-m", "bench", "run", f"--record={record}", f"--data-dir={tmp_path}"]
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "OMP_WAIT_POLICY": "PASSIVE"}
        done = subprocess.run([*argv, *SHORT, *options], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found = json.loads(record.read_text())
        assert found["skipped"] is None
        return found

    return run


def test_int8_of_torchao_runs_and_makes_the_model_smaller(ran):
    plain, quantized = ran(), ran("--quantize=torchao")
    assert quantized["metrics"]["model_bytes"] < 0.7 * plain["metrics"]["model_bytes"]


def test_the_onnx_graph_is_exported_and_its_operators_counted(ran):
    operators = ran("--onnx=true")["onnx"]["operators"]
    assert {name: operators[name] for name in ("Conv", "Gemm", "Relu")} == {"Conv": 2, "Gemm": 3, "Relu": 4}
