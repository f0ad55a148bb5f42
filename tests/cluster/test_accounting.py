"""Slurm with accounting: states of unwatched jobs come from sacct, and limits of accounts are obeyed."""

import os
import re

import pytest

from envmatrix.launchers.slurm.client import SlurmClient
from tests.cluster import accounting, slurm_daemons
from tests.cluster.slurm_daemons import wait_for
from tests.cluster.test_slurm import QUICK, SLURM, done_once

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]
ONE_NODE = ("--nodes", "1", "--max-blocks", "1")
_EATS = """#!/bin/sh
exec {python} -c "b = bytearray(400 * 2**20)"
"""


@pytest.fixture(scope="module")
def accounted():
    reason = slurm_daemons.missing() or accounting.missing()
    if reason and os.environ.get("ENVMATRIX_REQUIRE_ENGINES") == "1":
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)
    cluster = accounting.AccountedCluster()
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
    assert cluster.left() == []


@pytest.fixture
def cluster(accounted):
    """Return the cluster that ``project`` uses."""
    return accounted


def test_sacct_tells_out_of_memory_cancelled_and_completed_apart(cluster, tmp_path, monkeypatch):
    if not cluster.confines_memory:
        pytest.skip("this Slurm cannot confine memory: no memory controller of cgroup v1")
    monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
    client = SlurmClient()
    bodies = {
        "OUT_OF_MEMORY": _EATS.format(python=os.sys.executable),
        "CANCELLED": "#!/bin/sh\nsleep 600\n", "COMPLETED": "#!/bin/sh\n", "FAILED": "#!/bin/sh\nexit 3\n",
    }  # fmt: skip
    jobs = {}
    for state, text in bodies.items():
        script = tmp_path / f"{state}.sh"
        script.write_text(text.replace("#!/bin/sh\n", "#!/bin/sh\n#SBATCH --mem=100M\n#SBATCH --output=/dev/null\n"))
        jobs[state] = client.submit_script(script)
    wait_for(lambda: any(job == jobs["CANCELLED"] for job, *_ in cluster.jobs("running")), 60, "the job")
    client.delete([jobs["CANCELLED"]])
    for state, job in jobs.items():
        wait_for(lambda job=job: client.past_state(job) not in ("", "PENDING", "RUNNING", "COMPLETING"), 60, state)
        assert client.past_state(job).split()[0] == state
    assert client.past_state("999999") == ""


def test_a_job_that_was_lost_while_nobody_watched_is_explained_by_accounting(project, cluster):
    project.held.hold(2)
    process = project.start("bench", "short", *SLURM, *ONE_NODE)
    project.wait_for(lambda: project.held.starts() == 2)
    process.kill()
    process.communicate()
    ((job, *_),) = cluster.jobs("running")
    cluster.do("scancel", job)
    wait_for(lambda: cluster.past(job).startswith("CANCELLED"), 60, "the end of the job in sacct")
    project.held.let_go()
    cluster.stop("slurmctld")
    cluster.start_controller(clean=True)  # slurmctld has forgotten the job: only accounting has it
    cluster.wait_idle()
    resumed = project.run("resume")
    assert resumed.returncode == 0, resumed.stderr
    assert f"block 0: job {job} of an earlier start ended: CANCELLED" in resumed.stderr
    assert {trial["outcome"] for trial in done_once(project)} == {"ok"}


def test_blocks_that_are_ready_are_one_array_and_only_the_task_that_is_cancelled_runs_again(project, cluster):
    project.held.hold(1)
    process = project.start("bench", "short", *SLURM, "--nodes", "2")
    project.wait_for(lambda: project.held.starts() == 2)
    (array,) = {job.partition("_")[0] for job, *_ in cluster.jobs("running")}
    cluster.do("scancel", f"{array}_1")
    wait_for(lambda: cluster.past(f"{array}_1").startswith("CANCELLED"), 60, "the end of the task in sacct")
    project.held.let_go()
    _, said = process.communicate(timeout=600)
    assert process.returncode == 3, said
    assert f"block 1: job {array}_1 ended with 2 trial(s) not done: it was cancelled" in said
    assert {trial["block"] for trial in project.trials()} == {0}
    wait_for(lambda: cluster.past(f"{array}_0") == "COMPLETED", 60, "the end of the other in sacct")
    asked = ("sacct", "-n", "-P", "-X", "-o", "JobID,JobName")
    named = [line.split("|") for line in cluster.do(*asked).splitlines()]
    prefix = next(name for job, name in named if job == f"{array}_0").rpartition("-")[0]
    assert {job for job, name in named if name.startswith(prefix)} == {f"{array}_0", f"{array}_1"}
    resumed = project.run("resume")
    assert resumed.returncode == 0, resumed.stderr
    assert {trial["outcome"] for trial in done_once(project)} == {"ok"}
    started = [name for name, _ in project.started()]
    assert sorted(started) == ["b0000-p000", "b0000-p001", "b0001-p000", "b0001-p000", "b0001-p001"]


def test_an_account_that_does_not_exist_is_refused_in_slurms_own_words_before_anything_is_made(project):
    done = project.run("bench", "tiny", *SLURM, *QUICK, *ONE_NODE, "--account", "nosuch")
    assert done.returncode == 2, done.stderr
    assert re.search("Slurm would refuse a job: .*(Invalid account|account/partition)", done.stderr)
    assert not (project.folder / "results").exists()


def test_a_quota_that_is_full_is_waited_for_while_a_job_runs_and_told_when_none_does(project, cluster):
    try:
        cluster.limit(MaxSubmitJobs=1)
        project.held.hold(1)
        process = project.start("bench", "tiny", *SLURM, *QUICK)
        said = project.hear(process, "trying again when a job has ended")
        project.held.let_go()
        said += process.communicate(timeout=600)[1]
        assert process.returncode == 0, said
        assert "limit" in said.lower()
        done_once(project)
        cluster.limit(MaxSubmitJobs=0)
        full = project.run("bench", "tiny", *SLURM, *QUICK, *ONE_NODE, "--name", "full")
        assert full.returncode == 4, full.stderr
        assert "check partition, account, constraint, time and your quota" in full.stderr
    finally:
        cluster.limit(MaxSubmitJobs=-1)
    resumed = project.run("resume", "full")
    assert resumed.returncode == 0, resumed.stderr
