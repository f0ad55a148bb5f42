"""Blocks as tasks of one array job: what is submitted, with stand-ins for Slurm's commands."""

import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from envmatrix.block.block_instructions import BlockOrder, Part, TrialOrder
from envmatrix.block.srun import Nodes
from envmatrix.launchers.block_files import BlockFolder
from envmatrix.launchers.block_start import copy_package
from envmatrix.launchers.pending_block import PendingBlock
from envmatrix.launchers.slurm.client import SlurmClient, queued_job, read_queue
from envmatrix.launchers.slurm.job_loss import explain_loss, job_of
from envmatrix.launchers.slurm.launcher import SlurmLauncher
from envmatrix.launchers.slurm.script import BlockJob, block_array_script, block_script
from envmatrix.matrix import Slurm
from envmatrix.plan import Arm, Slot
from envmatrix.results import RunFolder
from tests.synthetic import make_design, make_plan

#: Stand-in for sbatch, which takes single jobs only.
NO_ARRAYS = """#!/bin/sh
echo "$*" >>"$0.said"
case $* in
  *--array=*) echo 'sbatch: error: Batch job submission failed: Invalid job array specification' >&2; exit 1 ;;
esac
wc -l <"$0.said"
"""


def job(folder, block, **more):
    """Return the job of a block with one trial, which says in its log that it ran."""
    trial = TrialOrder(f"b{block:04d}-p000", "t", [sys.executable, "-c", "print('ran')"], {}, 20.0)
    order = BlockOrder(
        f"envmatrix run a, b, block {block}", str(folder / f"b{block:04d}"), 1, [Part(trial.name, [trial])]
    )
    variables = {"PATH": os.environ["PATH"], "HOME": "/"}
    return BlockJob(f"envmatrix-0-b{block:04d}", order, Path("/shared/block-0"), Slurm(nodes=2), variables, **more)


def test_jobs_that_ask_for_the_same_are_tasks_of_one_array_and_others_are_not(tmp_path):
    text = block_array_script(job(tmp_path, 3))
    assert "#SBATCH --job-name=envmatrix-0-b\n#SBATCH --comment=envmatrix-run-a-b\n" in text
    assert block_array_script(job(tmp_path, 12)) == text
    assert block_array_script(job(tmp_path, 3, node="n1")) != text
    assert block_array_script(job(tmp_path, 3, avoid=("n1",))) != text
    later = job(tmp_path, 3)
    assert block_array_script(replace(later, order=replace(later.order, attempt=2))) != text


def run_task(folder, script, block):
    variables = {"SLURM_JOB_ID": "74", "SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": str(block)}
    environment = {"PATH": os.environ["PATH"], "SLURMD_NODENAME": "n1", **variables}
    return subprocess.run(["/bin/sh"], input=script, text=True, env=environment, cwd="/", timeout=60, check=False)


def test_a_task_runs_the_script_of_its_block_and_calls_itself_as_slurm_does(tmp_path):
    folder = tmp_path / "it's a $run"
    for block in (0, 12):
        files = BlockFolder(folder / f"b{block:04d}")
        assert files.start_new_attempt() == 1
        made = replace(job(folder, block), package=copy_package(folder))
        files.order(1).write_text(made.order.text())
        files.script(1).write_text(block_script(made))
    assert run_task(folder, block_array_script(made), 12).returncode == 0
    assert files.begun(1).job == "70_12"
    assert (files.path / "b0012-p000" / "log").read_text() == "ran\n"
    assert BlockFolder(folder / "b0000").begun(1) is None
    assert run_task(folder, block_array_script(made), 5).returncode == 66, "it does not see its block"


def test_a_task_is_found_by_the_name_of_its_block():
    rows = read_queue("70_12|envmatrix-0-b|PENDING||Resources\n71|envmatrix-0-b0003|RUNNING|n1|None\n")
    assert rows == [
        queued_job("70_12", "envmatrix-0-b0012", "PENDING", "", "Resources"),
        queued_job("71", "envmatrix-0-b0003", "RUNNING", "n1", "None"),
    ]


