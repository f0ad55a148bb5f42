"""A program of one's own that tells of its steps: they are timed, one after the other or in turns."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from envmatrix.trials.gate import opened
from tests.unit.test_bench_program_turns import below, said, started, states

ROOT = Path(__file__).parents[2]
#: Takes steps of 20 ms of CPU time, and prints without asking that it be handed over at once.
STEPS = """
import time
for number in range(12):
    end = time.process_time() + 0.02
    while time.process_time() < end: pass
    print("step", number)
"""
#: Keeps its output back until its end.
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
    assert record["metric"] == {"name": "speed", "value": pytest.approx(9e9 / sum(times)), "better": "higher"}
    assert record["workload"]["options"]["metric"]["warmup"] == 3


@pytest.mark.parametrize(("warmup", "apart", "counted"), [(1, [2, 2, 2], [3, 3, 0]), (5, [4, 2], [3, 2])])
def test_in_turns_it_starts_beside_others_and_stops_after_its_first_step(tmp_path, warmup, apart, counted):
    options = ("--metric-steps=^step", f"--metric-warmup={warmup}")
    with opened(tmp_path) as gate, started(tmp_path, *options, program=STEPS) as process:
        while said(gate):  # the first time no turn was given yet
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


def test_what_is_timed_in_another_way_has_the_digest_that_it_had(tmp_path):
    done = measured(tmp_path, "--metric-wall", program="")
    assert done.returncode == 0, done.stderr
    assert set(record_of(tmp_path)["workload"]["options"]["metric"]) == {
        "name", "kind", "source", "key", "better", "unit", "tolerance",
    }  # fmt: skip
