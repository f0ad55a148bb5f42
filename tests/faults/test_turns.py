"""Interleaved trials in whole runs, without torch: none is left stopped, and one that fails does not stop others.

This is the real benchmark with another workload: a process that spins, has a child that spins, and waits at its gate.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults.conftest import ENGINES, Toy, until

pytestmark = [pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[2]
MATRIX = """
version: 1
factors:
  image: {plain: {requirements: [tinypkg], env: {TURNS: FAULTS-MARK}}}
  how: {none: {env: {HOW: null}}, dies: {env: {HOW: dies}}, waits: {env: {HOW: waits}}, eats: {env: {HOW: eats}},
        lone: {env: {HOW: lone}, turns: false}}
environments: {baseline: {}, lone: {how: lone}, dies: {how: dies}, waits: {how: waits}, eats: {how: eats}}
workloads:
  toy: {steps: 4, data: fashion-mnist-stand-in}
  own: {command: [python, own.py]}
  steps: {command: [python, steps.py], metric: {steps: '^step', warmup: 2}}
designs:
  good: {environments: [], workloads: toy, schedule: turns, turn: 2, min_blocks: 2, max_blocks: 2, budget: 10m}
  mixed: {environments: [lone], workloads: toy, schedule: turns, turn: 2, max_blocks: 1, budget: 10m}
  dying: {environments: [dies], workloads: toy, schedule: turns, turn: 2, max_blocks: 1, budget: 10m}
  eating: {environments: [eats], workloads: toy, schedule: turns, turn: 2, max_blocks: 1, budget: 10m, memory: 256MiB}
  waiting: {environments: [waits], workloads: toy, schedule: turns, turn: 2, max_blocks: 1, budget: 10m}
  owning: {environments: [dies], workloads: own, schedule: turns, turn: 1, max_blocks: 1, budget: 10m}
  stepping: {environments: [dies], workloads: steps, schedule: turns, turn: 2, max_blocks: 1, budget: 10m}
  owning-waiting: {environments: [waits], workloads: own, schedule: turns, turn: 1, max_blocks: 1, budget: 10m}
"""
#: A user's program that spins for half a second together with a child that spins.
OWN = """
import os, signal, sys, time
child = os.fork()
if child == 0:
    while True: pass
how = os.environ.get("HOW")
if how == "waits":
    open("in-turn-" + os.environ["TURNS"], "w").close()
    signal.pause()
while time.process_time() < 0.5: pass
os.kill(child, signal.SIGKILL)
sys.exit(9 if how == "dies" else 0)
"""
#: A user's program that prints its steps.
STEPS = """
import os, sys, time
for number in range(10):
    end = time.process_time() + 0.02
    while time.process_time() < end: pass
    if number == 5 and os.environ.get("HOW") == "dies": sys.exit(9)
    print("step", number)
"""
#: Replaces bench/trial_process.py, whose import of torch is slow.
WORKLOAD = """
import os, signal, threading, time
from bench import code_digest, record, recorded_variables
from bench.gate import Gate

def run(options, data_dir, member=None, node=None, gate=None, look_s=None, keep=None):
    if os.fork() == 0:
        while True: pass
    how, at, left, turns = os.environ.get("HOW"), gate and Gate(gate), options["steps"], []
    while left and at:
        turn = at.turn(left)
        if turns and how == "dies":
            os._exit(9)  # the first process of a container gets no signal of its own
        if turns and how == "eats":
            eaten = bytearray(2**30)
        if turns and how == "waits":
            open("in-turn-" + os.environ["TURNS"], "w").close()
            signal.pause()
        turns.append({"apart_ns": [1] * turn.apart, "steps": turn.counted})
        left -= turn.counted
    at and at.wait_for_extra_seconds()
    steps = options["steps"]
    return dict(
        record.frame(), workload={"digest": code_digest.options_digest(options), "options": options}, skipped=None,
        data={"name": "toy", "stand_in": False, "digest": ""}, timing={"turns": turns if at else None},
        metrics={"samples_per_s": 1.0, "training_s": 1.0}, result={"accuracy": None, "steps": steps},
        evidence={"variables": recorded_variables.recorded_texts(os.environ)},
    )
"""
START = """
import runpy, sys
from pathlib import Path
from envmatrix.system import resource_paths
resource_paths._PACKAGE = Path(sys.argv.pop(1)) / "envmatrix"
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


