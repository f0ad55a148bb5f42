"""Mistakes of users and sites, each provoked for real: a shared folder, a clock, a module, a full disk."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from envmatrix.block.block_instructions import CANNOT_WRITE
from envmatrix.launchers.slurm.client import SlurmClient
from tests.cluster.slurm_daemons import wait_for
from tests.cluster.test_slurm import QUICK, SLURM, done_once, needs_apptainer
from tests.engines.conftest import demand
from tests.faults.test_read_only import inside, own_mounts

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]
SMALL = (*QUICK, "--max-blocks", "1", "--nodes", "1")


def test_a_node_that_does_not_see_the_shared_folder_is_named_and_left_out(project, cluster):
    (project.folder / "results").mkdir()
    cluster.stop("n1")
    cluster.start_node("n1", hidden=[project.folder / "results"])
    cluster.wait_idle()
    done = project.run("bench", "tiny", *SLURM, *QUICK)
    assert done.returncode == 0, done.stderr
    assert "node n1 is left out: the node cannot write to the results folder" in done.stderr
    assert {trial["node"] for trial in done_once(project)} == {"n2"}
    cluster.stop("n1")


def test_a_job_that_fails_before_its_first_line_has_a_log_and_a_node_that_cannot_write_it_is_told(
    cluster, tmp_path, monkeypatch
):
    monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
    (tmp_path / "50 % full").mkdir()
    script, log = tmp_path / "script.sh", tmp_path / "50 % full" / "slurm-1.log"
    script.write_text("#!/no/such/shell\n")
    client = SlurmClient()
    client.submit_script(script, log)
    wait_for(lambda: log.exists() and "/no/such/shell" in log.read_text(), 60, "the log")
    job = client.submit_script(script, tmp_path / "nowhere" / "slurm-1.log")
    wait_for(lambda: client.exit_status(job) == CANNOT_WRITE, 60, "the end of the job")


def test_a_node_without_python_is_named_before_anything_is_made(project, cluster):
    pythons = {Path(folder, name) for folder in os.environ["PATH"].split(":") for name in ("python", "python3")}
    cluster.stop("n1")
    cluster.start_node("n1", hidden=[file.resolve() for file in {*pythons, Path(sys.executable)} if file.exists()])
    cluster.wait_idle()
    done = project.run("bench", "tiny", *SLURM, *SMALL, "--nodelist", "n1")
    cluster.stop("n1")
    assert done.returncode == 2, done.stderr
    assert "node n1 has no Python 3.9 or later" in done.stderr
    assert not (project.folder / "results").exists()


def test_a_module_that_cannot_be_loaded_is_named(project):
    done = project.run("bench", "tiny", *SLURM, *SMALL, "--modules", "nosuch/1.0")
    assert done.returncode == 4, done.stderr
    assert "the node cannot load a module that was asked for" in done.stderr
    assert "nosuch/1.0 (node n1)" in done.stderr
    assert project.trials() == []


def test_results_that_are_read_only_for_a_while_are_waited_for_while_jobs_go_on(project):
    demand(own_mounts())
    here, go = project.wait_for_word()
    process = project.start("bench", "short", *SLURM, "--max-blocks", "1", before=("unshare", "--mount"))
    project.wait_for(here.exists)
    results = str(project.folder / "results")
    inside(process.pid, "mount", "--bind", results, results)
    inside(process.pid, "mount", "-o", "remount,bind,ro", results)
    go.touch()
    assert any("retrying for at most" in line for line in process.stderr)
    inside(process.pid, "umount", results)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert {trial["outcome"] for trial in done_once(project)} == {"ok"}


@pytest.fixture
def read_only():
    """Return a function that makes a folder read-only, even for root, and one that undoes it."""
    over = []

    def begin(folder):
        subprocess.run(["mount", "--bind", folder, folder], check=True, timeout=60)
        over.append(folder)
        subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True, timeout=60)

    def end():
        while over:
            subprocess.run(["umount", over.pop()], check=True, timeout=60)

    yield begin, end
    end()


def test_a_trial_that_cannot_write_its_record_for_a_while_runs_again_when_its_job_can(project, read_only):
    demand(own_mounts())
    begin, end = read_only
    here, go = project.wait_for_word()
    other = project.folder / "programs" / "other"  # no overlay with it: in its namespace results would stay writable
    other.mkdir()
    begin(other)
    process = project.start("bench", "short", *SLURM, "--max-blocks", "1", "--environments", "baseline")
    project.wait_for(here.exists)
    begin(project.folder / "results")
    go.touch()
    (log,) = project.newest().glob("slurm/*/job-1.log")
    project.wait_for(lambda: "and is tried again: fresh" in log.read_text())
    assert "but its folder cannot be written: it runs again" in log.read_text()
    end()
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    trials = done_once(project)
    assert [(trial["outcome"], trial["repeated"]) for trial in trials] == [("ok", 1), ("ok", 0)]


def test_no_slurm_at_all_is_told(project, tmp_path):
    done = project.run("bench", "tiny", *SLURM, PATH=str(tmp_path))
    assert done.returncode == 4
    assert "there is no Slurm here: no `sinfo` on PATH" in done.stderr
    assert not (project.folder / "results").exists()


def test_a_race_over_two_nodes_is_refused_before_anything_is_made(project):
    text = (project.folder / "matrix.yaml").read_text()
    (project.folder / "matrix.yaml").write_text(text.replace("  tiny:\n    env", "  tiny:\n    race: true\n    env"))
    done = project.run("bench", "tiny", *SLURM)
    assert done.returncode == 2
    assert "a race decides after every block" in done.stderr
    assert not (project.folder / "results").exists()


@pytest.mark.parametrize("engine", ["local", "apptainer"])
def test_an_exported_script_trains_in_its_environment_as_it_is(project, cluster, engine):
    if engine == "apptainer":
        needs_apptainer()
    exported = project.run("export", "one-thread", "--as", "slurm", "--engine", engine)
    assert exported.returncode == 0, exported.stderr
    script = project.folder / "train.sh"
    script.write_text(exported.stdout)
    (project.folder / "train.py").write_text("import torch; print(torch.__version__, torch.get_num_threads())\n")
    done = subprocess.run(
        ["sbatch", "--wait", "--output=train.log", str(script)], cwd=project.folder, env=cluster.variables,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    said = (project.folder / "train.log").read_text()
    assert done.returncode == 0, f"{done.stderr}\n{said}\n{script.read_text()}"
    assert said.splitlines()[-1].startswith("2.13.0")
    assert said.splitlines()[-1].endswith(" 1")


@pytest.mark.parametrize(
    ("change", "more", "said"),
    [
        ((), (), "a block may take .*, and partition short allows 60s"),
        (("maxnodes=0",), ("--time", "1m"), r"a block takes 1 node\(s\), and partition short allows 0 to 0"),
        (("maxmempernode=100",), ("--time", "1m"), "asks for .* MiB of a node, and partition short allows 100 MiB"),
        (("state=DOWN",), ("--time", "1m"), "partition short is DOWN: no job starts there"),
        (("maxcpuspernode=1",), ("--time", "1m"), "Slurm would refuse a job: .*node configuration is not available"),
    ],
)
def test_what_a_partition_never_lets_start_is_refused_before_anything_is_made(project, cluster, change, more, said):
    usual = ("state=UP", "maxnodes=UNLIMITED", "maxmempernode=0", "maxcpuspernode=UNLIMITED")
    try:
        for one in change:
            cluster.do("scontrol", "update", "partitionname=short", one)
        done = project.run("bench", "short", *SLURM, "--partition", "short", *more)
    finally:
        for one in usual:
            cluster.do("scontrol", "update", "partitionname=short", one)
    assert done.returncode == 2, done.stderr
    assert re.search(said, done.stderr)
    assert "--partition: debug" in done.stderr or "maxcpus" in change[0]
    assert not (project.folder / "results").exists()


def test_a_job_that_no_waiting_lets_start_ends_the_run_and_is_cancelled(project, cluster):
    limit = ("scontrol", "update", "partitionname=short")
    holds = cluster.take_license()
    try:
        cluster.do(*limit, "maxtime=5")
        process = project.start("bench", "tiny", *SLURM, *SMALL, "--partition", "short", "--time", "2m")
        wait_for(lambda: [name for *_, name in cluster.jobs("pending") if "b0000" in name], 120, "the run's job")
        (out,) = (job for job, *_ in cluster.jobs("pending"))
        cluster.do(*limit, "maxtime=1")
        cluster.ask("scancel", holds)
        _, said = process.communicate(timeout=120)
    finally:
        cluster.do(*limit, "maxtime=1")
    assert process.returncode == 4, said
    assert f"job {out} would wait for ever: PartitionTimeLimit; cancelled job(s) {out}" in " ".join(said.split())
    assert "ask for less time: `--time`" in said
    wait_for(lambda: not cluster.jobs(), 30, "an empty queue")
