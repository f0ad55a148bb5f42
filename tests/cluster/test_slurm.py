"""The main job on a real Slurm of two nodes, and its faults, each provoked for real."""

import contextlib
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import threading

import pytest

from envmatrix.api.matrix_and_run_lookup import load_matrix
from envmatrix.engines.catalog import find_engine
from envmatrix.results import RunFolder
from envmatrix.trials.experiment_setup import design_environments
from tests.accounts import check_account
from tests.cluster.conftest import command

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1200)]
SLURM = ("--launcher", "slurm")
#: The workload ``short``: trials that end at once.
QUICK = ("--workloads", "short", "--environments", "baseline")


def planned(folder):
    plan = RunFolder(folder).load().plan
    return {slot.trial: slot.arm.environment for block in plan.blocks() for slot in block}


def done_once(project):
    """Check that every planned trial ran exactly once, and each block on one node."""
    trials = project.trials()
    assert {trial["trial"]: trial["environment"] for trial in trials} == planned(project.newest())
    assert len(trials) == len(planned(project.newest()))
    nodes = {}
    for trial in trials:
        nodes.setdefault(trial["block"], set()).add(trial["node"])
    assert all(len(names) == 1 for names in nodes.values()), nodes
    return trials


def in_a_block(project):
    """Start a run, one block after the other; return its process when the first block's second trial is held."""
    project.held.hold(2)
    process = project.start("bench", "short", *SLURM, "--nodelist", "n1,n2")
    project.wait_for(lambda: project.held.starts() == 2)
    return process


def needs_apptainer():
    if not shutil.which("apptainer"):
        if os.environ.get("ENVMATRIX_REQUIRE_ENGINES") == "1":
            pytest.fail("Apptainer is not installed; .ci/engines installs it on Debian")
        pytest.skip("Apptainer is not installed")


def test_a_design_over_two_nodes_completes_and_each_block_stays_on_one(project):
    done = project.run("bench", "tiny", *SLURM)
    assert done.returncode == 0, done.stderr
    trials = done_once(project)
    assert {trial["outcome"] for trial in trials} == {"ok"}
    for trial in trials:
        check_account(trial)
    assert {trial["block"]: trial["node"] for trial in trials} == {0: "n1", 1: "n2"}
    assert len(list(project.newest().glob("slurm/b*/slurm-1.log"))) == 2
    assert all(trial["record"]["evidence"]["torch"]["threads"] >= 1 and trial["wall_s"] > 0.5 for trial in trials)
    summary = json.loads((project.newest() / "summary.json").read_text())
    assert {effect["environment"] for effect in summary["effects"]} >= {"one-thread"}
    host = json.loads((project.newest() / "run.json").read_text())["host"]
    assert {name for name, value in host.items() if value is not None} == {"name", "cpus", "physical_cpus"}
    memory = trials[0]["record"]["evidence"]["memory"]["total_bytes"]
    page = (project.newest() / "report.html").read_text()
    assert re.search(rf"host memory_bytes\s*<[^>]*>\s*(<[^>]*>)?\s*{memory}", page), "a trial on a node saw it"


def test_a_cancelled_job_is_not_fought_and_resume_finishes_its_block(project, cluster):
    process = in_a_block(project)
    cancelled = [job for job, *_ in cluster.jobs("running")]
    cluster.do("scancel", *cancelled)
    project.wait_for(lambda: not {job for job, *_ in cluster.jobs()} & set(cancelled))
    project.held.let_go()
    project.wait_for(lambda: len(project.started()) >= 3)  # the other block continues
    _, said = process.communicate(timeout=600)
    assert process.returncode == 3, said
    assert "it was cancelled" in said
    assert "1 block(s) are incomplete" in said
    before = (project.newest() / "trials.jsonl").read_bytes()
    assert {trial["block"] for trial in project.trials()} == {0, 1}
    resumed = project.run("resume")
    assert resumed.returncode == 0, resumed.stderr
    assert (project.newest() / "trials.jsonl").read_bytes().startswith(before)
    assert {trial["outcome"] for trial in done_once(project)} == {"ok"}