class Turning(Toy):
    """A project whose workload only waits for its turns."""

    def __init__(self, folder: Path, cache: Path, variables: dict[str, str]) -> None:
        super().__init__(folder, cache, variables)
        (folder / "matrix.yaml").write_text(MATRIX.replace("FAULTS-MARK", self.mark))
        shutil.copytree(ROOT / "bench", folder / "bench", ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "bench" / "trial_process.py").write_text(WORKLOAD)
        (folder / "own.py").write_text(OWN)
        (folder / "steps.py").write_text(STEPS)

    def start(self, *arguments: str, module: str = "envmatrix") -> subprocess.Popen[str]:
        argv = [sys.executable, "-c", START, str(self.folder), module, *arguments]
        variables = {**self.variables, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(
            argv, cwd=self.folder, env=variables, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.started.append(process)
        return process

    def left(self) -> list[int]:
        """Return trial processes that still run or are stopped; all have the level's variable."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "environ").read_bytes().split(b"\0")
                dead = (folder / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
            except OSError:
                continue
            if f"TURNS={self.mark}".encode() in words and not dead:
                found.append(int(folder.name))
        return found

    def in_turn(self) -> bool:
        """Return whether a process has its turn and waits in it forever."""
        return bool(list(self.cache.glob(f"work/*/*/*/**/in-turn-{self.mark}")))


@pytest.fixture
def turning(tmp_path: Path, cache: Path, variables: dict[str, str]):
    made = Turning(tmp_path / "toy", cache, variables)
    yield made
    made.end()


def three_of_which_one_dies(turning: Turning, design: str, engine: str) -> dict[str, Any]:
    """Run a design whose programs are alive together; return its trials by environment."""
    done = turning.run("bench", design, "--engine", engine, "--quiet")
    assert done.returncode == 3, done.stderr
    found = {trial["environment"]: trial for trial in turning.trials()}
    assert {name: (trial["outcome"], trial["together"]) for name, trial in found.items()} == {
        "baseline": ("ok", 3), "control": ("ok", 3), "dies": ("failed", 3),
    }, [trial["reason"] for trial in found.values()]  # fmt: skip
    assert "exit status 9" in found["dies"]["reason"]
    return found


def test_what_a_minute_of_turns_is_worth_is_measured_goes_on_and_is_written(turning: Turning) -> None:
    to = turning.folder / "precision"
    asked = ("--precision", "--design", "good", "--minutes", "0.001", "--to", str(to))
    for blocks in (1, 2):
        process = turning.start(*asked, module="validation.selfbench")
        _, err = process.communicate(timeout=200)
        assert process.returncode == 0, err
        [part] = json.loads((to / "precision.json").read_text())["parts"]
        assert part["blocks"] == {"turns": blocks, "sequential": blocks}
        assert (part["in_turns"], part["trials"], part["broken"]) == (2 * blocks, 2 * blocks, {})
        assert part["arms"][0]["effect"]["turns"] == (None if blocks < 2 else {"value": 1.0, "low": 1.0, "high": 1.0})
    assert turning.left() == []


@pytest.mark.parametrize("engine", ENGINES)
def test_trials_take_turns_and_one_that_dies_in_its_own_leaves_the_others(turning: Turning, engine: str) -> None:
    done = turning.run("bench", "dying", "--engine", engine, "--quiet")
    assert done.returncode == 3, done.stderr
    found = {trial["environment"]: trial for trial in turning.trials()}
    assert {name: trial["outcome"] for name, trial in found.items()} == {
        "baseline": "ok", "control": "ok", "dies": "failed",
    }, [trial["reason"] for trial in found.values()]  # fmt: skip
    assert "exit status 9" in found["dies"]["reason"]
    assert [trial["together"] for trial in found.values()] == [3] * 3
    assert found["control"]["record"]["timing"]["turns"] == [{"apart_ns": [1, 1], "steps": 2}] * 2
    assert turning.left() == []


@pytest.mark.parametrize("engine", ENGINES)
def test_programs_of_ones_own_take_turns_and_their_clocks_stand_still_between_them(
    turning: Turning, engine: str
) -> None:
    found = three_of_which_one_dies(turning, "owning", engine)
    timing = found["control"]["record"]["timing"]
    assert timing["paused_ns"] > 0
    assert timing["wall_ns"] + timing["paused_ns"] < 1e9 * found["control"]["wall_s"]
    assert turning.left() == []


def test_programs_that_tell_of_their_steps_take_turns_of_steps_and_have_their_start_beside_others(
    turning: Turning,
) -> None:
    found = three_of_which_one_dies(turning, "stepping", "local")
    timing = found["control"]["record"]["timing"]
    assert [(len(turn["apart_ns"]), turn["steps"]) for turn in timing["turns"]][:2] == [(2, 2), (2, 2)]
    assert found["control"]["record"]["metric"]["value"] == 1e9 * len(timing["steps_ns"]) / sum(timing["steps_ns"])
    assert turning.left() == []


def test_what_takes_no_turns_starts_beside_a_copy_of_its_reference_and_resume_runs_both_where_one_lacks(
    turning: Turning,
) -> None:
    done = turning.run("bench", "mixed", "--engine", "local", "--quiet")
    assert done.returncode == 0, done.stderr
    assert "lone and baseline alone, their baseline, run uninterrupted, all at the same time" in done.stderr
    found = {trial["environment"]: trial for trial in turning.trials()}
    assert {name: (trial["outcome"], trial["together"]) for name, trial in found.items()} == {
        "baseline": ("ok", 2), "control": ("ok", 2), "lone": ("ok", 2), "baseline alone": ("ok", 2),
    }, [trial["reason"] for trial in found.values()]  # fmt: skip
    took = {name: trial["record"]["timing"]["turns"] for name, trial in found.items()}
    assert [len(took[name]) for name in ("baseline", "lone", "baseline alone")] == [2, 1, 1]
    assert (took["lone"][0]["apart_ns"], took["lone"][0]["steps"]) == ([], 4)
    assert turning.newest
    file = turning.newest / "trials.jsonl"
    lines = {json.loads(line)["environment"]: line for line in file.read_text().splitlines(keepends=True)}
    file.write_text("".join(line for name, line in lines.items() if name != "baseline alone"))
    done = turning.run("resume", "--quiet")
    assert done.returncode == 0, done.stderr
    assert "set aside 1 trial, interleaved with trials" in done.stderr
    again = {json.loads(line)["environment"]: line for line in file.read_text().splitlines(keepends=True)}
    assert {name for name in lines if again[name] != lines[name]} == {"lone", "baseline alone"}
    assert turning.left() == []


@pytest.mark.docker
def test_one_that_runs_out_of_memory_while_all_live_says_so_and_leaves_the_others(turning: Turning) -> None:
    done = turning.run("bench", "eating", "--engine", "docker", "--quiet")
    assert done.returncode == 3, done.stderr
    found = {trial["environment"]: trial for trial in turning.trials()}
    assert {name: trial["outcome"] for name, trial in found.items()} == {
        "baseline": "ok", "control": "ok", "eats": "failed",
    }, [trial["reason"] for trial in found.values()]  # fmt: skip
    assert "ran out of memory" in found["eats"]["reason"]
    assert [trial["together"] for trial in found.values()] == [3] * 3
    assert turning.left() == []


@pytest.mark.parametrize("engine", [*ENGINES, "local with a program of one's own"])
def test_with_a_tool_that_is_killed_nothing_is_left_stopped_or_running(turning: Turning, engine: str) -> None:
    engine, _, own = engine.partition(" with ")
    design = "owning-waiting" if own else "waiting"
    process = turning.start("bench", design, "--engine", engine, "--quiet")
    until(lambda: turning.in_turn() or turning.ended(), 200)
    assert len(turning.left()) >= (5 if own else 6)  # a program of one's own has a child from its first turn on
    process.kill()
    process.communicate(timeout=60)
    until(lambda: not turning.left(), 60)
    assert turning.trials() == []


def test_an_interrupt_ends_them_all_and_resume_runs_the_block_as_a_whole(turning: Turning) -> None:
    process = turning.start("bench", "waiting", "--engine", "local", "--quiet")
    until(lambda: turning.in_turn() or turning.ended(), 200)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert turning.left() == []
    assert turning.trials() == []


def test_trials_that_took_turns_with_others_that_have_no_line_run_again(turning: Turning) -> None:
    assert turning.run("bench", "good", "--engine", "local", "--quiet").returncode == 0
    assert turning.newest
    file = turning.newest / "trials.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    assert len(lines) == 4
    file.write_text("".join(lines[:3]))
    done = turning.run("resume", "--quiet")
    assert done.returncode == 0, done.stderr
    assert "set aside 1 trial, interleaved" in done.stderr
    assert [trial["trial"] for trial in turning.trials()] == turning.planned()
    assert file.read_text().splitlines(keepends=True)[:2] == lines[:2]
