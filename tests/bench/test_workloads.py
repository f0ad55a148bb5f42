"""Results of every application-layer workload, with the torch of BENCH_PYTHON (also try 1.13)."""

import json
import os
import subprocess
from types import SimpleNamespace

import pytest

from tests.bench.conftest import ROOT

pytestmark = pytest.mark.local
SHORT = {"steps": 3, "warmup_steps": 1, "eval_samples": 100}


@pytest.fixture(scope="module")
def warm(python, tmp_path_factory):
    """Start a process that has imported torch and runs bench commands in forks (``warm.py``)."""
    home = str(tmp_path_factory.mktemp("home"))
    # One thread: only results are checked, and two spinning thread pools are ten times slower on a busy machine.
    env = {"PATH": os.environ["PATH"], "HOME": home, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    argv = [python, "-W", "ignore", "-m", "tests.bench.warm"]
    process = subprocess.Popen(argv, cwd=ROOT, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        yield process


@pytest.fixture
def bench(warm, data_dir, tmp_path):
    """Return a function that runs ``bench run`` with options in a fork and returns (record, log)."""

    def run(**options):
        record, log = tmp_path / "record.json", tmp_path / "log"
        record.unlink(missing_ok=True)
        argv = ["run", "--record", str(record), "--data-dir", str(data_dir)]
        for name, value in options.items():
            argv += ["--" + name.replace("_", "-"), str(value)]
        print(json.dumps([argv, str(log)]), file=warm.stdin, flush=True)
        status = warm.stdout.readline().strip()
        assert status == "0", log.read_text()
        return json.loads(record.read_text()), SimpleNamespace(stderr=log.read_text())

    return run


def ran(bench, **options):
    """Run a short trial and return its record; skip the test if this torch does not support the workload."""
    record, _ = bench(**{**SHORT, **options})
    if record["skipped"]:
        assert record["timing"] is record["metrics"] is record["result"] is None
        pytest.skip(record["skipped"])
    return record


@pytest.mark.parametrize(
    ("options", "parameters"),
    [
        # The book's notebook prints the first number. By hand: 618 biases fewer; + 512*256+256 + 256*10-512*10.
        ({}, 1_630_090),
        ({"bias": "false"}, 1_629_472),
        ({"extra_layer": "true"}, 1_758_858),
        # The network of PyTorch's CIFAR-10 tutorial, and LeNet-5 on 28x28 images.
        ({"model": "lenet5", "data": "cifar10"}, 62_006),
        ({"model": "lenet5"}, 61_706),
        # 3*5*5*4+4 + 4*5*5*8+8 + 200*32+32 + 32*16+16 + 16*10+10
        ({"model": "lenet5", "data": "cifar10", "widths": "4,8,32,16"}, 8_242),
        ({"model": "mlp"}, 535_818),
        ({"model": "mlp", "widths": "10"}, 7_960),
        ({"model": "transformer"}, 71_242),
        ({"model": "lstm"}, 82_186),
        # torchvision's tables list 11,689,512 and 25,557,032 for 1000 classes; these have 10.
        ({"model": "resnet18", "batch_size": 4}, 11_689_512 - 513_000 + 5_130),
        ({"model": "resnet50", "batch_size": 4}, 25_557_032 - 2_049_000 + 20_490),
    ],
)
def test_models_have_the_published_or_hand_computed_number_of_parameters(bench, options, parameters):
    record = ran(bench, **{"steps": 1, "warmup_steps": 0, "eval_samples": 0, **options})
    assert record["result"]["parameters"] == parameters


@pytest.mark.parametrize("model", ["lenet5", "mlp", "transformer", "lstm"])
def test_every_small_model_learns(bench, model):
    record = ran(
        bench,
        model=model,
        optimizer="adam",
        learning_rate=0.002,
        steps=300,
        eval_samples=1000,
        data="cifar10",
    )
    assert record["data"]["name"] == "cifar10-stand-in"
    assert record["result"]["accuracy"] > 0.3  # chance is 0.1


def test_gradient_accumulation_gives_the_result_of_the_whole_batch(bench):
    whole = ran(bench, model="lenet5", steps=30, batch_size=60)["result"]
    parts = ran(bench, model="lenet5", steps=30, batch_size=60, accumulation=7)["result"]
    assert parts["training_loss"] == pytest.approx(whole["training_loss"], rel=1e-4)
    assert parts["loss"] == pytest.approx(whole["loss"], rel=1e-4)
    assert parts["samples"] == whole["samples"]


@pytest.mark.parametrize(
    ("options", "tolerance"),
    [
        ({"set_to_none": "false"}, 1e-6),
        ({"log_loss": "item"}, 1e-6),
        ({"log_loss": "tensor"}, 1e-6),
        ({"loader": "dataloader"}, None),
        ({"channels_last": "true"}, 1e-3),
        ({"autocast": "bfloat16"}, 0.02),
        ({"autocast": "float16"}, 0.02),
        ({"compile": "aot_eager"}, 1e-3),
        ({"compile": "inductor"}, 1e-3),
    ],
)
def test_options_that_change_only_the_computing_keep_the_result(bench, options, tolerance):
    same = {"model": "lenet5", "steps": 12, "drop_last": "true"}
    changed = ran(bench, **same, **options)
    plain = ran(bench, **same)
    # Another loader draws the samples in another order, so only the size of the loss can be compared.
    assert changed["result"]["training_loss"] == pytest.approx(plain["result"]["training_loss"], rel=tolerance or 0.1)
    assert (changed["timing"]["compile_ns"] is not None) == ("compile" in options)


@pytest.mark.parametrize("loader", ["dataloader", "torchvision", "image-folder"])
def test_loaders_wait_for_data_apart_from_computing(bench, loader):
    record = ran(bench, model="mlp", loader=loader, workers=1, persistent_workers="true", prefetch_factor=3)
    assert record["result"]["samples"] == 3 * 64
    assert record["metrics"]["data_wait_s"] + record["metrics"]["compute_s"] == pytest.approx(
        record["metrics"]["training_s"]
    )


INFERENCE = {"task": "inference", "model": "lenet5", "eval_samples": 1000}


@pytest.fixture(scope="module")
def plain_inference():
    """Return the shared cache of the float32 record."""
    return {}


@pytest.mark.parametrize(
    ("options", "drop", "smaller"),
    [
        ({"guard": "none"}, 0.001, 1.0),
        ({"guard": "no_grad", "eval_mode": "false"}, 0.001, 1.0),
        ({"precision": "bfloat16"}, 0.03, 0.6),
        ({"precision": "float16"}, 0.03, 0.6),
        ({"autocast": "bfloat16"}, 0.03, 1.0),
        ({"quantize": "dynamic"}, 0.03, 0.5),
        ({"quantize": "static"}, 0.05, 0.5),
        ({"quantize": "qat"}, 0.10, 0.5),
        ({"quantize": "torchao"}, 0.05, 0.6),
        ({"prune": "local", "prune_amount": 0.3}, 0.10, 1.0),
        ({"prune": "global", "prune_amount": 0.3}, 0.10, 1.0),
        ({"prune": "structured", "prune_amount": 0.1}, 0.30, 1.0),
        ({"prune": "custom", "prune_amount": 0.15}, 0.10, 1.0),
    ],
    ids=str,
)
def test_inference_options_keep_the_accuracy_near_float32(bench, plain_inference, options, drop, smaller):
    if not plain_inference:
        plain_inference.update(ran(bench, **INFERENCE))
    record = ran(bench, **INFERENCE, **options)
    before = plain_inference["result"]["accuracy"]
    assert before > 0.35  # chance is 0.1
    assert record["result"]["accuracy"] >= before - drop
    assert record["metrics"]["model_bytes"] <= plain_inference["metrics"]["model_bytes"] * smaller * 1.01
    latency = [record["metrics"][f"latency_p{share}_s"] for share in (50, 90, 99)]
    assert latency == sorted(latency)
    if "prune_amount" in options and options["prune"] != "custom":
        assert record["result"]["sparsity"] == pytest.approx(options["prune_amount"], abs=0.05)
    if options.get("prune") == "custom":
        assert 0.05 < record["result"]["sparsity"] < 0.5


def test_the_profiled_pass_shows_phases_and_operators_and_is_not_timed(bench):
    record = ran(bench, model="lenet5", profile_steps=4)
    assert len(record["timing"]["steps_ns"]) == 3
    assert set(record["profile"]["phases_ns"]) == {"data", "forward", "loss", "backward", "optimizer"}
    assert all(value > 0 for value in record["profile"]["phases_ns"].values())
    table = {row["name"]: row for row in record["profile"]["operators"]}
    assert table["aten::addmm"]["calls"] == 3 * 4  # three linear layers, four steps
    assert sum(row["share"] for row in table.values()) == pytest.approx(1)


def test_the_onnx_graph_lists_the_models_operators(bench):
    record = ran(bench, model="lenet5", onnx="true")
    counted = record["onnx"]["operators"]
    assert {name: counted[name] for name in ("Conv", "Gemm", "MaxPool", "Relu")} == {
        "Conv": 2, "Gemm": 3, "MaxPool": 2, "Relu": 4,
    }  # fmt: skip


def test_what_this_environment_lacks_is_a_skip_with_its_reason_and_evidence(bench):
    record, done = bench(**SHORT, loader="dataloader", pin_memory="true")
    if record["skipped"] is None:
        pytest.skip("this machine has an accelerator")
    assert record["skipped"] == "pin_memory: true needs an accelerator, and there is none here"
    assert record["evidence"]["torch"]["version"]
    assert "skipped" in done.stderr


def test_a_program_that_uses_torch_is_probed_without_a_change_to_it(python, tmp_path):
    program, record = tmp_path / "train.py", tmp_path / "record.json"
    program.write_text("import torch\nprint('rate', float(torch.ones(10).sum()))\n")
    argv = [python, "-m", "bench", "command", "--record", str(record), "--metric-regex", "rate ([0-9.]+)"]
    subprocess.run([*argv, "--", python, "-W", "ignore", str(program)], cwd=ROOT, check=True, capture_output=True)
    seen = json.loads(record.read_text())
    assert seen["metric"]["value"] == 10
    assert seen["evidence"]["source"] == "probe"
    assert seen["evidence"]["openmp"]["library"] == "libgomp"
    assert seen["evidence"]["torch"]["version"]
