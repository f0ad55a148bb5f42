"""One workload on both nodes of a Slurm job: ranks connect, match one process, and are named when they die."""

import os
import signal
from pathlib import Path

import pytest

from tests.cluster.test_slurm import SLURM, done_once, needs_apptainer

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]
BOTH = ("--workloads", "both", "--max-blocks", "1")


def check_ranks(record):
    """Check that each node started one rank with its own evidence, and that they trained as one process."""
    seen = record["evidence"]["parallel"]
    assert (seen["processes"], seen["nodes"], seen["backend"], seen["interface"]) == (2, 2, "gloo", "lo")
    assert [(part["rank"], part["node"]) for part in seen["ranks"]] == [(0, "n1"), (1, "n2")]
    for part in seen["ranks"]:
        assert part["affinity"] == list(range(os.cpu_count()))  # srun's default binding would give one core
        assert part["openmp"] == record["evidence"]["openmp"]["library"]
        assert len(part["steps_ns"]) == record["result"]["steps"] == 3
    assert len({tuple(part["steps_ns"]) for part in seen["ranks"]}) == 2  # two processes, each with its own clock
    equality = record["result"]["equality"]
    assert equality["steps"] == 3
    assert equality["largest_difference"] <= equality["tolerance"]


def test_a_workload_over_two_nodes_meets_trains_as_one_process_and_says_which_rank_ran_where(project):
    done = project.run("bench", "tiny", *SLURM, *BOTH)
    assert done.returncode == 0, done.stderr
    trials = done_once(project)
    assert {(trial["outcome"], trial["node"]) for trial in trials} == {("ok", "n1,n2")}
    for trial in trials:
        check_ranks(trial["record"])
        assert len(trial["node_checks"]) == 2
    threads = {trial["environment"]: trial["record"]["evidence"]["parallel"]["threads_per_process"] for trial in trials}
    assert threads["one-thread"] == 1


def test_it_runs_in_apptainer_too(project):
    needs_apptainer()
    done = project.run("bench", "tiny", *SLURM, *BOTH, "--engine", "apptainer", "--environments", "baseline")
    assert done.returncode == 0, done.stderr
    for trial in done_once(project):
        assert trial["outcome"] == "ok", trial["reason"]
        check_ranks(trial["record"])


def ranks_of(project, number):
    """Return the processes of this rank in this project's run; HOME is the trial's work folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
            ours = str(project.folder).encode() in (path.parent / "environ").read_bytes()
        except OSError:
            continue
        if ours and b"bench.parallel.rank_main" in words and words[-2] == str(number).encode():
            found.append(int(path.parent.name))
    return found


def cpu_s(pid):
    """Return the CPU time (s) of a process, or 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_rank_that_dies_ends_its_trial_which_names_rank_and_node(project):
    process = project.start(
        "bench", "endless", *SLURM, "--workloads", "both-endless", "--environments", "baseline", "--max-blocks", "1"
    )
    project.wait_for(lambda: project.started() and ranks_of(project, 1), 200)
    # Its trials train forever. After this much CPU time, a rank has imported torch and met the other one.
    project.wait_for(lambda: any(cpu_s(one) > 6 for one in ranks_of(project, 1)), 200)
    others = ranks_of(project, 0)
    for one in ranks_of(project, 1):
        os.kill(one, signal.SIGKILL)
    project.wait_for(project.trials, 200)
    (trial,) = project.trials()
    assert (len(others), set(others) & set(ranks_of(project, 0))) == (1, set())
    process.terminate()
    _, said = process.communicate(timeout=200)
    assert process.returncode == 130, said
    assert trial["outcome"] == "failed"
    assert "rank 1 of 2 on node n2 was killed by SIGKILL" in trial["reason"]


def test_a_node_that_fails_under_a_block_is_named_and_the_trial_that_ran_is_run_again(project, cluster):
    process = project.start(
        "bench", "endless", *SLURM, "--workloads", "both-long", "--environments", "baseline", "--max-blocks", "1"
    )
    project.wait_for(lambda: project.started() and ranks_of(project, 1), 200)
    for one in ranks_of(project, 1):
        os.kill(one, signal.SIGSTOP)  # the trial must not end before its node fails
    cluster.do("scontrol", "update", "nodename=n2", "state=down", "reason=pulled the plug")
    _, said = process.communicate(timeout=200)
    assert "node n2 is left out" in said
    assert "too few nodes are left to run on" in said
    assert process.returncode == 4, said
    assert project.trials() == []
    cluster.do("scontrol", "update", "nodename=n2", "state=resume")
    cluster.wait_idle()
    resumed = project.run("resume")
    assert resumed.returncode == 0, resumed.stderr
    assert {trial["outcome"] for trial in done_once(project)} == {"ok"}


def test_a_trial_over_two_nodes_that_takes_too_long_is_ended_on_both(project):
    text = (project.folder / "matrix.yaml").read_text()
    text = text.replace("  endless: {environments", "  endless: {trial_limit: 5s, environments")
    (project.folder / "matrix.yaml").write_text(text)
    only = ("--workloads", "both-endless", "--environments", "baseline", "--max-blocks", "1")
    done = project.run("bench", "endless", *SLURM, *only)
    assert done.returncode == 4, done.stderr
    assert [trial["outcome"] for trial in project.trials()] == ["timed_out", "timed_out"]
    assert ranks_of(project, 0) == ranks_of(project, 1) == []


def test_what_cannot_be_spread_is_told_before_anything_is_built(project):
    for options, words in (
        (("--workloads", "both"), "spread over 2 nodes, and launcher here has one"),
        ((*SLURM, "--workloads", "both", "--nodelist", "n1"), "spread over 2 nodes, and 1 can be had: n1"),
    ):
        done = project.run("bench", "tiny", *options)
        assert done.returncode == 2
        assert words in done.stderr
        assert not (project.folder / "results").exists()


def test_a_dry_run_shows_one_script_that_takes_both_nodes(project, cluster, tmp_path):
    done = project.run("bench", "tiny", *SLURM, *BOTH, "--dry-run", "--nodes", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("#SBATCH --nodes=2") == 1
    assert done.stdout.count('"nodes": 2,') == 3  # baseline, control, one-thread
    script = tmp_path / "script.sh"
    script.write_text(done.stdout)
    cluster.do("sbatch", "--test-only", str(script))