def test_a_node_that_fails_is_named_and_left_out_and_its_block_is_finished_there_when_it_is_back(project, cluster):
    process = in_a_block(project)
    cluster.do("scontrol", "update", "nodename=n1", "state=down", "reason=pulled the plug")
    heard = project.hear(process, "node n1 is left out")
    project.held.let_go()
    said = heard + process.communicate(timeout=600)[1]
    assert process.returncode == 3, said
    assert "node n1 is left out: node n1 is down" in said
    assert "pulled the plug" in said
    assert {trial["node"] for trial in project.trials() if trial["block"] == 1} == {"n2"}
    cluster.do("scontrol", "update", "nodename=n1", "state=resume")
    resumed = project.run("resume")
    assert resumed.returncode == 0, resumed.stderr
    assert {trial["outcome"] for trial in done_once(project)} == {"ok"}


def test_a_drained_node_finishes_its_block_and_gets_no_other(project, cluster):
    project.held.hold(1)
    process = project.start("bench", "tiny", *SLURM, "--max-blocks", "3", *QUICK)
    project.wait_for(lambda: project.held.starts() == 1)
    cluster.do("scontrol", "update", "nodename=n1", "state=drain", "reason=new memory")
    project.held.let_go()
    _, said = process.communicate(timeout=600)
    assert process.returncode == 0, said
    nodes = {trial["block"]: trial["node"] for trial in done_once(project)}
    assert nodes == {0: "n1", 1: "n2", 2: "n2"}


def test_a_dead_slurmd_in_the_middle_of_a_block_loses_no_finished_trial(project, cluster):
    process = in_a_block(project)
    cluster.kill("n1")
    cluster.do("scontrol", "update", "nodename=n1", "state=down", "reason=dead")
    said = project.hear(process, "node n1 is left out")
    project.held.let_go()
    said += process.communicate(timeout=600)[1]
    assert process.returncode == 3, said
    cluster.start_node("n1")
    cluster.do("scontrol", "update", "nodename=n1", "state=resume")
    cluster.wait_idle()
    assert project.run("resume").returncode == 0
    done_once(project)


def test_a_trial_whose_job_dies_and_then_times_out_is_an_outcome_and_its_block_goes_on(project, cluster):
    process = project.start("bench", "endless", *SLURM, "--time", "10m", "--max-blocks", "1")
    project.wait_for(lambda: len(project.started()) == 1)
    project.kill_runners()
    project.wait_for(lambda: len(project.started()) == 2)
    ((job, *_),) = cluster.jobs("running")
    cluster.do("scontrol", "update", f"jobid={job}", "endtime=now")  # Slurm looks every 30 s; its limits are in minutes
    project.wait_for(project.trials, 200)
    (trial,) = project.trials()
    assert (trial["trial"], trial["outcome"]) == ("b0000-p000", "timed_out")
    assert "its Slurm job died twice while it ran (TIMEOUT); give its block more time with --time" in trial["reason"]
    project.wait_for(lambda: "b0000-p001" in [name for name, _ in project.started()])
    process.terminate()
    _, said = process.communicate(timeout=60)
    assert "TIMEOUT" in said


def test_a_trial_that_runs_out_of_memory_fails_with_that_reason_and_the_block_goes_on(project, cluster):
    if not cluster.confines_memory:
        pytest.skip("this Slurm cannot confine memory: no memory controller of cgroup v1")
    text = (project.folder / "matrix.yaml").read_text()
    (project.folder / "programs" / "hog.py").write_text("held = bytearray(2**30)")
    hog = "tiny: {command: [python, hog.py], metric: {wall: true}, files: programs}"
    text = re.sub(r"tiny: {model: mlp.*}", hog, text).replace("{nodes: 2,", "{nodes: 2, memory: 150MiB,")
    (project.folder / "matrix.yaml").write_text(text)
    done = project.run("bench", "tiny", *SLURM, "--max-blocks", "2")
    assert done.returncode == 4, done.stderr
    trials = done_once(project)
    assert {trial["outcome"] for trial in trials} == {"failed"}
    assert all("ran out of memory" in trial["reason"] for trial in trials)


def test_a_restart_of_slurmctld_loses_nothing(project, cluster):
    process = in_a_block(project)
    cluster.stop("slurmctld")
    project.held.let_go()
    project.wait_for(lambda: len(project.trials()) >= 2)  # files arrive although Slurm does not answer
    cluster.start_controller()
    _, said = process.communicate(timeout=600)
    assert process.returncode == 0, said
    assert {trial["outcome"] for trial in done_once(project)} == {"ok"}


