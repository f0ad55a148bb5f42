"""One suite of the block runner for every launcher: what breaks on a node, whichever way the block came there."""

import json
import shutil
import subprocess
import sys

import pytest

from tests.cluster.conftest import Project
from tests.cluster.slurm_daemons import Nowhere
from tests.cluster.test_gridengine import GRID
from tests.cluster.test_slurm import SLURM, done_once
from tests.cluster.test_ssh import SSH
from tests.own_launcher import lay_out_detached

pytestmark = [pytest.mark.timeout(600)]
#: The daemons of each launcher (a fixture), and its words on the command line.
LAUNCHERS = {
    "here": ("", ()), "detached": ("", ("--launcher", "detached")), "ssh": ("hosts", SSH), "slurm": ("cluster", SLURM),
    "gridengine": ("grid", GRID),
}  # fmt: skip
ELSEWHERE = [name for name in LAUNCHERS if name != "here"]
#: Launchers whose jobs go on if envmatrix is killed.
GO_ON = ("detached", "slurm", "gridengine")
BLOCK = ("--max-blocks", "1")
#: One trial of each kind; the one that pauses does so once, and a child of it wakes it.
BREAKS = """
import os, resource, signal, subprocess, time
how, mark = os.environ.get("HOW"), MARK
if how == "dies": os.kill(os.getpid(), signal.SIGKILL)
if how == "hangs": subprocess.Popen(["sleep", "3600"]); time.sleep(3600)
if how == "eats":
    resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
    bytearray(2**31)
if how == "pauses" and not os.path.exists(mark):
    open(mark, "w").close()
    subprocess.Popen(["sh", "-c", f"sleep 1; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)
"""
KINDS = ("dies", "hangs", "eats", "pauses")
LEVELS = "  how: {none: {env: {HOW: null}}, " + ", ".join(f"{kind}: {{env: {{HOW: {kind}}}}}" for kind in KINDS) + "}\n"
ENVIRONMENTS = "".join(f"  {kind}: {{how: {kind}}}\n" for kind in KINDS)
BREAKING = (
    f"\n  breaking: {{environments: [{', '.join(KINDS)}], workloads: short, schedule: sequential, max_blocks: 1, "
    "budget: 60m, trial_limit: 6s}\n"
)
#: The command is on a machine whose clock is an hour late.
LATE = """
import time
now = time.time
time.time = lambda: now() - 3600
"""
#: Its jobs wait three seconds for an unwritable folder instead of a minute.
IMPATIENT = """
from envmatrix.launchers import block_orders
assert block_orders.PATIENCE_S == 60
block_orders.PATIENCE_S = 3.0
"""


@pytest.fixture(params=LAUNCHERS)
def project(request, tmp_path):
    """A project with the words of a launcher (``words``), and what this launcher calls itself."""
    daemons, words = LAUNCHERS[request.param]
    cluster = request.getfixturevalue(daemons) if daemons else Nowhere()
    made = Project(tmp_path / "pro ject", cluster)
    made.launcher, made.words = request.param, words
    made.packages = lay_out_detached(tmp_path / "site") if request.param == "detached" else []
    yield made
    (made.held.folder / "hold").unlink(missing_ok=True)
    if hasattr(cluster, "clean"):
        cluster.clean()


def test_what_breaks_has_its_outcome_and_the_others_go_on_whatever_the_clock_says(project):
    text = (project.folder / "matrix.yaml").read_text().rstrip()
    text = text.replace("environments:\n", LEVELS + "environments:\n" + ENVIRONMENTS, 1)
    (project.folder / "matrix.yaml").write_text(text + BREAKING)
    program = BREAKS.replace("MARK", repr(str(project.folder / "paused")))
    (project.folder / "programs" / "wait.py").write_text(program)
    done = project.run("bench", "breaking", *project.words, changes=LATE)
    assert done.returncode == 3, done.stderr
    trials = {trial["environment"]: trial for trial in done_once(project)}
    assert {name: trial["outcome"] for name, trial in trials.items()} == {
        "baseline": "ok", "control": "ok", "dies": "failed", "hangs": "timed_out", "eats": "failed", "pauses": "ok",
    }  # fmt: skip
    assert "signal 9 (Killed)" in trials["dies"]["reason"]
    assert "MemoryError" in trials["eats"]["reason"]
    assert {name: trial["repeated"] for name, trial in trials.items()} == {**dict.fromkeys(trials, 0), "pauses": 1}
    paused = trials["pauses"]["trial"]
    assert f"{paused} was paused while it ran: running it again" in " ".join(done.stderr.split())
    assert all(0 < trial["wall_s"] < 60 for trial in trials.values())
    assert ("ahead of this machine's" in done.stderr) == (project.launcher == "slurm")
    project.wait_for(lambda: not project.left(), 30)


