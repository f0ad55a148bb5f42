"""Ranks that disagree, are missing or do not answer: each ends all ranks, with one line that names it."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from tests.parallel.conftest import ROOT

pytestmark = [pytest.mark.local, pytest.mark.timeout(400)]
#: More steps than any machine can train before the test acts.
ENDLESS = 1_000_000
#: CPU time (s) after which a rank that has connected to the others is training.
BEGUN_CPU_S = 2.0


def free_port():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


def start(argv, variables, log):
    with log.open("wb") as file:
        return subprocess.Popen(argv, cwd=ROOT, env=variables, stdout=file, stderr=file)


def last_line(log):
    return log.read_text().strip().splitlines()[-1]


def ranks_of(tmp_path):
    """Return the processes of all ranks whose job is in this test's own folder, by rank."""
    found, own = {}, str((tmp_path / "tmp").resolve())
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            argv = (process / "cmdline").read_bytes().decode().split("\0")
            if "bench.parallel.rank_main" in argv and own in argv[argv.index("bench.parallel.rank_main") + 1]:
                found[int(argv[argv.index("bench.parallel.rank_main") + 2])] = int(process.name)
    return found


def wait_for(condition, seconds=200):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return
        time.sleep(0.02)
    pytest.fail(f"not within {seconds} s")


def has_threads(pid, count):
    with contextlib.suppress(OSError):
        return len(list(Path(f"/proc/{pid}/task").iterdir())) > count
    return False


def test_nodes_that_were_told_different_numbers_of_processes_end_at_once_and_say_so(command, variables, tmp_path):
    meet = f"127.0.0.1:{free_port()}"
    jobs, logs = [], []
    for index, processes in enumerate((2, 4)):
        argv = command(parallel="ddp", processes=processes, nodes=2, collective_timeout_s=100)
        logs.append(tmp_path / f"node-{index}.log")
        jobs.append(start([*argv, "--node-rank", str(index), "--meet", meet], variables, logs[-1]))
    began = time.monotonic()
    assert [job.wait(110) for job in jobs] == [1, 1]
    assert time.monotonic() - began < 95  # less than the time limit of a collective
    for log in logs:
        assert "the ranks were given different numbers of processes: " in last_line(log)
        assert "2 processes (rank 0)" in last_line(log)
        assert "4 processes (rank " in last_line(log)
        assert "start all with the same --processes" in last_line(log)
    wait_for(lambda: not ranks_of(tmp_path), 10)
    assert not (tmp_path / "record.json").exists()


def test_a_rank_that_never_joins_is_named(command, variables, tmp_path):
    log = tmp_path / "log"
    job = start(command(parallel="ddp", collective_timeout_s=4), variables, log)
    wait_for(lambda: 1 in ranks_of(tmp_path))
    os.kill(ranks_of(tmp_path)[1], signal.SIGSTOP)
    assert job.wait(110) == 1
    assert "Timed out waiting 4 s for rank 1 of 2 to join (still running then: rank 1)" in last_line(log)
    wait_for(lambda: not ranks_of(tmp_path), 10)


def cpu_s(pid):
    """Return the CPU time (s) of a process, or 0 if it is gone."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def wait_for_training(tmp_path, count, threads=4):
    """Wait until all ranks have connected (seen by their threads) and have then computed for a while."""
    wait_for(lambda: len(ranks_of(tmp_path)) == count)
    ranks = ranks_of(tmp_path).values()
    wait_for(lambda: all(has_threads(pid, threads) for pid in ranks))
    met = {pid: cpu_s(pid) for pid in ranks}
    wait_for(lambda: all(cpu_s(pid) > met[pid] + BEGUN_CPU_S for pid in ranks))


@pytest.mark.parametrize("way", ["ddp", "horovod"])
@pytest.mark.parametrize("processes", [2, 3])
def test_the_rank_that_stops_in_the_middle_is_what_the_time_out_names(
    command, variables, tmp_path, request, way, processes
):
    if way == "horovod":
        request.getfixturevalue("horovod")
    log, last = tmp_path / "log", processes - 1
    argv = command(parallel=way, processes=processes, batch_size=36, steps=ENDLESS, collective_timeout_s=10)
    job = start(argv, variables, log)
    wait_for_training(tmp_path, processes)
    os.kill(ranks_of(tmp_path)[last], signal.SIGSTOP)
    assert job.wait(200) == 1
    said = last_line(log)
    assert said.startswith(
        f"bench: error: time-out: rank {last} of {processes} took no part in a collective within 10 s"
    )
    assert said.endswith(f"(still running then: rank {last})")
    wait_for(lambda: not ranks_of(tmp_path), 10)
    assert not list((tmp_path / "tmp").glob("bench-ranks.*"))


def test_a_horovod_rank_that_is_killed_is_named(command, variables, tmp_path, horovod):
    log = tmp_path / "log"
    job = start(command(parallel="horovod", steps=ENDLESS), variables, log)
    wait_for_training(tmp_path, 2)
    os.kill(ranks_of(tmp_path)[1], signal.SIGKILL)
    assert job.wait(200) == 1
    assert last_line(log).startswith("bench: error: rank 1 of 2 was killed by SIGKILL")
    wait_for(lambda: not ranks_of(tmp_path), 10)


def test_ranks_without_a_gpu_are_one_skipped_trial_with_the_reason(bench, python):
    probe = "import torch; exit(torch.cuda.is_available() and torch.cuda.device_count() > 1)"
    if subprocess.run([python, "-c", probe], capture_output=True, check=False).returncode:
        pytest.skip("this machine has two GPUs")
    record, _ = bench(parallel="ddp", device="cuda")
    assert "GPU" in record["skipped"]
    assert record["metrics"] is None