def test_a_requeued_job_goes_on_and_repeats_no_finished_trial(project, cluster):
    process = in_a_block(project)
    job = next(job for job, *_ in cluster.jobs("running"))
    cluster.do("scontrol", "requeue", job)
    project.wait_for(lambda: cluster.jobs("pending"))
    project.held.let_go()
    cluster.do("scontrol", "update", f"jobid={job}", "starttime=now")  # a requeued job would wait two minutes
    _, said = process.communicate(timeout=600)
    assert process.returncode == 0, said
    done_once(project)
    assert len([name for name, _ in project.started()]) == len(planned(project.newest())) + 1


def test_a_job_that_slurm_could_not_start_and_holds_is_told_and_its_block_goes_to_another_node(
    project, cluster, tmp_path
):
    cluster.break_prolog("n1")
    no_srun = tmp_path / "bin" / "srun"  # what is asked of idle nodes before would find the node first
    no_srun.parent.mkdir()
    no_srun.write_text("#!/bin/sh\nexit 1\n")
    no_srun.chmod(0o755)
    path = f"{no_srun.parent}:{os.environ['PATH']}"
    # Without a node list, Slurm chooses the node.
    done = project.run("bench", "short", *SLURM, "--max-blocks", "1", PATH=path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"could not start it on node n1, which is drain\S* \(Prolog error\), and holds it", done.stderr)
    assert re.search(r"`scontrol release \d+` would let it try again", done.stderr)
    assert "node n1 is left out" in done.stderr
    assert {trial["node"] for trial in done_once(project)} == {"n2"}
    assert cluster.jobs() == []


def test_a_job_that_somebody_holds_is_told_and_left_to_resume_while_the_other_block_is_run(project, cluster):
    first = cluster.take_license()
    process = project.start("bench", "tiny", *SLURM, *QUICK)
    project.wait_for(lambda: len(cluster.jobs("pending")) == 2)
    job = min(cluster.jobs("pending"))[0]
    cluster.do("scontrol", "uhold", job)
    cluster.do("scancel", first)
    _, said = process.communicate(timeout=600)
    assert process.returncode == 3, said
    assert f"job {job} waits (JobHeldUser); `scontrol release {job}` lets it run" in said
    assert f"`scontrol release {job}`, then `envmatrix resume`" in said
    assert len({trial["block"] for trial in project.trials()}) == 1
    cluster.do("scontrol", "release", job)
    resumed = project.run("resume")
    assert resumed.returncode == 0, resumed.stderr
    done_once(project)
    assert len(project.started()) == 4  # started by the job that was released


def test_a_trial_whose_job_is_suspended_runs_again_and_says_so(project, cluster):
    here, go = project.wait_for_word()
    process = project.start("bench", "short", *SLURM, "--max-blocks", "1")
    project.wait_for(here.exists)
    ((job, *_),) = cluster.jobs("running")
    cluster.do("scontrol", "suspend", job)
    project.wait_for(lambda: cluster.jobs("suspended"))
    cluster.do("scontrol", "resume", job)
    go.touch()
    _, said = process.communicate(timeout=600)
    assert process.returncode == 0, said
    assert "b0000-p000 ran 2 times: its job was suspended, or could not write" in said
    assert [(trial["outcome"], trial["repeated"]) for trial in done_once(project)] == [("ok", 1), ("ok", 0)]


def test_an_interrupt_leaves_jobs_running_and_resume_adopts_them(project, cluster):
    project.held.hold(1)
    process = project.start("bench", "tiny", *SLURM, *QUICK)
    project.wait_for(lambda: project.held.starts() == 1)
    process.terminate()
    _, said = process.communicate(timeout=200)
    assert process.returncode == 130
    assert "go on in Slurm" in said
    assert cluster.jobs()
    resumed = project.start("resume")
    heard = project.hear(resumed, "is still there; waiting for it")
    project.held.let_go()
    heard += resumed.communicate(timeout=600)[1]
    assert resumed.returncode == 0, heard
    done_once(project)
    assert len(project.started()) == len(planned(project.newest()))


@pytest.mark.parametrize("answer", ["y", "n"])
def test_a_ctrl_c_at_a_terminal_asks_whether_to_cancel_the_jobs(project, cluster, answer):
    project.held.hold(1)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, *command(), "bench", "short", *SLURM], cwd=project.folder, stdin=theirs, stdout=theirs,
        stderr=theirs, env=project.variables, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    said = bytearray()
    reader = threading.Thread(target=read_all, args=(ours, said))
    reader.start()
    project.wait_for(lambda: project.held.starts() == 1)
    process.send_signal(signal.SIGINT)
    project.wait_for(lambda: b"[y/N]" in said)
    os.write(ours, f"{answer}\n".encode())
    assert process.wait(200) == 130
    reader.join(100)
    os.close(ours)
    assert b"cancel 1 Slurm job(s) of this run?" in said
    if answer == "y":
        project.wait_for(lambda: not cluster.jobs())
    else:
        assert cluster.jobs()
    project.held.let_go()
    resumed = project.run("resume")
    assert resumed.returncode == 0, resumed.stderr
    done_once(project)


