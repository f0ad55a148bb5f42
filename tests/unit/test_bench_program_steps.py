"""A user's own program that prints its steps: they are timed, uninterrupted or interleaved."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.errors import RunError
from bench.step_times_from_output import Marks
from envmatrix.block.turn_gate import open_gate
from tests.unit.test_bench_program_turns import below, said, started, states

ROOT = Path(__file__).parents[2]
#: Takes steps of 20 ms of CPU time, and prints without flushing.
STEPS = """
import time
for number in range(12):
    end = time.process_time() + 0.02
    while time.process_time() < end: pass
    print("step", number)
"""
#: Buffers its output until its end.
KEPT = "import sys; out = open(1, 'w', 65536, closefd=False); [print('step', n, file=out) for n in range(20)]"


def measured(folder, *options, program=STEPS):
    argv = [sys.executable, f"{ROOT}/bench/__main__.py", "command", f"--record={folder}/record.json", *options,
            "--", sys.executable, "-c", program]  # fmt: skip
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=60)


def record_of(folder):
    return json.loads((folder / "record.json").read_text())


def test_steps_after_the_warm_up_are_timed_from_one_line_to_the_next(tmp_path):
    done = measured(tmp_path, "--metric-steps=^step", "--metric-warmup=3", "--metric-name=speed")
    assert done.returncode == 0, done.stderr
    record = record_of(tmp_path)
    times = record["timing"]["steps_ns"]
    assert len(times) == 9
    assert min(times) > 0
    assert sum(times) < record["timing"]["wall_ns"]
    assert record["timing"]["turns"] is None
    assert sum(times) < record["timing"]["later"]["watched_ns"] < record["timing"]["wall_ns"]
    assert "late_step_ns" not in record["timing"]["later"], "too short for a steady state"
    assert record["metric"] == {"name": "speed", "value": pytest.approx(9e9 / sum(times)), "better": "higher"}
    assert record["workload"]["options"]["metric"]["warmup"] == 3


@pytest.mark.parametrize(("warmup", "apart", "counted"), [(1, [2, 2, 2], [3, 3, 0]), (5, [4, 2], [3, 2])])
def test_in_turns_it_starts_beside_others_and_stops_after_its_first_step(tmp_path, warmup, apart, counted):
    options = ("--metric-steps=^step", f"--metric-warmup={warmup}")
    with open_gate(tmp_path) as gate, started(tmp_path, *options, program=STEPS) as process:
        while said(gate):  # the first time, no turn had been given yet
            assert states(below(process.pid)) == {"T"}
            gate.go(2, 3)
        gate.end()
        assert process.wait(60) == 0, process.stderr.read()
    record = record_of(tmp_path)
    turns, times = record["timing"]["turns"], record["timing"]["steps_ns"]
    assert [turn["steps"] for turn in turns][: len(counted)] == counted
    assert [len(turn["apart_ns"]) for turn in turns][: len(counted) - 1] == apart[:-1]
    assert record["metric"]["value"] == pytest.approx(1e9 * len(times) / sum(times))
    assert sum(times) < record["timing"]["wall_ns"]
    assert record["metrics"]["turn_start"] > 0


@pytest.mark.parametrize(
    ("options", "program", "status", "said"),
    [
        (["--metric-steps=^step"], KEPT, 1, "19 of 20 lines that end a step came together with another one"),
        (["--metric-steps=^epoch"], STEPS, 1, "'^epoch' matched 0 lines of its output"),
        (["--metric-steps=^step", "--metric-warmup=12"], STEPS, 1, "none counts before 13 of them"),
        (["--metric-steps=^step", "--metric-warmup=0"], STEPS, 2, "--metric-warmup 0: 1 or more"),
        (["--metric-steps=("], STEPS, 2, "is no regular expression"),
    ],
)
def test_what_has_no_times_of_steps_says_why(tmp_path, options, program, status, said):
    done = measured(tmp_path, *options, program=program)
    assert (done.returncode, said in done.stderr) == (status, True), done.stderr


#: Takes COUNT steps of SLEEP seconds, flushes each line, and writes its rate without waits for its reader.
FLUSHES = """
import sys, time
count, sleep = int(sys.argv[1]), float(sys.argv[2])
steps = []
for number in range(count):
    if number == count // 10:  # now its warm-up is over
        open("started", "w").close()
    began = time.perf_counter()
    time.sleep(sleep)
    slept = time.perf_counter()
    print("step", number, flush=True)
    ended = time.perf_counter()
    steps.append((slept if ended - slept > 0.25 else ended) - began)
