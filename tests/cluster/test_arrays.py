"""Blocks as tasks of one array job on a real Slurm: each task can be lost, held, requeued or found again alone."""

import re

import pytest

from tests.cluster.test_several_nodes import check_ranks
from tests.cluster.test_slurm import QUICK, SLURM, done_once

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]


def two_tasks(project, cluster):
    """Start a run whose first two blocks are one array; return its process and the array when both blocks run."""
    project.held.hold(1)
    process = project.start("bench", "short", *SLURM, "--nodes", "2")
    project.wait_for(lambda: project.held.starts() == 2)
    (array,) = {job.partition("_")[0] for job, *_ in cluster.jobs("running")}
    assert {job for job, *_ in cluster.jobs()} == {f"{array}_0", f"{array}_1"}
    return process, array


def test_both_tasks_are_found_again_by_resume_and_have_a_log_each(project, cluster):
    process, array = two_tasks(project, cluster)
    process.kill()
    process.communicate()
    resumed = project.start("resume")
    heard = project.hear(resumed, f"block 1: job {array}_1 of an earlier start is still there")
    project.held.let_go()
    heard += resumed.communicate(timeout=300)[1]
    assert resumed.returncode == 0, heard
    assert f"block 0: job {array}_0 of an earlier start is still there" in heard
    assert {trial["outcome"] for trial in done_once(project)} == {"ok"}
    assert len(project.started()) == 4
    logs = sorted(str(path.relative_to(project.newest())) for path in project.newest().glob("slurm/**/slurm-*.log"))
    assert logs == ["slurm/b0000/slurm-1.log", "slurm/b0001/slurm-1.log"]


def test_the_task_of_a_node_that_fails_goes_to_another_node_as_a_job_of_its_own(project, cluster):
    process, array = two_tasks(project, cluster)
    (lost,) = (job for job, _, node, _ in cluster.jobs("running") if node == "n1")
    cluster.do("scontrol", "update", "nodename=n1", "state=down", "reason=pulled the plug")
    said = project.hear(process, "node n1 is left out")
    project.held.let_go()
    said += process.communicate(timeout=300)[1]
    assert process.returncode == 0, said
    assert f"job {lost} ended with 2 trial(s) not done: node n1 is down" in said
    assert {trial["node"] for trial in done_once(project)} == {"n2"}
    assert len({job for job, *_ in cluster.jobs("all")} - {f"{array}_0", f"{array}_1"}) >= 1


def test_a_task_that_is_requeued_goes_on_and_the_other_is_not_disturbed(project, cluster):
    process, array = two_tasks(project, cluster)
    cluster.do("scontrol", "requeue", f"{array}_1")
    project.wait_for(lambda: cluster.jobs("pending"))
    project.held.let_go()
    cluster.do("scontrol", "update", f"jobid={array}_1", "starttime=now")  # a requeued job would wait two minutes
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    done_once(project)
    assert sorted(name for name, _ in project.started() if name.startswith("b0000")) == ["b0000-p000", "b0000-p001"]


def test_a_task_that_somebody_holds_is_told_and_left_to_resume(project, cluster):
    text = (project.folder / "matrix.yaml").read_text()
    (project.folder / "matrix.yaml").write_text(text.replace("nodelist: [n1, n2], ", ""))
    first = cluster.take_license()
    process = project.start("bench", "tiny", *SLURM, *QUICK)
    project.wait_for(lambda: cluster.jobs("pending"))
    ((waits, *_),) = cluster.jobs("pending")
    held = re.sub(r"_.*", "_0", waits)
    cluster.do("scontrol", "uhold", held)
    cluster.do("scancel", first)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 3, said
    assert f"job {held} waits (JobHeldUser); `scontrol release {held}` lets it run" in said
    assert {trial["block"] for trial in project.trials()} == {1}
    cluster.do("scontrol", "release", held)
    resumed = project.run("resume")
    assert resumed.returncode == 0, resumed.stderr
    done_once(project)
    assert len(project.started()) == 4


def test_a_task_that_is_cancelled_while_it_waits_is_left_to_resume(project, cluster):
    project.held.hold(1)
    process = project.start("bench", "short", *SLURM, "--nodes", "3", "--max-blocks", "3")
    project.wait_for(lambda: project.held.starts() == 2)
    ((waits, *_),) = cluster.jobs("pending")
    cluster.do("scancel", waits)
    said = project.hear(process, "it was cancelled")
    project.held.let_go()
    said += process.communicate(timeout=300)[1]
    assert process.returncode == 3, said
    assert f"block 2: job {waits} ended with 2 trial(s) not done: it was cancelled" in said
    assert {trial["block"] for trial in project.trials()} == {0, 1}
    assert project.run("resume").returncode == 0
    done_once(project)
    assert len(project.started()) == 6


def test_blocks_over_two_nodes_are_tasks_too(project, cluster):
    only = ("--workloads", "both", "--environments", "baseline", "--nodes", "4")
    process = project.start("bench", "short", *SLURM, *only)
    project.wait_for(lambda: any(re.fullmatch(r"\d+_0", job) for job, *_ in cluster.jobs("running")))
    _, said = process.communicate(timeout=500)
    assert process.returncode == 0, said
    trials = done_once(project)
    assert {(trial["block"], trial["outcome"], trial["node"]) for trial in trials} == {
        (0, "ok", "n1,n2"), (1, "ok", "n1,n2"),
    }  # fmt: skip
    for trial in trials:
        check_ranks(trial["record"])


def test_a_cluster_without_arrays_gets_a_job_for_each_block(project, cluster):
    usual = cluster.conf.read_text()

    def restart_with(text):
        cluster.stop("slurmctld")
        cluster.conf.write_text(text)
        cluster.start_controller()
        cluster.wait_idle()

    try:
        restart_with(f"{usual}MaxArraySize=1\n")
        done = project.run("bench", "short", *SLURM, "--nodes", "2")
    finally:
        restart_with(usual)
    assert done.returncode == 0, done.stderr
    assert "instead of an array, each block is a job of its own" in " ".join(done.stderr.split())
    assert {trial["outcome"] for trial in done_once(project)} == {"ok"}
