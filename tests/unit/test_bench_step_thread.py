"""A thread's account of real costs, with real threads and processes, without torch."""

import hashlib
import json
import mmap
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from bench import step_thread_account, system_event_costs
from bench.evidence import proc_files

ROOT = Path(__file__).parents[2]
PAGE = mmap.PAGESIZE


def account(work):
    """Return what the thread counted during ``work``; ``cpu`` and ``blocked`` (the rest) are in milliseconds."""
    before = step_thread_account.read()
    work()
    found = step_thread_account.since(before)
    blocked = found["wall_ns"] - found["cpu_ns"] - found["waited_ns"]
    return {**found, "cpu": found["cpu_ns"] / 1e6, "blocked": blocked / 1e6}


def spin(milliseconds):
    until = time.thread_time() + milliseconds / 1e3
    while time.thread_time() < until:
        sum(range(1000))


def fault(pages):
    with mmap.mmap(-1, pages * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        for at in range(0, pages * PAGE, PAGE):
            memory[at] = 1


def test_a_sleep_is_blocked_and_no_cpu_time():
    found = account(lambda: time.sleep(0.1))
    assert 95 <= found["blocked"] <= 130
    assert found["cpu"] < 20
    assert found["voluntary_switches"] >= 1


def test_work_is_cpu_time_however_long_it_waits_for_a_cpu():
    found = account(lambda: spin(60))
    assert 60 <= found["cpu"] <= 75
    assert found["blocked"] < 10
    assert found["user_ns"] > 5 * found["system_ns"]


def test_page_faults_are_counted_and_are_time_of_the_kernel():
    found = account(lambda: fault(8000))
    assert 8000 <= found["minor_faults"] <= 8200
    assert found["system_ns"] > 8000 * 100


def test_another_thread_that_spins_is_told_beside_and_in_no_part_of_a_sleep():
    over = threading.Event()
    other = threading.Thread(target=lambda: spin(1e-3) or [spin(5) for _ in iter(over.is_set, True)])
    other.start()
    try:
        found = account(lambda: time.sleep(0.2))
    finally:
        over.set()
        other.join()
    assert found["blocked"] > 0.8 * 200
    assert found["cpu"] < 20
    assert found["others"]["busy"] == 1
    assert found["others"]["cpu_ns"] > 20e6


def test_a_thread_that_ended_is_told():
    sleeper = threading.Event()
    other = threading.Thread(target=sleeper.wait)
    other.start()
    found = account(lambda: (sleeper.set(), other.join(), time.sleep(0.01)))
    assert found["others"]["ended"] == 1


def test_stretches_are_summed_and_one_unread_makes_the_sum_unknown():
    first, second = (account(lambda: spin(5)) for _ in range(2))
    found = step_thread_account.sum_intervals([first, second])
    assert found["cpu_ns"] == first["cpu_ns"] + second["cpu_ns"]
    assert found["others"]["cpu_ns"] == first["others"]["cpu_ns"] + second["others"]["cpu_ns"]
    assert step_thread_account.sum_intervals([first, None]) is None
    assert step_thread_account.sum_intervals([first, {**second, "waited_ns": None}])["waited_ns"] is None
    assert step_thread_account.sum_intervals([]) is None


def test_without_scheduler_statistics_waiting_is_unknown(monkeypatch):
    monkeypatch.setattr(step_thread_account.proc_files, "scheduled", lambda *_: None)
    before = step_thread_account.read()
    assert step_thread_account.since(before)["waited_ns"] is None


def test_a_page_fault_costs_what_it_costs():
    """The kernel clears 4 KiB: more than 50 ns on any machine, some microseconds on slow virtual machines."""
    assert 50 < system_event_costs.minor_fault_ns() < 50_000
    assert 100 < system_event_costs.wake_up_ns() < 5e6
    assert 50 < system_event_costs.memory_call_ns() < 100_000
    assert set(system_event_costs.measure()) == {"minor_fault_ns", "wake_up_ns", "memory_call_ns"}


def own(tmp_path, program, *argv):
    record = tmp_path / "record.json"
    command = argv or (sys.executable, "-c", program)
    subprocess.run(
        [sys.executable, "-m", "bench", "command", "--record", str(record), "--", *command],
        cwd=ROOT, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}, check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    return json.loads(record.read_text())


def test_of_a_program_it_is_the_first_thread_and_nothing_that_the_probe_did(tmp_path):
    found = own(tmp_path, "import time; time.sleep(0.3); sum(range(2 * 10**6))")
    thread = found["step_thread"]
    assert thread["wall_ns"] == found["timing"]["wall_ns"]
    assert thread["wall_ns"] - thread["cpu_ns"] - thread["waited_ns"] > 0.28e9
    assert thread["steps"] is None
    in_all = found["metrics"]["user_s"] + found["metrics"]["system_s"]
    assert 0 < thread["cpu_ns"] / 1e9 < in_all
    assert "step_thread" not in found["evidence"]


@pytest.mark.parametrize("argv", [("sleep", "0.1"), (sys.executable, "-c", "import os; os._exit(0)")])
def test_a_program_that_leaves_no_word_has_no_account(tmp_path, argv):
    assert own(tmp_path, "", *argv)["step_thread"] is None


def test_a_program_that_another_one_starts_by_exec_is_accounted_for(tmp_path):
    told = own(tmp_path, "", "sh", "-c", 'exec "$0" -c "import time; time.sleep(0.2)"', sys.executable)["step_thread"]
    assert told["wall_ns"] - told["cpu_ns"] - told["waited_ns"] > 0.19e9


def test_the_cpu_time_of_another_running_thread_is_up_to_date():
    """Guards against others' CPU time on a machine with many CPUs: the kernel adds a running thread's at every tick."""
    numbers, ready = [], threading.Event()

    def work():
        numbers.append(threading.get_native_id())
        ready.set()
        hashlib.pbkdf2_hmac("sha256", b"", b"", 600_000)  # without the GIL

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait()
    for number in range(60):
        time.sleep(0.001 + number * 17e-6)  # not in step with the ticks
        began_ns = time.perf_counter_ns()
        proc_files.update_own_cpu_times()
        counted_ns = proc_files.scheduled("self", numbers[0]).ran_ns
        exact_ns = time.clock_gettime_ns((~numbers[0] << 3) | 6)
        assert exact_ns - counted_ns <= time.perf_counter_ns() - began_ns + 100_000
    thread.join()