open("rate", "w").write(str((count - 1) / sum(steps[1:])))
"""
BUSY = "while True: pass"


def read_late(folder, stops, program, *arguments):
    """Run a program next to busy loops; stop the reader of its output for each number of seconds in ``stops``."""
    argv = [sys.executable, f"{ROOT}/bench/__main__.py", "command", f"--record={folder}/record.json",
            "--metric-steps=^step", "--metric-warmup=1", "--", *program, *arguments]  # fmt: skip
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(os.cpu_count() or 1)]
    try:
        with subprocess.Popen(argv, cwd=folder, stderr=subprocess.PIPE, text=True) as process:
            while not (folder / "started").exists() and process.poll() is None:
                time.sleep(0.01)
            for seconds in stops:
                process.send_signal(signal.SIGSTOP)
                time.sleep(seconds)
                process.send_signal(signal.SIGCONT)
                time.sleep(0.1)
            said = process.communicate(timeout=60)[1]
            return process.returncode, said
    finally:
        for one in busy:
            one.kill()
            one.wait()


def test_who_reads_late_does_not_blame_a_program_that_hands_each_line_over(tmp_path):
    status, said = read_late(tmp_path, [0.2, 0.3, 0.2], [sys.executable, "-c", FLUSHES], "250", "0.004")
    assert status == 0, said
    record = record_of(tmp_path)
    timing = record["timing"]
    assert timing["averaged_steps"] > 50
    assert len(timing["steps_ns"]) + timing["dropped_steps"] == 249
    assert record["metric"]["value"] == pytest.approx(float((tmp_path / "rate").read_text()), rel=0.1)


def test_steps_of_a_program_that_had_to_wait_for_its_reader_do_not_count(tmp_path):
    stopped_s = 1.5
    status, said = read_late(tmp_path, [stopped_s], [sys.executable, "-c", FLUSHES], "1200", "0.0005")
    assert status == 0, said
    record = record_of(tmp_path)
    timing = record["timing"]
    assert timing["dropped_steps"] > 10
    # The pipe buffers some 250 lines before the program must wait: most of the stop is a wait, which must not count.
    assert sum(timing["steps_ns"]) < timing["wall_ns"] - 0.5e9 * stopped_s
    assert record["metric"]["value"] == pytest.approx(float((tmp_path / "rate").read_text()), rel=0.25)


def test_a_program_that_keeps_its_lines_back_fails_however_late_it_is_read(tmp_path):
    shell = (
        'touch started; { i=0; while [ $i -lt 100 ]; do i=$((i+1)); sleep 0.005; echo "step $i"; done; } | grep step'
    )
    status, said = read_late(tmp_path, [0.2], ["sh", "-c", shell])
    assert (status, "lines that end a step came together with another one" in said) == (1, True), said


def test_steps_that_came_with_the_start_are_not_averaged_with_it():
    marks = Marks("^step", 1)
    marks.begin(0, 1)
    marks.look(["step 1", "step 2", "step 3"], 9_000, False)
    marks.look(["step 4"], 9_100, False)
    marks.look(["step 5", "step 6"], 9_301, False)
    assert marks.counted_steps_ns() == [100, 100, 101]
    assert (marks.averaged, marks.dropped) == (2, 2)


def test_steps_in_which_the_program_waited_for_its_reader_do_not_count():
    marks = Marks("^step", 1)
    marks.begin(0, 1)
    for number, (at_ns, full) in enumerate([(5_000, False), (5_100, False), (9_000, True), (9_001, False)]):
        marks.look([f"step {number}"], at_ns, full)
    marks.look(["step 4"], 9_101, False)
    assert marks.counted_steps_ns() == [100, 100]
    assert (marks.averaged, marks.dropped) == (0, 2)


def test_what_was_all_read_too_late_says_so():
    marks = Marks("^step", 1)
    marks.begin(0, 1)
    marks.look(["step 1", "step 2", "step 3"], 9_000, False)
    with pytest.raises(RunError, match="read too late to time one of 2 steps"):
        marks.counted_steps_ns()


def test_what_is_timed_in_another_way_has_the_digest_that_it_had(tmp_path):
    done = measured(tmp_path, "--metric-wall", program="")
    assert done.returncode == 0, done.stderr
    assert set(record_of(tmp_path)["workload"]["options"]["metric"]) == {
        "name", "kind", "source", "key", "better", "unit", "tolerance",
    }  # fmt: skip
