"""A run while Slurm does not answer; its commands are replaced by scripts that fail like the real ones."""

from types import SimpleNamespace

import pytest

from envmatrix.errors import EngineError
from envmatrix.launchers.batch_system import SilentError
from envmatrix.launchers.block_files import BlockFolder
from envmatrix.launchers.pending_block import PendingBlock
from envmatrix.launchers.slurm.client import SlurmClient
from envmatrix.launchers.slurm.launcher import SlurmLauncher
from envmatrix.matrix import Slurm
from envmatrix.plan import Arm, Slot
from envmatrix.results import RunFolder
from tests.synthetic import make_design, make_plan

SILENT = "echo 'sbatch: error: Unable to contact slurm controller (connect failure)' >&2; exit 1"
NODES = "echo 'n1|debug*|idle|8|2|16000|(null)|none'"


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")

    def write(**commands):
        for name, text in commands.items():
            (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
            (tmp_path / "bin" / name).chmod(0o755)

    return write


@pytest.fixture
def launcher(tmp_path):
    said = []
    design = make_design(make_plan(()))
    run = SimpleNamespace(design=design, created="2026", skipped={}, workloads={}, launcher_options={})
    experiment = SimpleNamespace(run=run, folder=RunFolder(tmp_path))
    made = SlurmLauncher(experiment, SlurmClient(), said.append, None)
    slot = Slot("b0000-p000", 0, 0, Arm("a", "a", "a", "w", "local", None), 0)
    files = BlockFolder(tmp_path / "b0000")
    made._backlog.append(PendingBlock(0, {slot.trial: slot}, files))
    return made, said


def test_submitting_waits_while_sinfo_alone_does_not_answer(slurm, launcher, monkeypatch):
    made, said = launcher
    slurm(squeue="exit 0", sinfo=SILENT)
    begun = []
    monkeypatch.setattr(made, "_begin", lambda pending, work: begun.append(pending.block) or iter(()))
    for _ in range(2):
        assert list(made._look(None)) == []
    assert (begun, len(made._backlog)) == ([], 1)
    assert said == ["Slurm does not answer; running jobs go on, waiting"]
    slurm(sinfo=NODES)
    assert list(made._look(None)) == []
    assert (begun, made._backlog) == ([0], [])
    assert said[1:] == ["Slurm answers again"]


@pytest.mark.parametrize("home", ["", "n1"])
def test_submitting_waits_while_a_slurmctld_that_has_just_started_does_not_know_its_nodes(slurm, launcher, home):
    made, said = launcher
    slurm(squeue="exit 0", sinfo=NODES.replace("idle", "unknown*"))
    if home:
        made._backlog[0].files.path.mkdir(parents=True)
        (made._backlog[0].files.path / "node").write_text(f"{home}\n")
        slurm(sinfo=f"{NODES.replace('idle', 'unknown*')}; {NODES.replace('n1', 'n2')}")
    assert list(made._look(None)) == []
    assert len(made._backlog) == 1
    assert said == ["Slurm does not answer; running jobs go on, waiting"]
    assert made._unusable_nodes() == {}


def test_a_block_that_is_out_is_followed_later_when_sinfo_does_not_answer(slurm, launcher):
    made, said = launcher
    pending = made._backlog.pop()
    pending.job, pending.node = "7", "n1"
    made._pending_blocks[0] = pending
    slurm(squeue=f"echo '7|{made._prefix}b0000|PENDING||Resources'", sinfo=SILENT, scancel="exit 9")
    assert list(made._look(None)) == []
    assert made._pending_blocks == {0: pending}
    assert said == ["Slurm does not answer; running jobs go on, waiting"]


def test_a_job_that_nobody_took_is_told_apart_from_one_that_was_refused(slurm, tmp_path):
    slurm(sbatch=SILENT)
    with pytest.raises(SilentError, match="Unable to contact slurm controller"):
        SlurmClient().submit_script(tmp_path / "x.sh")
    slurm(sbatch="echo 'sbatch: error: invalid partition' >&2; exit 1")
    with pytest.raises(EngineError, match="Slurm refused the job: invalid partition") as caught:
        SlurmClient().submit_script(tmp_path / "x.sh")
    assert not isinstance(caught.value, SilentError)


def test_the_job_that_looks_for_a_python_says_who_it_is_and_takes_little_memory(monkeypatch):
    asked = []
    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/srun")
    monkeypatch.setattr(SlurmClient, "_run", lambda _, *argv, **__: asked.extend(argv) or SimpleNamespace(stdout="n1"))
    assert SlurmClient().run_now(Slurm(), ["n1"], "true") == "n1"
    assert {"--job-name=envmatrix-check", "--comment=envmatrix-check", "--mem=256M", "--time=1"} <= {*asked}
