"""Failures of ranks that wait in vain and of GPUs that cannot be used, from torch's own messages."""

import sys
from types import SimpleNamespace

import pytest

from bench import options as workload_options
from bench.errors import SkipError
from bench.parallel import launch, rank_processes

NCCL = (
    "[rank0]:[E626 06:24:44.903881913 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=808, OpType=ALLREDUCE, NumelIn=9801523, NumelOut=9801523, Timeout(ms)=600000) ran for 600020 "
    "milliseconds before timing out."
)
OLD_NCCL = (
    "[E ProcessGroupNCCL.cpp:737] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=469508, "
    "OpType=_ALLGATHER_BASE, Timeout(ms)=1800000) ran for 1802212 milliseconds before timing out."
)
GLOO = (
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 5000ms for recv "
    "operation to complete"
)
STORE = "torch.distributed.DistStoreError: wait timeout after 3000ms, keys: /default_pg/0//cpu//0//1"


@pytest.mark.parametrize(
    ("said", "what", "seconds"),
    [
        (NCCL, "ALLREDUCE", 600.0),
        (OLD_NCCL, "_ALLGATHER_BASE", 1800.0),
        (GLOO, "a collective", 5.0),
        (STORE, "a collective", 3.0),
    ],
    ids=["nccl", "old nccl", "gloo", "store"],
)
def test_a_time_out_is_read_from_each_library_s_words(said, what, seconds):
    assert rank_processes.find_timeout(f"before\n{said}\nFile x.py, line 3") == (what, seconds)


@pytest.mark.parametrize("said", ["", "RuntimeError: Connection closed by peer [127.0.0.1]:5", "out of memory"])
def test_other_words_are_no_time_out(said):
    assert rank_processes.find_timeout(said) is None


def started(tmp_path, programs):
    python = [sys.executable, "-S", "-c"]
    return rank_processes.Ranks(lambda rank: [*python, programs[rank]], len(programs), str(tmp_path), str(tmp_path))


THERE = "open('there', 'w'); "
#: Waits for the other rank to exist: a slow start must not look like a later failure.
MEETS = "[time.sleep(0.01) for _ in iter(lambda: os.path.exists('there'), True)]; "


def says(text, after_s, end, first=""):
    words = f"print({text!r}, file=sys.stderr, flush=True)"
    return f"import os, sys, time; {first}time.sleep({after_s}); {words}; {end}"


FOREVER = "import time; time.sleep(1000)"


@pytest.mark.parametrize(
    ("text", "end", "words"),
    [
        (NCCL, "os.abort()", "took no part in ALLREDUCE within 600 s"),
        (GLOO, "sys.exit(1)", "took no part in a collective within 5 s"),
    ],
    ids=["nccl", "gloo"],
)
def test_the_rank_that_did_not_take_part_is_named_not_those_that_waited_for_it(tmp_path, text, end, words):
    # The second one times out later than the grace period for ranks that lost a peer.
    job = started(tmp_path, [says(text, 0, end, MEETS), FOREVER, says(text, 1.8, end, THERE)])
    failure = job.wait()
    assert failure.running == [1]
    assert all(process.poll() is not None for process in job.processes)
    told = launch._failure_message(failure, job.last_words(failure.rank), 3, [4, 5, 6], " on node n1")
    assert told.startswith(f"time-out: rank 5 of 3 {words}")
    assert "rank 4 of 3 waited" in told
    assert told.endswith("on node n1")


@pytest.mark.parametrize("said", [GLOO, "RuntimeError: Connection closed by peer [127.0.0.1]:5"])
def test_a_rank_that_waited_too_and_is_slow_to_end_is_not_taken_for_the_one_that_is_missing(tmp_path, said):
    slow = says(said, 0, "time.sleep(1000)", THERE)
    failure = started(tmp_path, [says(GLOO, 0.3, "sys.exit(1)", MEETS), FOREVER, slow]).wait()
    assert failure.running == [1]


def test_a_rank_that_died_is_blamed_before_the_one_that_then_waited_for_it(tmp_path):
    killed = f"import os, time; {THERE}time.sleep(0.3); os.kill(os.getpid(), 9)"
    failure = started(tmp_path, [says(GLOO, 0, "sys.exit(1)", MEETS), killed]).wait()
    assert (failure.rank, failure.how, failure.timeout) == (1, "was killed by SIGKILL", None)


def test_a_time_out_that_all_ranks_ran_into_names_who_waited():
    told = rank_processes.timeout_message(("ALLREDUCE", 600.0), 2, [], 4)
    assert told == "time-out: ALLREDUCE was not over within 600 s, for which rank 2 of 4 waited"


def torch_that_says(text, cuda="12.8"):
    def init():
        raise RuntimeError(text)

    gpus = SimpleNamespace(is_available=lambda: False, init=init, device_count=lambda: 0)
    return SimpleNamespace(__version__="2.9.0+cu128", version=SimpleNamespace(cuda=cuda), cuda=gpus)


TOO_OLD = (
    "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver by downloading "
    "and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx Alternatively, go to: "
    "https://pytorch.org to install a PyTorch version that has been compiled with your version of the CUDA driver."
)
NO_DRIVER = (
    "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver from "
    "http://www.nvidia.com/Download/index.aspx"
)


def test_a_driver_that_is_too_old_is_told_with_both_versions_and_what_to_do():
    from bench import devices

    assert devices.why_no_cuda(torch_that_says(TOO_OLD)) == (
        "a newer NVIDIA driver: the one here knows CUDA up to 11.4, and torch 2.9.0+cu128 was built for CUDA 12.8 "
        "(update the driver, or use a torch built for CUDA 11.4 or older)"
    )


@pytest.mark.parametrize("said", [NO_DRIVER, "No CUDA GPUs are available"])
def test_without_a_driver_or_a_gpu_torch_s_own_words_are_told(said):
    from bench import devices

    assert said in devices.why_no_cuda(torch_that_says(said))


@pytest.mark.parametrize(("here", "gpus", "words"), [(2, 1, "2 GPUs for 2 processes, and there is 1"), (4, 4, None)])
def test_more_processes_than_gpus_are_a_skipped_trial(here, gpus, words):
    from bench import devices

    cuda = SimpleNamespace(is_available=lambda: True, device_count=lambda: gpus)
    torch = SimpleNamespace(__version__="2.9.0+cu128", version=SimpleNamespace(cuda="12.8"), cuda=cuda)
    options = {**workload_options.defaults(), "parallel": "ddp", "device": "cuda"}
    if words is None:
        devices.refuse_to_share_gpus(torch, options, here)
        return
    with pytest.raises(SkipError, match=words):
        devices.refuse_to_share_gpus(torch, options, here)
    devices.refuse_to_share_gpus(torch, {**options, "device": "cpu"}, here)
