"""Options combine: the record is the same for any computation of a step and any way to parallelise it."""

import json
import subprocess
import sys

import pytest

from tests.parallel.conftest import ROOT

pytestmark = pytest.mark.local

SMALL = {"model": "lenet5", "steps": 4}


def ran(bench, **options):
    """Return the record of a run; skip the test if this torch does not support the options."""
    # One thread: only results are checked, and two spinning thread pools are ten times slower on a busy machine.
    record, _ = bench(env={"OMP_NUM_THREADS": "1"}, **{**SMALL, **options})
    if record["skipped"]:
        pytest.skip(record["skipped"])
    return record


@pytest.mark.parametrize(
    "options",
    [
        {"parallel": "ddp", "autocast": "bfloat16", "compile": "inductor", "model": "mlp", "drop_last": "true"},
        {"parallel": "ddp", "autocast": "float16", "accumulation": 2},
        {"parallel": "ddp", "compile": "aot_eager", "processes": 3, "batch_size": 33, "channels_last": "true"},
        {"parallel": "fsdp", "autocast": "bfloat16", "set_to_none": "false"},
        {"parallel": "dp", "autocast": "bfloat16", "log_loss": "item"},
        {"parallel": "ddp-pipeline", "autocast": "bfloat16", "micro_batches": 2, "model": "fashion-cnn"},
        {"loader": "dataloader", "workers": 1, "channels_last": "true", "compile": "aot_eager", "accumulation": 3},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_options_combine_with_strategies_and_the_losses_are_those_of_one_plain_process(bench, options):
    equality = ran(bench, verify_steps=4, **options)["result"]["equality"]
    assert equality["losses"][0] != equality["losses"][-1]
    assert equality["largest_difference"] <= equality["tolerance"] <= 5e-3


@pytest.fixture(scope="module")
def alone():
    """Return the shared cache of the records of single-process runs."""
    return {}


@pytest.mark.parametrize(
    ("parallel", "options"),
    [
        ("ddp", {"quantize": "dynamic"}),
        ("fsdp", {}),
        ("dp", {"guard": "no_grad", "autocast": "bfloat16"}),
        ("pipeline", {"micro_batches": 2, "model": "fashion-cnn"}),
    ],
    ids=str,
)
def test_predictions_spread_over_processes_are_those_of_one_process(bench, alone, parallel, options):
    inference = {"task": "inference", "pretrain_steps": 10, **options}
    whole = {name: value for name, value in inference.items() if name != "micro_batches"}
    if str(whole) not in alone:
        alone[str(whole)] = ran(bench, **whole)["result"]
    spread = ran(bench, parallel=parallel, **inference)
    # Fewer threads sum in another order, and training amplifies the difference.
    assert spread["result"]["loss"] == pytest.approx(alone[str(whole)]["loss"], rel=0.02)
    assert spread["result"]["accuracy"] == pytest.approx(alone[str(whole)]["accuracy"], abs=0.03)
    assert spread["result"]["samples"] == 4 * 32
    assert spread["metrics"]["latency_p50_s"] <= spread["metrics"]["latency_p99_s"]
    assert spread["metrics"]["preparation_s"] > 0
    assert spread["metrics"]["model_bytes"] > 0


@pytest.mark.timeout(400)
def test_every_record_has_the_same_metrics_wherever_its_steps_were_taken_and_a_profile_its_exchange(bench):
    plain = ran(bench)
    spread = {"parallel": "ddp", "profile_steps": 2}
    for options in (spread, {"parallel": "dp"}, {"collective": "all-reduce", "collective_sizes": 4096}):
        record = ran(bench, **{"verify_steps": 0, **options})
        for part in ("metrics", "timing", "result", "data"):
            assert set(record[part]) == set(plain[part])
        undefined = {name for name, value in record["metrics"].items() if value is None}
        expected = {name for name, value in plain["metrics"].items() if value is None}
        of_ranks = set() if options.get("parallel") == "dp" else {"others_s"}  # each rank counts the other ranks too
        assert undefined - expected == of_ranks | ({"model_bytes"} if "collective" in options else set())
        assert {"profile", "onnx"} <= set(record)
        if options is spread:
            check_profile(record)


def check_profile(record):
    assert set(record["profile"]["phases_ns"]) == {"data", "forward", "loss", "backward", "optimizer"}
    names = {row["name"] for row in record["profile"]["operators"]}
    assert any("c10d::allreduce" in name for name in names)
    assert len(record["timing"]["steps_ns"]) == 4


def test_onnx_shows_the_network_and_not_what_it_was_wrapped_in(bench):
    record = ran(bench, parallel="ddp", onnx="true")
    assert record["onnx"]["operators"]["Conv"] == 2


MASK = """
import json, os, sys
from bench import data_sets, dataset_tensors
from bench.parallel import rank_main, rendezvous

class Seen(dataset_tensors.Rows):
    def __getitem__(self, index):
        with open(os.environ["SEEN"], "a") as file:
            file.write(json.dumps(sorted(os.sched_getaffinity(0))) + chr(10))
        return super().__getitem__(index)

dataset_tensors.Rows = Seen
from bench import evidence
read = evidence.before_torch

def before_torch():
    found = read()
    found["affinity_before"] = [max(os.sched_getaffinity(0))]
    return found

evidence.before_torch = before_torch
sys.exit(rank_main.main(sys.argv[1:]))
"""


def test_workers_of_a_rank_s_loader_have_the_cpus_from_before_the_import_of_torch(
    python, data_dir, variables, tmp_path
):
    # A job of one rank, started as the supervisor does it, with a recognisable mask "before the import".
    from bench import options as workload_options

    chosen = {
        **workload_options.defaults(), "parallel": "ddp", "processes": 1, "steps": 2, "warmup_steps": 0,
        "eval_samples": 0, "loader": "dataloader", "workers": 1, "batch_size": 2,
    }  # fmt: skip
    job = {"options": chosen, "world": 1, "here": 1, "meet": None, "folder": str(tmp_path), "began_ns": 0}
    (tmp_path / "job.json").write_text(json.dumps({**job, "data_dir": str(data_dir)}))
    argv = [python, "-W", "ignore", "-c", MASK, str(tmp_path / "job.json"), "0"]
    env = {**variables, "SEEN": str(tmp_path / "seen"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    probe = [sys.executable, "-c", "import os; print([max(os.sched_getaffinity(0))])"]
    expected = subprocess.run(probe, capture_output=True, text=True, check=True).stdout.strip()
    assert set((tmp_path / "seen").read_text().splitlines()) == {expected}
