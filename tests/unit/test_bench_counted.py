"""Counters beside a thread's account: hardware events, system calls of memory, and the parts of a GPU's time."""

import json
import mmap
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench import cache_misses, gpu_time_parts, memory_system_calls, step_thread_account

PAGE = mmap.PAGESIZE
NEVER = dict.fromkeys(cache_misses.EVENTS)


def map_and_unmap(times):
    for _ in range(times):
        mmap.mmap(-1, 2 * PAGE).close()


@pytest.mark.skipif(not shutil.which("strace"), reason="no strace")
def test_strace_counts_this_thread_s_calls_and_leaves_it():
    found = memory_system_calls.count(lambda: map_and_unmap(50))
    if found is None:
        pytest.skip("this machine lets no process trace another")
    assert 50 <= found["mmap"] <= 60
    assert 50 <= found["munmap"] <= 60
    assert memory_system_calls.fields("/proc/self/status")["TracerPid"] == "0"
    assert memory_system_calls.count(lambda: None) == {"mmap": 0, "munmap": 0, "madvise": 0, "brk": 0}


def test_a_system_without_room_for_a_process_is_not_traced(monkeypatch):
    def full(*_, **__):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(memory_system_calls.shutil, "which", lambda _: "/usr/bin/strace")
    monkeypatch.setattr(memory_system_calls.subprocess, "Popen", full)
    assert memory_system_calls.count(lambda: None) is None


@pytest.mark.parametrize("program", [None, "exit 1", "exec sleep 600", "trap '' TERM; while :; do sleep 0.1; done"])
def test_without_a_strace_that_traces_the_work_is_done_and_nothing_is_counted(tmp_path, monkeypatch, program):
    if program:
        (tmp_path / "strace").write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{program}\n")
        (tmp_path / "strace").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(memory_system_calls, "_ATTACH_S", 0.2)
    monkeypatch.setattr(memory_system_calls, "_REPORT_S", 0.5)
    done = []
    assert memory_system_calls.count(lambda: done.append(1)) is None
    assert done == [1]


def test_work_that_fails_under_strace_fails_as_it_would_alone():
    with pytest.raises(ZeroDivisionError):
        memory_system_calls.count(lambda: 1 / 0)
    assert memory_system_calls.fields("/proc/self/status")["TracerPid"] == "0"


def test_strace_s_table_is_read_by_name():
    report = """% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 90.00    0.000100           2        50         3 mmap
 10.00    0.000010           1         8           brk
------ ----------- ----------- --------- --------- ----------------
100.00    0.000110                    58         3 total
"""
    assert memory_system_calls._calls(report) == {"mmap": 50, "munmap": 0, "madvise": 0, "brk": 8}


def test_an_event_that_this_kernel_counts_without_hardware_is_read_and_grows():
    """Page faults are counted by software, through the same calls."""
    try:
        file = cache_misses.open_counter(1, 2)
    except (OSError, KeyError) as error:
        pytest.skip(f"perf events are not allowed here: {error}")
    readings = []
    with mmap.mmap(-1, 1000 * PAGE) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        for _ in range(2):
            readings.append({"dtlb_misses": cache_misses._reading(file)})
            memory[::PAGE] = bytes(1000)
    os.close(file)
    assert 1000 <= cache_misses.between(*readings)["dtlb_misses"] <= 1100


def test_an_event_that_shared_its_counter_is_extrapolated():
    before, after = {"dtlb_misses": (100, 1000, 1000)}, {"dtlb_misses": (400, 5000, 2000)}
    assert cache_misses.between(before, after) == {**NEVER, "dtlb_misses": 1200}


@pytest.mark.parametrize("after", [(50, 2000, 2000), (400, 2000, 1000), (400, 1000, 2000)])
def test_a_counter_that_went_back_or_never_ran_is_unknown(after):
    assert cache_misses.between({"dtlb_misses": (100, 1000, 1000)}, {"dtlb_misses": after}) == NEVER


def test_a_counter_that_the_kernel_gave_up_is_unknown(monkeypatch):
    """Such a file is at its end."""
    end, other = os.pipe()
    os.close(other)
    monkeypatch.setattr(cache_misses, "_files", lambda *_: {"dtlb_misses": end})
    assert cache_misses.read() == {}
    os.close(end)


