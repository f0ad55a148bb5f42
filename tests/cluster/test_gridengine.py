"""Runs on a real Grid Engine of two hosts, with its faults."""

import os

import pytest

from tests.cluster.conftest import Project
from tests.cluster.test_slurm import QUICK, done_once

pytestmark = [pytest.mark.gridengine, pytest.mark.timeout(600)]
#: All slots of a host, so that each host runs one block at a time.
GRID = ("--launcher", "gridengine", "--nodes", "2", "--queue", "all.q", "--pe", f"smp:{os.cpu_count()}")


@pytest.fixture
def project(tmp_path, grid):
    yield Project(tmp_path / "pro ject", grid)
    grid.clean()


def test_a_design_over_two_hosts_completes_and_each_block_stays_on_one(project):
    done = project.run("bench", "tiny", *GRID, *QUICK)
    assert done.returncode == 0, done.stderr
    trials = done_once(project)
    assert {trial["outcome"] for trial in trials} == {"ok"}
    assert {trial["node"] for trial in trials} == {"left", "right"}


def test_a_job_that_somebody_deletes_is_not_fought_and_resume_finishes_its_block(project, grid):
    project.held.hold(2)
    process = project.start("bench", "short", *GRID, "--max-blocks", "1")
    project.wait_for(lambda: project.held.starts() == 2 and len(project.trials()) == 1)
    (job,) = grid.jobs("r")
    grid.do("qdel", job)
    _, said = process.communicate(timeout=200)
    assert process.returncode == 3, said
    assert f"job {job} ended with 1 trial(s) not done: it was deleted" in " ".join(said.split())
    assert project.left() == []
    project.held.let_go()
    before = project.trials()
    resumed = project.run("resume")
    assert resumed.returncode == 0, resumed.stderr
    assert done_once(project)[: len(before)] == before


def test_a_job_that_is_suspended_runs_its_trial_again_and_says_so(project, grid):
    here, go = project.wait_for_word()
    process = project.start("bench", "short", *GRID, "--max-blocks", "1")
    project.wait_for(here.exists)
    (job,) = grid.jobs("r")
    grid.do("qmod", "-sj", job)
    project.wait_for(lambda: grid.jobs("s"))
    grid.do("qmod", "-usj", job)
    go.touch()
    _, said = process.communicate(timeout=200)
    assert process.returncode == 0, said
    assert [(trial["outcome"], trial["repeated"]) for trial in done_once(project)] == [("ok", 1), ("ok", 0)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--queue", "nosuch"], "Grid Engine has no host for this"),
        (["--pe", "smp"], "--pe: a parallel environment and its slots are needed"),
        (["--resources", "-x"], "--resources: '-x' is nothing that qsub takes"),
        (["--nodes", "many"], "--nodes: 'many' is no number of nodes"),
    ],
)
def test_a_wrong_request_is_told_before_anything_is_built(project, options, words):
    done = project.run("bench", "short", "--launcher", "gridengine", *(f"{options[0]}={word}" for word in options[1:]))
    assert done.returncode == 2, done.stderr
    assert words in " ".join(done.stderr.split())
    assert not (project.folder / "results").exists()