def test_a_task_that_is_gone_before_it_began_was_cancelled_if_its_array_is_known(tmp_path):
    files = BlockFolder(tmp_path / "b0002")
    pending = PendingBlock(2, {}, files, files.start_new_attempt(), job="70_2")
    other, own = (queued_job(job, "envmatrix-0-b", "RUNNING", "n1", "None") for job in ("70_1", "70_2"))
    assert job_of(pending, [other, own]) is own
    assert explain_loss(job_of(pending, [other]), "", None, {}).give_up
    assert job_of(pending, [replace(other, job="71_1")]) is None
    (files.path / "begun-1").write_text('{"job": "70_2", "node": "n1", "epoch": 0, "restarts": 0}')
    assert job_of(pending, [other]) is None, "it ended, and files say what is done"


def test_the_ranks_of_a_task_have_a_port_to_meet_at(tmp_path, monkeypatch):
    stand_in(tmp_path, monkeypatch, scontrol="#!/bin/sh\necho ' NodeAddr=10.0.0.1 '\n")
    assert Nodes(["n1"], tmp_path).meeting_place("70_12").startswith("10.0.0.1:2")


def stand_in(tmp_path, monkeypatch, **commands):
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    for name, text in commands.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)


@pytest.fixture
def launcher(tmp_path, monkeypatch):
    """Return a launcher for four nodes with a function that gives it blocks, and what it says."""
    said = []
    run = SimpleNamespace(
        design=make_design(make_plan(())), created="2026", skipped={}, workloads={}, launcher_options={"nodes": "4"}
    )
    made = SlurmLauncher(SimpleNamespace(run=run, folder=RunFolder(tmp_path)), SlurmClient(), said.append, None)

    def prepare(pending, work):
        pending.attempt = pending.files.start_new_attempt()
        yield from ()
        return job(tmp_path, pending.block)

    def submit(blocks, queue=()):
        arm = Arm("a", "a", "a", "w", "local", None)
        for block in blocks:
            slot = Slot(f"b{block:04d}-p000", block, 0, arm, 0)
            made._backlog.append(PendingBlock(block, {slot.trial: slot}, BlockFolder(tmp_path / f"b{block:04d}")))
        assert list(made._submit_backlog(list(queue), None)) == []
        return {block: pending.job for block, pending in made._pending_blocks.items()}

    monkeypatch.setattr(made, "_prepare", prepare)
    return made, submit, said


def test_blocks_that_are_ready_are_one_submission_with_a_log_each(launcher, tmp_path, monkeypatch):
    made, submit, said = launcher
    stand_in(tmp_path, monkeypatch, sbatch='#!/bin/sh\necho "$*" >>"$0.said"; echo 70\n')
    assert submit([1, 2, 12]) == {1: "70_1", 2: "70_2", 12: "70_12"}
    assert (made._backlog, said) == ([], [])
    (line,) = (tmp_path / "bin" / "sbatch.said").read_text().splitlines()
    script = tmp_path / "b0001" / "array-1.sh"
    assert shlex.split(line) == ["--parsable", "--array=1,2,12", f"--output={tmp_path}/b%4a/slurm-1.log", str(script)]
    assert script.read_text() == block_array_script(job(tmp_path, 1))


def test_if_slurm_takes_no_array_each_block_is_a_job_and_that_is_told_once(launcher, tmp_path, monkeypatch):
    made, submit, said = launcher
    stand_in(tmp_path, monkeypatch, sbatch=NO_ARRAYS)
    assert submit([0, 1]) == {0: "2", 1: "3"}
    assert submit([2, 3]) == {0: "2", 1: "3", 2: "4", 3: "5"}
    assert made._backlog == []
    (line,) = said
    assert "Invalid job array specification; instead of an array, each block is a job of its own" in line


def test_blocks_that_slurm_refuses_for_now_are_not_made_anew_at_every_look(launcher, tmp_path, monkeypatch):
    _, submit, said = launcher
    full = NO_ARRAYS + '[ $(wc -l <"$0.said") -le 2 ]\n'
    stand_in(tmp_path, monkeypatch, sbatch=full)
    for _ in range(3):
        submit([0, 1, 2] if not said else [])
    assert [BlockFolder(tmp_path / f"b{block:04d}").attempt for block in range(3)] == [1, 3, 1]


def test_an_array_that_slurm_took_without_an_answer_is_found_by_its_tasks(launcher, tmp_path, monkeypatch):
    made, submit, _ = launcher
    stand_in(tmp_path, monkeypatch, sbatch="#!/bin/sh\nexit 9\n")
    queue = [queued_job(f"70_{block}", f"{made._prefix}b{block:04d}", "RUNNING", "n1", "None") for block in (0, 1)]
    assert submit([0, 1], queue) == {0: "70_0", 1: "70_1"}