def test_without_perf_events_the_account_says_unknown_and_never_0(monkeypatch):
    def refused(*_):
        raise PermissionError(1, "perf_event_open")

    monkeypatch.setattr(cache_misses, "open_counter", refused)
    cache_misses._files.cache_clear()
    try:
        found = step_thread_account.since(step_thread_account.read())
    finally:
        cache_misses._files.cache_clear()
    assert {name: found[name] for name in NEVER} == NEVER


def event(name, start, end, device="CUDA", index=0, **more):
    more = more or {"is_user_annotation": False}
    span = SimpleNamespace(start=start, end=end)
    return SimpleNamespace(
        name=name, time_range=span, device_type=SimpleNamespace(name=device), device_index=index, **more
    )


EVENTS = [
    event("aten::mm", 0, 9, "CPU"),
    event("Optimizer.step#SGD.step", 0, 90, "CPU", is_user_annotation=True),
    event("triton_poi_fused_0", 0, 9, "CPU"),
    event("triton_poi_fused_0", 10, 30),
    event("another_stream", 20, 40),
    event("Memcpy HtoD (Pageable -> Device)", 35, 50),
    event("ncclDevKernel_AllReduce_Sum_f32", 38, 70),
    event("Memset (Device)", 80, 82),
    event("Optimizer.step#SGD.step", 5, 100, is_user_annotation=True),
    event("on_another_gpu", 0, 500, index=1),
]


def test_a_gpu_s_time_is_split_into_parts_that_add_up():
    found = gpu_time_parts.parts(EVENTS, 0)
    assert found == {"kernel_ns": 30_000, "copy_ns": 12_000, "collective_ns": 20_000, "gap_ns": 10_000}
    assert sum(found.values()) == 1000 * (82 - 10)
    assert gpu_time_parts.parts(EVENTS, 1) == {"kernel_ns": 500_000, "copy_ns": 0, "collective_ns": 0, "gap_ns": 0}


@pytest.mark.parametrize("events", [[], [event("aten::mm", 0, 9, "CPU")], [event("sgemm", 0, 9, of_old_torch=1)]])
def test_where_the_profiler_saw_no_gpu_nothing_is_said(events):
    assert gpu_time_parts.parts(events, 0) is None


def own_account(*argv):
    argv = [sys.executable, "-m", "bench", "command", "--", *argv]
    done = subprocess.run(argv, cwd=Path(__file__).parents[2], check=True, capture_output=True, timeout=60)
    return json.loads(done.stdout)["step_thread"]


BURN = "import os, sys, time\nwhile time.thread_time() < 0.3: pass\n"


def test_a_program_that_replaces_itself_is_accounted_for_from_its_start():
    """The kernel's counters of a thread go on over an exec, as the wall time does."""
    found = own_account(sys.executable, "-c", BURN + "os.execv(sys.executable, [sys.executable, '-c', ''])")
    assert found["cpu_ns"] > 0.3e9
    assert found["cpu_ns"] + (found["waited_ns"] or 0) <= 1.02 * found["wall_ns"]


def test_a_program_that_becomes_one_without_python_has_no_account():
    assert own_account(sys.executable, "-c", BURN + "os.execv('/bin/sleep', ['sleep', '0.1'])") is None


def test_threads_that_come_and_go_spoil_no_account():
    program = """
import threading, json
from bench import step_thread_account
over = threading.Event()
def breed():
    while not over.is_set():
        thread = threading.Thread(target=sum, args=(range(3000),))
        thread.start()
        thread.join()
breeders = [threading.Thread(target=breed) for _ in range(2)]
[one.start() for one in breeders]
found = [step_thread_account.since(step_thread_account.read()) for _ in range(150)]
over.set()
assert all(min(one["others"].values()) >= 0 and one["cpu_ns"] >= 0 for one in found), found
"""
    subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[2], check=True, timeout=60)


def test_a_new_thread_with_an_old_one_s_number_is_new():
    before = step_thread_account.Reading({"wall_ns": 0}, 0, {7: (5000, 400), 8: (10, 0)})
    after = step_thread_account.Reading({"wall_ns": 10_000}, 0, {7: (300, 20), 8: (30, 5)})
    others = step_thread_account.between(before, after)["others"]
    assert (others["cpu_ns"], others["waited_ns"], others["busy"]) == (320, 25, 1)
