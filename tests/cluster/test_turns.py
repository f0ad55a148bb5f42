"""Interleaved trials in a block's job on a real Slurm; none of their processes may be left stopped."""

import json
import subprocess
import sys

import pytest

from tests.cluster.conftest import MATRIX
from tests.cluster.test_slurm import SLURM, done_once, needs_apptainer

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1200)]
TURNS = """
  turning: {environments: [one-thread, steady], workloads: tiny, schedule: turns, turn: 2, max_blocks: 1, budget: 60m}
  eating: {environments: eats, workloads: own, schedule: turns, turn: 1, max_blocks: 1, budget: 60m,
           slurm: {memory: 4GiB}}
  breaking: {environments: [dies, lone], workloads: own, schedule: turns, turn: 1, max_blocks: 1, budget: 60m}
"""
LEVELS = """
  how: {none: {env: {HOW: null}}, dies: {env: {HOW: dies}}, lone: {env: {HOW: lone}, turns: false},
        eats: {env: {HOW: eats}}}
environments:
  dies: {how: dies}
  eats: {how: eats}
  lone: {how: lone}
  steady: {how: lone}
"""
#: Spins for half a second together with a child that spins, once it may.
OWN = """
import os, signal, sys, time
child = os.fork()
if child == 0:
    while True: pass
open(HERE, "w").close()
while not os.path.exists(GO): time.sleep(0.02)
while time.process_time() < 0.5: pass
if os.environ.get("HOW") == "eats": held = bytearray(5 * 2**30)
os.kill(child, signal.SIGKILL)
sys.exit(9 if os.environ.get("HOW") == "dies" else 0)
"""


@pytest.fixture
def turning(project):
    text = project.folder.joinpath("matrix.yaml").read_text()
    assert MATRIX.count("environments:\n") == 1
    text = text.replace("environments:\n", LEVELS.lstrip("\n"), 1).rstrip("\n") + TURNS
    text = text.replace("workloads:\n", "workloads:\n  own: {command: [python, own.py], files: programs}\n", 1)
    project.folder.joinpath("matrix.yaml").write_text(text)
    project.here, project.go = project.folder / "here", project.folder / "go"
    program = OWN.replace("HERE", repr(str(project.here))).replace("GO", repr(str(project.go)))
    project.folder.joinpath("programs", "own.py").write_text(program)
    return project


@pytest.mark.parametrize("engine", ["local", "apptainer"])
def test_the_trials_of_a_block_take_turns_in_its_job_or_one_turn_each(turning, engine):
    if engine == "apptainer":
        needs_apptainer()
    done = turning.run("bench", "turning", *SLURM, "--engine", engine)
    assert done.returncode == 0, done.stderr
    trials = done_once(turning)
    in_one_go = [trial for trial in trials if trial["environment"] in ("steady", "baseline alone")]
    assert [(trial["outcome"], trial["together"]) for trial in in_one_go] == [("ok", 2)] * 2
    turns = [trial["record"]["timing"]["turns"] for trial in in_one_go]
    assert turns == [[{"apart_ns": [], "steps": 3}]] * 2, "beside each other, and not stopped between steps"
    in_turns = [trial for trial in trials if trial not in in_one_go]
    assert [(trial["outcome"], trial["together"]) for trial in in_turns] == [("ok", 3)] * 3
    for trial in in_turns:
        turns = trial["record"]["timing"]["turns"]
        assert [(len(turn["apart_ns"]), turn["steps"]) for turn in turns] == [(2, 2), (2, 1)]
        assert len(trial["record"]["timing"]["steps_ns"]) == 3
    summary = json.loads((turning.newest() / "summary.json").read_text())
    assert sum(arm.get("in_turns", 0) for arm in summary["arms"]) == 3
    assert turning.left() == []


