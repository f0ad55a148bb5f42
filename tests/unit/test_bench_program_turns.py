"""A user's own program, interleaved: it pauses with all its processes, and so does its clock."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.evidence.proc_files import children
from envmatrix.block.turn_gate import FOLDER, open_gate

ROOT = Path(__file__).parents[2]
#: Starts a child that spins, and spins until it finds a file.
SPINS = """
import os, signal
open("started", "w").close()
child = os.fork()
if child == 0:
    while True: pass
while not os.path.exists("enough"): pass
os.kill(child, signal.SIGKILL)
"""
#: Is just starting a program: its child (of vfork) waits at a fifo, and the process waits in the kernel for it.
STARTS = """
import os
opens = (os.POSIX_SPAWN_OPEN, 0, "fifo", os.O_RDONLY, 0)
os.waitpid(os.posix_spawn("/bin/true", ["true"], {}, file_actions=[opens]), 0)
"""


def below(pid):
    return {found for child in children(pid) for found in (child, *below(child))}


def states(pids):
    return {Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in pids}


@contextlib.contextmanager
def started(folder, *options, program=SPINS):
    argv = [sys.executable, f"{ROOT}/bench/__main__.py", "command", f"--record={folder}/record.json",
            f"--gate={folder}/{FOLDER}", *options, "--", sys.executable, "-c", program]  # fmt: skip
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(argv, cwd=folder, env=env, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            for pid in (*below(process.pid), process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def said(gate):
    while (left := gate.remaining_steps()) is None:
        assert select.select([gate], [], [], 60)[0]
    return left


def test_it_starts_in_its_first_turn_and_stands_still_with_its_children_between_turns(tmp_path):
    with open_gate(tmp_path) as gate, started(tmp_path) as process:
        assert said(gate) > 0
        assert not (tmp_path / "started").exists()
        begun = time.monotonic_ns()
        gate.go(0, 1)
        while not (tmp_path / "started").exists():
            assert said(gate) > 0
            gate.go(0, 1)
        for _ in range(2):  # the pauses between several turns are all left out, each once
            assert said(gate) > 0
            gate.go(0, 1)
        assert said(gate) > 0
        stands = time.monotonic_ns()
        programs = below(process.pid)
        assert len(programs) == 2
        assert states(programs) == {"T"}
        (tmp_path / "enough").touch()
        paused = time.monotonic_ns() - stands
        gate.go(0, 600)
        assert said(gate) == 0
        whole = time.monotonic_ns() - begun
        assert not below(process.pid), "what it left behind would run beside others"
        gate.end()
        assert process.wait(60) == 0, process.stderr.read()
    record = json.loads((tmp_path / "record.json").read_text())
    timing = record["timing"]
    assert timing["paused_ns"] >= paused
    assert 0 < timing["wall_ns"] <= whole - timing["paused_ns"]
    assert record["metric"]["value"] == pytest.approx(timing["wall_ns"] / 1e9)
    assert record["evidence"]["system"]["stops"] is None, "it was stopped on purpose"
    assert record["metrics"]["pressure_s"] is None, "that of the machine is others' too"


@pytest.fixture
def neighbour():
    """Yield a program that competes for the one CPU which this process and its children may use meanwhile."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    yield busy.pid
    busy.kill()
    busy.wait()
    os.sched_setaffinity(0, before)


def test_what_others_took_of_its_turns_is_counted(neighbour, tmp_path):
    with open_gate(tmp_path) as gate, started(tmp_path) as process:
        for turn in range(6):
            assert said(gate) > 0
            gate.go(0, 1 if turn < 2 else 3)
        assert said(gate) > 0, "its last turn has ended"
        (tmp_path / "enough").touch()
        gate.go(0, 600)
        assert said(gate) == 0
        gate.end()
        assert process.wait(60) == 0, process.stderr.read()
    record = json.loads((tmp_path / "record.json").read_text())
    wall_s, metrics = record["timing"]["wall_ns"] / 1e9, record["metrics"]
    assert metrics["others_s"] > 0.2 * wall_s, "the neighbour had the CPU for a third of the time"
    assert metrics["run_delay_s"] > 0.5 * wall_s, "two that spin, and one of three runs at a time"


def test_one_that_is_in_the_middle_of_starting_another_program_stands_still_too(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    with open_gate(tmp_path) as gate, started(tmp_path, program=STARTS) as process:
        said(gate)
        while len(below(process.pid)) < 2:
            gate.go(0, 1)
            assert said(gate) > 0, process.stderr.read()
        assert sorted(states(below(process.pid))) == ["D", "T"]
        gate.go(0, 600)
        (tmp_path / "fifo").write_bytes(b"")
        assert said(gate) == 0
        gate.end()
        assert process.wait(60) == 0, process.stderr.read()


def test_one_that_ends_in_its_first_turn_was_never_paused(tmp_path):
    with open_gate(tmp_path) as gate, started(tmp_path, program="pass") as process:
        said(gate)
        gate.go(0, 600)
        assert said(gate) == 0
        gate.end()
        assert process.wait(60) == 0, process.stderr.read()
    assert json.loads((tmp_path / "record.json").read_text())["timing"]["paused_ns"] == 0


@pytest.mark.parametrize("option", ["--metric-regex=speed: (.*)", '--also={"name": "speed", "regex": "speed: (.*)"}'])
def test_one_that_tells_its_own_times_is_refused(tmp_path, option):
    with open_gate(tmp_path), started(tmp_path, option) as process:
        assert process.wait(60) == 2
        assert "its clock would go on" in process.stderr.read()


def test_who_is_told_to_end_between_turns_ends_with_the_program_that_stands_still(tmp_path):
    with open_gate(tmp_path) as gate, started(tmp_path) as process:
        said(gate)
        while not (tmp_path / "started").exists():
            gate.go(0, 1)
            said(gate)
        programs = below(process.pid)
        process.terminate()
        assert process.wait(60) == 143
        assert not [pid for pid in programs if Path(f"/proc/{pid}").exists() and states([pid]) != {"Z"}]