def test_a_tool_that_is_killed_loses_and_repeats_no_finished_trial(project):
    project.held.hold(2)
    process = project.start("bench", "short", *project.words, *BLOCK)
    project.wait_for(lambda: project.held.starts() == 2)
    project.wait_for(lambda: len(project.trials()) == 1)
    before = (project.newest() / "trials.jsonl").read_bytes()
    process.kill()
    process.communicate()
    goes_on = project.launcher in GO_ON
    if not goes_on:
        project.wait_for(lambda: not project.left(), 60)
    project.held.let_go()
    resumed = project.run("resume")
    assert resumed.returncode == 0, resumed.stderr
    assert {trial["outcome"] for trial in done_once(project)} == {"ok"}
    assert (project.newest() / "trials.jsonl").read_bytes().startswith(before)
    assert project.held.starts() == (2 if goes_on else 3), "a job is found again, what ended runs again"
    project.wait_for(lambda: not project.left(), 30)


@pytest.mark.parametrize("project", ELSEWHERE, indirect=True)
def test_a_node_that_loses_all_processes_of_a_block_gets_it_again_and_repeats_no_finished_trial(project):
    project.held.hold(2)
    process = project.start("bench", "short", *project.words, *BLOCK)
    project.wait_for(lambda: len(project.trials()) == 1 and project.held.starts() == 2)
    before = (project.newest() / "trials.jsonl").read_bytes()
    project.kill_runners()
    project.wait_for(lambda: len(project.started()) == 3 or process.poll() is not None)
    project.held.let_go()
    _, said = process.communicate(timeout=300)
    if project.launcher == "ssh":  # to ssh, this is a connection that broke: its host is left out until `resume`
        assert process.returncode == 3, said
        assert "is left out: the connection ended" in said
        assert project.run("resume").returncode == 0
    else:
        assert process.returncode == 0, said
    assert {trial["outcome"] for trial in done_once(project)} == {"ok"}
    assert (project.newest() / "trials.jsonl").read_bytes().startswith(before)
    project.wait_for(lambda: not project.left(), 30)


@pytest.fixture
def empty_disk(small_disk):
    if small_disk is None:
        pytest.skip("no tmpfs can be mounted here")
    yield small_disk
    shutil.rmtree(small_disk, ignore_errors=True)


def test_a_full_disk_loses_no_finished_trial(project, empty_disk):
    (project.folder / "results").symlink_to(empty_disk)
    project.held.hold(2)
    process = project.start("bench", "short", *project.words, changes=IMPATIENT)
    project.wait_for(lambda: 0 < len(project.trials()) < project.held.starts())
    filler = empty_disk / "filler"
    subprocess.run(["dd", "if=/dev/zero", f"of={filler}"], stderr=subprocess.DEVNULL, check=False)
    assert shutil.disk_usage(empty_disk).free == 0
    project.held.let_go()
    _, said = process.communicate(timeout=300)
    assert process.returncode in (2, 3, 4), said
    assert "Traceback" not in said
    kept = {trial["trial"]: trial for trial in project.trials()}
    assert kept
    filler.unlink()
    project.wait_for(lambda: not project.runners(), 120)
    resumed = project.run("resume")
    assert resumed.returncode == 0, resumed.stderr
    trials = {trial["trial"]: trial for trial in done_once(project)}
    assert {name: trials[name] for name in kept} == kept


def test_a_program_on_the_command_line_runs_on_the_nodes_with_the_python_that_is_there(project):
    """Also, a token of the shell that it reads is in no file of the run."""
    (project.folder / "train.py").write_text("import os, sys\nos.environ.get('MY_TOKEN')\nprint(sys.argv[1], 'it/s')\n")
    options = ("--environments", "one-thread", "--name", "own", *BLOCK)
    program = ("--", sys.executable, "train.py", "7.5")
    done = project.run("bench", *project.words, *options, *program, MY_TOKEN="very-secret")
    assert done.returncode == 0, done.stderr
    trials = done_once(project)
    assert {trial["outcome"] for trial in trials} == {"ok"}
    assert {trial["record"]["metrics"]["value"] for trial in trials} == {7.5}
    shown = json.loads((project.newest() / "run.json").read_text())
    assert shown["launcher"] == project.launcher
    files = [file for file in (project.folder / "results").rglob("*") if file.is_file()]
    assert not any(b"very-secret" in file.read_bytes() for file in files)
