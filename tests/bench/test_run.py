"""The record of a real trial."""

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from bench import code_digest
from tests.bench.conftest import ROOT

pytestmark = pytest.mark.local


def test_a_run_gives_the_whole_record_and_its_numbers_agree(bench):
    record, done = bench(steps=20, warmup_steps=2, eval_samples=500, seed=7)
    timing, metrics, result = record["timing"], record["metrics"], record["result"]
    assert record["schema"] == 1
    assert record["skipped"] is None
    assert record["bench"]["digest"] == code_digest.bench_digest()
    assert record["workload"]["digest"] == code_digest.options_digest(record["workload"]["options"])
    assert record["data"]["name"] == "fashion-mnist-stand-in"
    assert len(timing["steps_ns"]) == result["steps"] == 20
    assert sum(timing["steps_ns"]) == timing["training_ns"]
    assert 0 < timing["import_ns"] < timing["startup_ns"]
    assert 0 < timing["data_wait_ns"] < timing["training_ns"]
    assert metrics["samples_per_s"] == pytest.approx(20 * 64 / metrics["training_s"])
    assert metrics["peak_rss_bytes"] > 100e6
    assert metrics["minor_faults"] > 0
    assert "20 steps" in done.stderr
    assert done.stdout == ""


def test_in_turns_the_record_has_the_steps_of_all_turns_and_their_first_ones_apart(bench, tmp_path):
    pipes = []
    for name, said in (("ready", b""), ("go", b"go 2 5\ngo 1 5\nend\n")):
        os.mkfifo(tmp_path / name)
        pipes.append(os.open(tmp_path / name, os.O_RDWR | os.O_NONBLOCK))
        os.write(pipes[-1], said)
    record, _ = bench(steps=8, warmup_steps=2, eval_samples=100, gate=tmp_path)
    assert os.read(pipes[0], 100) == b"ready 8\nready 3\nready 0\n"
    timing, metrics = record["timing"], record["metrics"]
    assert [(len(turn["apart_ns"]), turn["steps"]) for turn in timing["turns"]] == [(2, 5), (1, 3)]
    assert len(timing["steps_ns"]) == record["result"]["steps"] == 8
    assert sum(timing["steps_ns"]) == timing["training_ns"]
    assert record["result"]["samples"] == 8 * 64
    assert metrics["samples_per_s"] == pytest.approx(8 * 64 / metrics["training_s"])
    assert metrics["turn_start"] > 0
    assert metrics["startup_s"] is metrics["import_s"] is metrics["warmup_s"] is metrics["epoch_s"] is None
    for pipe in pipes:
        os.close(pipe)


def test_several_processes_take_no_turns(bench, tmp_path):
    _, done = bench(parallel="ddp", gate=tmp_path, status=2)
    assert "takes no turns" in done.stderr


def test_a_long_look_has_every_step_from_the_first_one_on(bench):
    record, _ = bench(model="mlp", widths="10", steps=3, warmup_steps=2, eval_samples=0, look=0.2)
    timing = record["timing"]
    assert timing["look_s"] == 0.2
    assert len(timing["steps_ns"]) == record["result"]["steps"] > 0
    assert sum(timing["steps_ns"]) == timing["training_ns"] >= 0.2e9
    assert (timing["warmup_ns"], timing["first_step_ns"]) == (0, None)


@pytest.mark.parametrize("wrong", ["0", "-1", "inf", "soon"])
def test_a_long_look_of_no_time_is_bad_input(bench, wrong):
    _, done = bench(look=wrong, status=2)
    assert "--look: must be a number of seconds above 0" in done.stderr


def test_epochs_are_timed_whole(bench):
    record, _ = bench(model="mlp", widths="10", epochs=1, batch_size=2001, warmup_steps=0, eval_samples=0)
    assert record["result"]["steps"] == 30
    assert record["result"]["samples"] == 60000
    assert len(record["timing"]["epochs_ns"]) == 1
    assert sum(record["timing"]["epochs_ns"]) == record["timing"]["training_ns"]
    assert record["result"]["accuracy"] is None


def test_training_learns_and_the_same_seed_gives_the_same_result(bench):
    first, again = (
        bench(steps=80, eval_samples=500, warmup_steps=0, optimizer="adam", learning_rate=0.001)[0] for _ in range(2)
    )
    assert first["result"]["accuracy"] > 0.4  # chance is 0.1
    assert first["result"]["accuracy"] < 1.0
    assert again["result"]["loss"] == pytest.approx(first["result"]["loss"], rel=0.05)


def test_both_loaders_give_the_same_kind_of_training_and_count_their_waiting(bench):
    record, _ = bench(steps=10, loader="dataloader", workers=1, warmup_steps=1, eval_samples=0)
    assert record["result"]["samples"] == 640
    assert record["timing"]["data_wait_ns"] > 0


def test_without_data_in_a_read_only_folder_the_stand_in_is_made_in_a_temporary_one(python):
    with tempfile.TemporaryDirectory() as folder:
        empty, record = Path(folder, "data"), Path(folder, "record.json")
        empty.mkdir(mode=0o555)
        Path(folder).chmod(0o777)
        # Root can write anywhere, so run as an ordinary user.
        who = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.getuid() == 0 else []
        probe = subprocess.run([*who, python, "-c", "import bench, torch"], cwd=ROOT, capture_output=True, check=False)
        if probe.returncode:
            pytest.skip("an ordinary user cannot read this checkout or its Python")
        argv = [python, "-m", "bench", "run", "--data-dir", str(empty), "--record", str(record)]
        argv += ["--steps", "1", "--eval-samples", "0"]
        env = {"PATH": os.environ["PATH"], "HOME": "/", "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run([*who, *argv], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert json.loads(record.read_text())["data"]["stand_in"] is True
        assert list(empty.iterdir()) == []


def test_damaged_data_is_an_error_and_leaves_no_record(bench, data_dir, tmp_path):
    shutil.copytree(data_dir / "fashion-mnist-stand-in", tmp_path / "data" / "fashion-mnist-stand-in")
    part = tmp_path / "data" / "fashion-mnist-stand-in" / "train-labels.bin"
    whole = part.read_bytes()
    part.write_bytes(whole[:-1] + bytes([(whole[-1] + 1) % 10]))
    record, done = bench(steps=1, eval_samples=0, status=1, data_dir=tmp_path / "data")
    assert record is None
    assert "does not hold fashion-mnist-stand-in" in done.stderr
    assert "Traceback" not in done.stderr


_START = """
import sys
from bench import data_sets, options, steps
from bench.devices import Cpu
from bench.prepared_model import Network
from bench.rank_and_device import Place

made, built = [], steps.optimizer_for
steps.optimizer_for = lambda *given: made.append(True) or built(*given)
place = Place(Cpu(), age_ns=lambda: print("optimisers made:", len(made)))
Network(options.defaults(), data_sets.prepare("fashion-mnist", sys.argv[1], True), place).close()
"""


def test_the_start_of_a_program_holds_its_optimiser_whose_first_one_imports_more_of_torch(python, data_dir):
    argv = [python, "-c", _START, str(data_dir)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout == "optimisers made: 1\n"
