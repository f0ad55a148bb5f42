"""Runs on two hosts over a real ssh, including connections that break."""

import os
import sys
from pathlib import Path

import pytest

from tests.cluster.conftest import Project
from tests.cluster.test_slurm import done_once

pytestmark = [pytest.mark.ssh, pytest.mark.timeout(600)]
SSH = ("--launcher", "ssh", "--hosts", "left,right")


@pytest.fixture
def project(tmp_path, hosts):
    """A folder with a matrix.yaml; its path identifies the processes of its trials."""
    made = Project(tmp_path / "pro ject", hosts)
    yield made
    if (made.held.folder / "hold").exists():
        made.held.let_go()


def test_a_design_over_two_hosts_completes_and_each_block_stays_on_one(project):
    done = project.run("bench", "tiny", *SSH)
    assert done.returncode == 0, done.stderr
    trials = done_once(project)
    assert {trial["outcome"] for trial in trials} == {"ok"}
    assert {trial["node"] for trial in trials} == {"left", "right"}
    assert all(trial["node_checks"] for trial in trials)


def test_trials_take_turns_on_a_host(project):
    text = (project.folder / "matrix.yaml").read_text()
    turns = "\n  turns: {environments: one-thread, workloads: tiny, schedule: turns, turn: 2, max_blocks: 1}\n"
    (project.folder / "matrix.yaml").write_text(text.rstrip() + turns)
    done = project.run("bench", "turns", *SSH)
    assert done.returncode == 0, done.stderr
    assert [(trial["outcome"], trial["together"]) for trial in done_once(project)] == [("ok", 3)] * 3


def test_a_host_whose_connection_dies_is_left_out_and_its_block_is_run_elsewhere(project, hosts):
    project.held.hold(1)
    process = project.start("bench", "short", *SSH, "--max-blocks", "1")
    project.wait_for(lambda: project.held.starts() == 1)
    ((_, node),) = project.started()
    hosts.cut(node)
    try:
        heard = project.hear(process, f"host {node} is left out")
        (other,) = {"left", "right"} - {node}
        heard += project.hear(
            process, f"block 0 runs on host {other}"
        )  # what still ends on the lost host is not counted
        project.held.let_go()
        said = heard + process.communicate(timeout=200)[1]
    finally:
        hosts.join(node)
    assert process.returncode == 0, said
    assert {trial["node"] for trial in done_once(project)} == {"left", "right"} - {node}


def test_a_block_that_was_begun_on_a_host_that_is_gone_is_left_to_resume(project, hosts):
    project.held.hold(2)
    process = project.start("bench", "short", *SSH, "--max-blocks", "1")
    project.wait_for(lambda: project.held.starts() == 2)
    node = project.started()[0][1]
    hosts.cut(node)
    try:
        said = process.communicate(timeout=200)[1]
    finally:
        hosts.join(node)
    assert process.returncode == 3, said
    assert f"block 0 was begun on host {node}, which is left out; `resume` goes on later" in " ".join(said.split())
    project.held.let_go()
    before = project.trials()
    resumed = project.run("resume")
    assert resumed.returncode == 0, resumed.stderr
    assert done_once(project)[: len(before)] == before


def test_what_runs_on_a_host_ends_with_an_interrupted_tool_and_resume_goes_on(project):
    project.held.hold(2)
    process = project.start("bench", "short", *SSH, "--max-blocks", "1")
    project.wait_for(lambda: project.held.starts() == 2)
    assert project.left()
    process.terminate()
    process.communicate(timeout=100)
    project.wait_for(lambda: not project.left(), 60)
    project.held.let_go()
    before = project.trials()
    resumed = project.run("resume")
    assert resumed.returncode == 0, resumed.stderr
    trials = done_once(project)
    assert trials[: len(before)] == before
    assert {trial["outcome"] for trial in trials} == {"ok"}


@pytest.mark.parametrize(
    ("hosts_asked", "words"),
    [
        ((), "--launcher ssh needs hosts"),
        (("--hosts", "-oProxyCommand=x"), "is no name of a host"),
        (("--hosts", "left,nosuch"), "host nosuch cannot be used: ssh: Could not resolve"),
    ],
)
def test_a_wrong_request_is_told_before_anything_is_built(project, hosts_asked, words):
    done = project.run("bench", "tiny", "--launcher", "ssh", *(f"--hosts={name}" for name in hosts_asked[1:]))
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert not (project.folder / "results").exists()


def test_a_host_that_lacks_what_is_needed_is_named(project, hosts):
    hosts.stop_host("left")
    pythons = {Path(sys.executable), *(Path(folder, "python3") for folder in os.environ["PATH"].split(":"))}
    covers = [f"mount --bind /dev/null '{file.resolve()}'" for file in pythons if file.exists()]
    hosts.start_host("left", "\n".join(covers))
    done = project.run("bench", "tiny", *SSH)
    assert done.returncode == 2, done.stderr
    assert "host left: the node has no Python 3.9 or later" in " ".join(done.stderr.split())
    hosts.stop_host("left")
    (project.folder / "results").mkdir()
    hosts.start_host("left", f"mount -t tmpfs -o ro none '{project.folder}/results'")
    done = project.run("bench", "short", *SSH)
    hosts.stop_host("left")
    hosts.start_host("left")
    assert done.returncode == 0, done.stderr
    assert "host left is left out: the node cannot write to the results folder" in " ".join(done.stderr.split())
    assert {trial["node"] for trial in done_once(project)} == {"right"}