def read_all(end, into):
    """Read from a terminal until its writer is gone."""
    with contextlib.suppress(OSError):
        while piece := os.read(end, 4096):
            into += piece


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--partition", "debgu"], "did you mean 'debug'?"),
        (["--nodelist", "n3"], "there is no node 'n3'"),
        (["--partition", "a b"], "an #SBATCH line cannot contain"),
        (["--constraint", "nosuch"], "no node of Slurm fits"),
        (["--time", "soon"], "--time"),
        (["--nodes", "0"], "--nodes"),
    ],
)
def test_a_wrong_request_is_told_before_anything_is_built(project, options, words):
    done = project.run("bench", "tiny", *SLURM, *options)
    assert done.returncode == 2
    assert words in done.stderr
    assert not (project.folder / "results").exists()


def test_a_job_that_slurm_would_refuse_is_told_with_its_own_words_before_anything_is_built(project):
    done = project.run("bench", "tiny", *SLURM, "--gpus", "2")
    assert done.returncode == 2, done.stderr
    assert "Slurm would refuse a job: Invalid generic resource" in done.stderr
    assert not (project.folder / "results").exists()


def test_no_slurm_is_one_clear_message(project, cluster, tmp_path):
    conf = tmp_path / "slurm.conf"  # a cluster whose controller is gone; Slurm's programs wait a second for it
    text = re.sub("SlurmctldPort=.*", "SlurmctldPort=9", cluster.conf.read_text())
    conf.write_text(f"{text}MessageTimeout=1\n")
    done = project.run("bench", "tiny", *SLURM, SLURM_CONF=str(conf))
    assert done.returncode == 4
    assert "Slurm does not answer" in done.stderr


def test_a_dry_run_prints_scripts_that_slurm_accepts_and_leaves_nothing(project, cluster, tmp_path):
    done = project.run("bench", "tiny", *SLURM, "--dry-run", "--nodes", "1")
    assert done.returncode == 0, done.stderr
    assert list((project.folder / "results").iterdir()) == []
    script = tmp_path / "script.sh"
    script.write_text(done.stdout)
    cluster.do("sbatch", "--test-only", str(script))


def test_the_same_design_completes_in_apptainer(project):
    needs_apptainer()
    done = project.run("bench", "tiny", *SLURM, "--engine", "apptainer")
    assert done.returncode == 0, done.stderr
    trials = done_once(project)
    assert {(trial["outcome"], trial["engine"]) for trial in trials} == {("ok", "apptainer")}
    for trial in trials:
        check_account(trial)
    assert {trial["block"]: trial["node"] for trial in trials} == {0: "n1", 1: "n2"}
    assert all(trial["record"]["evidence"]["sandbox"]["root_read_only"] for trial in trials)


READY = """
version: 2
include: envmatrix:malloc
factors: {image: {mine: {image: SIF}}}
environments: {baseline: {}}
workloads: {own: {command: [python3, spin.py], files: programs}}
designs: {default: {environments: tcmalloc, workloads: own, schedule: turns, turn: 1, max_blocks: 1, budget: 60m}}
"""


def test_a_ready_image_takes_turns_with_what_it_lacks_mounted_in_apptainer(project):
    needs_apptainer()
    matrix = load_matrix(project.folder / "matrix.yaml")
    image = design_environments(matrix, matrix.designs["tiny"], {})["baseline"].image
    sif = find_engine("apptainer").prepare(image, (), print).reference
    (project.folder / "programs" / "spin.py").write_text("import time\nwhile time.process_time() < 0.3: pass\n")
    (project.folder / "matrix.yaml").write_text(READY.replace("SIF", json.dumps(sif)))
    done = project.run("bench", *SLURM, "--engine", "apptainer")
    assert done.returncode == 0, done.stderr
    found = {trial["environment"]: trial for trial in done_once(project)}
    assert {(trial["outcome"], trial["together"]) for trial in found.values()} == {("ok", 3)}
    served = {name: trial["record"]["evidence"]["malloc"]["library"] for name, trial in found.items()}
    assert served == {"baseline": "libc", "control": "libc", "tcmalloc": "libtcmalloc"}
