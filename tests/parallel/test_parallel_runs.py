"""All ways of parallel training, really run and compared with one process, and all their failures."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from tests.parallel.conftest import ROOT

pytestmark = pytest.mark.local


@pytest.mark.parametrize(
    "options",
    [
        {"parallel": "dp"},
        {"parallel": "pipeline", "micro_batches": 4},
        {"parallel": "ddp", "accumulation": 2},
        {"parallel": "ddp", "accumulation": 2, "no_sync": "false"},
        {"parallel": "ddp", "processes": 3, "batch_size": 33, "loader": "dataloader"},
        {"parallel": "ddp-pipeline", "micro_batches": 2},
        {"parallel": "fsdp", "accumulation": 2},
        {"parallel": "ddp", "batch_scope": "process", "learning_rate_scaling": "linear", "optimizer": "adam"},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_a_parallel_way_trains_as_one_process_does(bench, options):
    record, _ = bench(verify_steps=5, **options)
    check_equality(record, options)


def check_equality(record, options):
    equality = record["result"]["equality"]
    world = record["evidence"]["parallel"]["processes"]
    assert equality["steps"] == 5
    assert equality["largest_difference"] <= equality["tolerance"] <= 1e-4
    assert equality["losses"][0] != equality["losses"][-1]
    growth = world if options.get("batch_scope") == "process" else 1
    assert record["result"]["effective_batch"] == options.get("batch_size", 32) * growth
    assert record["result"]["learning_rate"] == pytest.approx(0.1 * growth)
    assert record["result"]["samples"] == 3 * record["result"]["effective_batch"]
    assert record["result"]["parameters"] == 1_630_090


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"accumulation": 2},
        {"accumulation": 2, "autocast": "bfloat16"},
        {"processes": 1, "optimizer": "adam"},
        {"batch_scope": "process", "learning_rate_scaling": "linear"},
    ],
    ids=lambda options: "-".join(map(str, options.values())) or "plain",
)
def test_lightnings_trainer_trains_as_one_process_does(bench, lightning, options):
    record, _ = bench(parallel="lightning", verify_steps=5, **options)
    equality = record["result"]["equality"]
    assert equality["steps"] == len(equality["losses"]) == 5
    assert equality["largest_difference"] <= equality["tolerance"] <= 2e-4
    assert equality["losses"][0] != equality["losses"][-1]
    assert len(record["timing"]["steps_ns"]) == 3
    assert record["result"]["samples"] == 3 * record["result"]["effective_batch"]
    assert record["evidence"]["parallel"]["processes"] == options.get("processes", 2)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"accumulation": 2},
        {"processes": 3, "batch_size": 33, "loader": "dataloader"},
        {"processes": 1, "optimizer": "adam"},
        {"batch_scope": "process", "learning_rate_scaling": "linear"},
    ],
    ids=lambda options: "-".join(map(str, options.values())) or "plain",
)
def test_horovod_trains_as_one_process_does(bench, horovod, options):
    record, _ = bench(parallel="horovod", verify_steps=5, **options)
    equality = record["result"]["equality"]
    assert equality["steps"] == len(equality["losses"]) == 5
    assert equality["largest_difference"] <= equality["tolerance"] <= 2e-5
    assert equality["losses"][0] != equality["losses"][-1]
    assert record["result"]["samples"] == 3 * record["result"]["effective_batch"]
    seen = record["evidence"]["parallel"]
    assert seen["processes"] == options.get("processes", 2)
    assert seen["horovod"] == "0.28.1"


@pytest.mark.parametrize("library", ["lightning", "horovod"])
def test_without_its_library_a_trial_is_skipped_with_the_reason(bench, tmp_path, library):
    # A module of that name that cannot be imported, as in an environment without it.
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules[{library!r}] = None\n")
    record, _ = bench(parallel=library, verify_steps=5, env={"PYTHONPATH": str(tmp_path)})
    assert f"needs the Python module {library}" in record["skipped"]
    assert record["metrics"] is None


def test_ddp_trains_as_one_process_does_and_rank_0_writes_what_every_rank_did(bench):
    record, done = bench(parallel="ddp", processes=2, verify_steps=5)
    check_equality(record, {})
    seen = record["evidence"]["parallel"]
    assert [part["rank"] for part in seen["ranks"]] == [0, 1]
    assert len({part["pid"] for part in seen["ranks"]}) == 2
    assert [len(part["steps_ns"]) for part in seen["ranks"]] == [3, 3]
    assert sum(part["peak_rss_bytes"] for part in seen["ranks"]) == record["metrics"]["peak_rss_bytes"]
    assert (seen["backend"], seen["lazy"]) == ("gloo", False)
    assert record["timing"]["startup_ns"] > record["timing"]["import_ns"] > 0
    assert "3 steps" in done.stderr


def test_gloo_told_to_be_lazy_is_seen_to_connect_to_nobody_at_first(bench):
    record, _ = bench(collective="broadcast", collective_sizes="4096", steps=2, env={"TORCH_GLOO_LAZY_INIT": "1"})
    assert record["evidence"]["parallel"]["lazy"] is True


def test_the_number_of_processes_may_come_from_the_environment(bench):
    record, _ = bench(parallel="ddp", env={"BENCH_PROCESSES": "1"})
    assert record["evidence"]["parallel"]["processes"] == 1
    assert record["workload"]["options"]["processes"] is None
    _, done = bench(parallel="ddp", env={"BENCH_PROCESSES": "many"}, status=2)
    assert "BENCH_PROCESSES must be a number" in done.stderr


@pytest.mark.parametrize("collective", ["all-reduce", "all-gather", "broadcast"])
def test_a_collective_is_measured_by_size(bench, collective):
    record, _ = bench(collective=collective, collective_sizes="4096,65536", steps=4)
    table = record["result"]["collective"]
    assert [row["bytes"] for row in table] == [4096, 65536]
    assert all(row["bus_bytes_per_s"] > 0 for row in table)
    assert record["result"]["samples"] == 4 * (4096 + 65536) // 4
    assert record["evidence"]["parallel"]["processes"] == 2


def start(command, variables, tmp_path, **options):
    log = (tmp_path / "log").open("wb")
    return subprocess.Popen(command(steps=1_000_000, **options), cwd=ROOT, env=variables, stdout=log, stderr=log)


def members(supervisor, count):
    """Wait until the ranks exist and have connected to each other; return their process ids."""
    until = time.monotonic() + 90
    while time.monotonic() < until:
        found = {}
        for process in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                argv = (process / "cmdline").read_bytes().split(b"\0")
                parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
                if b"bench.parallel.rank_main" in argv and parent == supervisor:
                    busy = len(list((process / "task").iterdir())) > 4  # Gloo's threads exist
                    found[int(argv[argv.index(b"bench.parallel.rank_main") + 2])] = int(process.name) if busy else 0
        if len(found) == count and all(found.values()):
            return found
        time.sleep(0.05)
    pytest.fail("the ranks did not start")


RENAMED = "import os, socket, sys; socket.sethostname('nowhere.invalid'); os.execvp(sys.argv[1], sys.argv[1:])"


def test_horovod_trains_where_the_machine_s_name_has_no_address(command, variables, tmp_path, python, horovod):
    # As in a container without a network; unpatched Horovod 0.28.1 dies there of SIGSEGV.
    unshare = ["unshare", "--map-root-user", "--uts"]
    if not shutil.which("unshare") or subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody give himself another host name (unshare --uts)")
    argv = [*unshare, python, "-c", RENAMED, *command(parallel="horovod", verify_steps=2)]
    done = subprocess.run(argv, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "record.json").read_text())
    assert [part["host"] for part in record["evidence"]["parallel"]["ranks"]] == ["nowhere.invalid"] * 2


def gone(pids, within_s=10):
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        if not any(Path(f"/proc/{pid}").exists() for pid in pids):
            return True
        time.sleep(0.05)
    return False


def test_a_rank_that_is_killed_ends_all_and_is_named(command, variables, tmp_path):
    job = start(command, variables, tmp_path, parallel="ddp")
    ranks = members(job.pid, 2)
    os.kill(ranks[1], signal.SIGKILL)
    assert job.wait(100) == 1
    assert gone(ranks.values())
    last = (tmp_path / "log").read_text().strip().splitlines()[-1]
    assert last.startswith("bench: error: rank 1 of 2 was killed by SIGKILL")
    assert not (tmp_path / "record.json").exists()
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_rank_outlives_its_supervisor(command, variables, tmp_path, number):
    job = start(command, variables, tmp_path, parallel="ddp")
    ranks = members(job.pid, 2)
    os.kill(job.pid, number)
    job.wait(100)
    assert gone(ranks.values())


def test_a_port_in_use_is_one_clear_line(bench):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        record, done = bench(parallel="ddp", port=port, collective_timeout_s=20, status=1)
    assert record is None
    last = done.stderr.strip().splitlines()[-1]
    assert f"port {port} of 127.0.0.1 cannot be had" in last
    assert "Traceback" not in last


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"parallel": "ddp", "processes": 3, "batch_size": 64}, "multiple of 3"),
        ({"parallel": "ddp", "processes": 0}, "at least 1"),
        ({"parallel": "ddp", "micro_batches": 2}, "micro_batches belong to"),
        ({"parallel": "dp", "collective": "all-reduce"}, "collective measures communication alone"),
        ({"task": "inference", "collective": "all-reduce"}, "collective measures communication alone"),
        ({"processes": 2}, "processes belong to"),
        ({"compile": "openxla"}, "openxla belongs to device: xla"),
        ({"parallel": "dp", "compile": "inductor"}, "their networks compute in several"),
        ({"parallel": "fsdp", "onnx": "true"}, "fsdp keeps a shard of the weights in each process"),
        ({"task": "inference", "verify_steps": 3}, "a prediction has no gradient and no loss"),
        ({"device": "xla", "parallel": "ddp"}, "xla runs in one process here"),
        ({"device": "xla", "compile": "inductor"}, "xla compiles and lays out by itself"),
        ({"device": "cuda", "task": "inference", "quantize": "static"}, "int8 kernels, which are the CPU's"),
        ({"parallel": "lightning", "device": "cuda"}, "lightning drives the steps itself, on the CPU"),
        ({"parallel": "lightning", "autocast": "float16"}, "it scales no float16 gradients"),
        ({"parallel": "horovod", "device": "cuda"}, "horovod trains on the CPU"),
        ({"parallel": "horovod", "no_sync": "false"}, "no_sync: false belongs to"),
        ({"parallel": "horovod", "nodes": 2}, "nodes above 1 belong to"),
        ({"parallel": "lightning", "no_sync": "false"}, "no_sync: false belongs to"),
    ],
)
def test_bad_combinations_are_refused_before_anything_starts(bench, options, words):
    _, done = bench(status=2, **options)
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("device", "words"), [("cuda", "needs a GPU"), ("xla", "torch_xla")])
def test_a_device_that_is_not_there_is_a_skipped_trial_with_its_reason(bench, python, device, words):
    probe = {"cuda": "import torch; exit(torch.cuda.is_available())", "xla": "import torch_xla"}[device]
    there = subprocess.run([python, "-c", probe], capture_output=True, check=False).returncode == (device == "cuda")
    if there:
        pytest.skip(f"this machine has {device}")
    record, _ = bench(device=device)
    assert words in record["skipped"]
    assert record["metrics"] is None
    assert json.dumps(record["evidence"]["cuda"])


@pytest.mark.parametrize("compiler", ["none", "openxla"])
def test_xla_trains_as_the_cpu_does_and_tells_its_compile_time_apart(bench, python, compiler):
    if subprocess.run([python, "-c", "import torch_xla"], capture_output=True, check=False).returncode:
        pytest.skip(f"{python} has no torch_xla (the environment `xla` has)")
    record, _ = bench(device="xla", compile=compiler, verify_steps=3, env={"PJRT_DEVICE": "CPU"})
    assert record["result"]["equality"]["largest_difference"] <= 2e-5
    assert record["timing"]["compile_ns"] > 0
    assert record["evidence"]["xla"]["compile_count"] > 0
    assert record["metrics"]["compile_s"] == record["timing"]["compile_ns"] / 1e9


def test_openxla_on_a_device_that_is_not_xla_is_skipped_with_the_reason(bench):
    record, _ = bench(device="environment", compile="openxla", env={"BENCH_DEVICE": "cpu"})
    assert "openxla belongs to device: xla" in record["skipped"]
    assert record["skipped"].endswith("the environment names device cpu")