def test_a_trial_that_dies_in_its_turn_dies_alone_and_what_takes_none_runs_beside_a_copy(turning):
    turning.go.touch()
    done = turning.run("bench", "breaking", *SLURM)
    assert done.returncode == 3, done.stderr
    assert "lone and baseline alone, their baseline, run one after another" in done.stderr
    found = {trial["environment"]: (trial["outcome"], trial["together"]) for trial in done_once(turning)}
    assert found == {
        "baseline": ("ok", 3), "control": ("ok", 3), "dies": ("failed", 3), "lone": ("ok", None),
        "baseline alone": ("ok", None),
    }  # fmt: skip
    clocks = {trial["environment"]: trial["record"]["timing"] for trial in turning.trials() if trial["record"]}
    assert clocks["control"]["paused_ns"] > 0, "its clock stood still while others had their turns"
    assert turning.left() == []


def test_one_that_runs_out_of_the_jobs_memory_while_all_live_says_so_and_leaves_the_others(turning, cluster):
    if not cluster.confines_memory:
        pytest.skip("this Slurm cannot confine memory: no memory controller of cgroup v1")
    turning.go.touch()
    done = turning.run("bench", "eating", *SLURM)
    assert done.returncode == 3, done.stderr
    found = {trial["environment"]: trial for trial in done_once(turning)}
    assert {name: (trial["outcome"], trial["together"]) for name, trial in found.items()} == {
        "baseline": ("ok", 3), "control": ("ok", 3), "eats": ("failed", 3),
    }  # fmt: skip
    assert "ran out of memory" in found["eats"]["reason"]
    assert turning.left() == []


def test_what_a_minute_of_turns_is_worth_is_measured_in_jobs_of_one_node(turning):
    turning.go.touch()
    to = turning.folder / "precision"
    asked = ["--precision", "--design", "breaking", "--environments", "baseline", "--minutes", "0.001", "--to", str(to)]
    argv = [sys.executable, "-m", "validation.selfbench", *asked, "--launcher", "slurm", "--node", "n2"]
    done = subprocess.run(argv, cwd=turning.folder, env=turning.variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [part] = json.loads((to / "precision.json").read_text())["parts"]
    assert (part["blocks"], part["in_turns"], part["broken"]) == ({"turns": 1, "sequential": 1}, 2, {})
    nodes = [file.read_text().strip() for file in to.glob("*/slurm/b0000/node")]
    assert nodes == ["n2", "n2"]


@pytest.mark.parametrize("what", ["scancel", "requeue"])
def test_a_job_that_ends_in_the_middle_leaves_nothing_stopped_and_its_group_runs_again_as_a_whole(
    turning, cluster, what
):
    process = turning.start("bench", "breaking", "--environments", "baseline", *SLURM)
    turning.wait_for(turning.here.exists)
    ((job, *_),) = cluster.jobs("running")
    assert turning.left()
    cluster.do(*(("scancel", job) if what == "scancel" else ("scontrol", "requeue", job)))
    turning.wait_for(lambda: not turning.left(), 30)
    turning.go.touch()
    if what == "requeue":
        turning.wait_for(lambda: cluster.jobs("pending"))
        cluster.do("scontrol", "update", f"jobid={job}", "starttime=now")  # otherwise Slurm delays it by two minutes
    _, said = process.communicate(timeout=600)
    if what == "scancel":
        assert process.returncode == 4, said  # there is no trial
        assert turning.trials() == []
        said = turning.run("resume").stderr
    assert [(trial["outcome"], trial["together"]) for trial in done_once(turning)] == [("ok", 2)] * 2, said
    assert len(turning.started()) == 4
    assert turning.left() == []


def test_a_group_whose_job_is_suspended_runs_again_as_a_whole_and_says_so(turning, cluster):
    process = turning.start("bench", "breaking", "--environments", "baseline", *SLURM)
    turning.wait_for(turning.here.exists)
    ((job, *_),) = cluster.jobs("running")
    cluster.do("scontrol", "suspend", job)
    turning.wait_for(lambda: cluster.jobs("suspended"))
    cluster.do("scontrol", "resume", job)
    turning.go.touch()
    _, said = process.communicate(timeout=600)
    assert process.returncode == 0, said
    assert "b0000-p000.turns ran 2 times: its job was suspended, or could not write" in said
    found = [(trial["outcome"], trial["together"], trial["repeated"]) for trial in done_once(turning)]
    assert found == [("ok", 2, 1)] * 2
    assert turning.left() == []
