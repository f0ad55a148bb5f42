"""Running jobs after a Ctrl-C, with a stand-in for Slurm: the real question needs a person."""

from types import SimpleNamespace

import pytest

from envmatrix.api.runs import _stopped_error
from envmatrix.errors import ExitCode, StoreError, Where
from envmatrix.launchers.block_files import BlockFolder
from envmatrix.launchers.pending_block import PendingBlock
from envmatrix.launchers.slurm.client import SlurmClient
from envmatrix.launchers.slurm.launcher import SlurmLauncher
from envmatrix.results import RunFolder
from tests.synthetic import make_design, make_plan


class Client(SlurmClient):
    def __init__(self):
        super().__init__()
        self.cancelled = []

    def delete(self, jobs):
        self.cancelled += jobs


def launcher(tmp_path, ask):
    design = make_design(make_plan(()))
    run = SimpleNamespace(design=design, created="2026", skipped={}, workloads={}, launcher_options={})
    made = SlurmLauncher(SimpleNamespace(run=run, folder=RunFolder(tmp_path)), Client(), said.append, ask)
    files = BlockFolder(tmp_path / "b0000")
    made._pending_blocks[0] = PendingBlock(0, {}, files, files.start_new_attempt(), job="7")
    return made, files


said: list = []


@pytest.mark.parametrize(("answer", "cancelled"), [(True, ["7"]), (False, [])])
def test_jobs_are_cancelled_only_when_the_answer_is_yes(tmp_path, answer, cancelled):
    asked = []
    made, files = launcher(tmp_path, lambda question: asked.append(question) or answer)
    made.interrupted()
    assert asked == ["cancel 1 Slurm job(s) of this run?"]
    assert made._client.cancelled == cancelled
    assert files.has_ended(1) is answer
    assert ("resume" in said[-1]) is not answer


def test_a_run_that_its_folder_stops_says_which_jobs_are_out_and_how_to_go_on(tmp_path):
    made, _ = launcher(tmp_path, None)
    error = StoreError("Read-only file system", where=Where(tmp_path), remedy="make it writable")
    stopped = _stopped_error(error, SimpleNamespace(run=SimpleNamespace(name="r1")), made)
    assert str(stopped) == (
        f"{tmp_path}: Read-only file system; the run was stopped, job(s) 7 go on in Slurm\n"
        "  -> make it writable; `envmatrix resume r1` continues; no finished trial is lost"
    )
    assert stopped.exit_code == ExitCode.NOTHING_RAN
    full = StoreError("No space left", remedy="free some space, then `envmatrix resume`")
    once = str(_stopped_error(full, SimpleNamespace(run=SimpleNamespace(name="r1")), made))
    assert once.endswith("free some space; `envmatrix resume r1` continues; no finished trial is lost")


def test_without_anybody_to_ask_jobs_go_on(tmp_path):
    made, _ = launcher(tmp_path, None)
    made.interrupted()
    assert made._client.cancelled == []
    assert "job(s) 7 go on in Slurm" in said[-1]
