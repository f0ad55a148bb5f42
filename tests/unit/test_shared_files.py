"""A shared file system that fails for a moment, or permanently, loses no finished trial."""

import errno
import fcntl
import json
import os
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from envmatrix.errors import StoreError
from envmatrix.launchers import block_orders
from envmatrix.launchers.block_files import BlockFolder, block_folders
from envmatrix.launchers.pending_block import PendingBlock
from envmatrix.launchers.slurm.client import SlurmClient
from envmatrix.launchers.slurm.launcher import SlurmLauncher
from envmatrix.matrix.model import Workload
from envmatrix.plan import Arm, Slot
from envmatrix.results import RunFolder, trial_of
from envmatrix.results.anonymize import read_anonymizer
from envmatrix.system.reading_with_retries import PAUSES_S
from envmatrix.trials.execution import load_record
from envmatrix.trials.images import load_supplied_images
from envmatrix.trials.user_program.file_digests import changed_file_texts, program_files
from tests.synthetic import make_design, make_plan

GOOD = {"job": "7", "node": "n1", "status": 0, "ooms": 0, "epoch": 5, "uptime": [10.0, 12.5], "limit": 60}
PASSING = [errno.ESTALE, errno.EIO, errno.EMFILE]
CALLS = ("open", "stat", "scandir")
REAL = {call: getattr(os, call) for call in CALLS}


@pytest.fixture
def slept(monkeypatch):
    pauses = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    return pauses


@pytest.fixture
def failing(monkeypatch, slept):
    """Return a function that makes system calls fail, so many times, for paths that end with a name."""

    def fail(name, number, times, calls=CALLS):
        left = dict.fromkeys(calls, times)

        def failed(call, real):
            def called(path, *arguments, **options):
                if isinstance(path, (str, os.PathLike)) and str(path).endswith(name) and left[call] > 0:
                    left[call] -= 1
                    raise OSError(number, os.strerror(number), str(path))
                return real(path, *arguments, **options)

            return called

        for call in calls:
            monkeypatch.setattr(os, call, failed(call, REAL[call]))

    def stop():
        for call, real in REAL.items():
            monkeypatch.setattr(os, call, real)

    fail.stop = stop
    return fail


@pytest.fixture
def block(tmp_path):
    files = BlockFolder(tmp_path / "b0000")
    assert files.start_new_attempt() == 1
    (files.path / "t1").mkdir()
    (files.path / "t1" / "end").write_text(json.dumps(GOOD))
    return files


@pytest.mark.parametrize("number", PASSING)
def test_an_end_that_cannot_be_read_for_a_moment_is_read_again(block, failing, number):
    failing("t1/end", number, times=2)
    assert block.end("t1").node == "n1"


@pytest.mark.parametrize("number", PASSING)
def test_an_end_that_cannot_be_read_at_all_stops_the_run_names_it_and_stays(block, failing, slept, number):
    failing("t1/end", number, times=10**6)
    for read in (block.end, block.set_aside_if_damaged):
        with pytest.raises(StoreError, match="t1/end") as caught:
            read("t1")
        assert "envmatrix resume" in caught.value.remedy
    assert slept == [*PAUSES_S, *PAUSES_S]
    failing.stop()
    assert json.loads((block.path / "t1" / "end").read_text()) == GOOD


@pytest.mark.parametrize("number", PASSING)
def test_an_attempt_that_cannot_be_read_is_not_taken_for_none(block, failing, number):
    failing("attempt", number, times=2)
    assert block.attempt == 1
    failing("attempt", number, times=10**6)
    with pytest.raises(StoreError, match="attempt"):
        block.start_new_attempt()


@pytest.mark.parametrize("number", PASSING)
def test_blocks_that_cannot_be_listed_are_not_taken_for_none(block, failing, number):
    root = block.path.parent
    failing(root.name, number, times=2)
    assert block_folders(root) == [block]
    failing(root.name, number, times=10**6)
    with pytest.raises(StoreError, match=root.name):
        block_folders(root)
    assert block_folders(root / "none") == []


def pending_block_in(folder, block):
    """Return a launcher with one submitted trial, its pending block, and the list of messages."""
    said = []
    run = SimpleNamespace(design=make_design(make_plan(())), created="2026", skipped={}, workloads={},
                          launcher_options={})  # fmt: skip
    made = SlurmLauncher(SimpleNamespace(run=run, folder=RunFolder(folder)), SlurmClient(), said.append, None)
    slot = Slot("t1", 0, 0, Arm("a", "a", "a", "w", "local", None), 0)
    pending = made._pending_blocks[0] = PendingBlock(0, {"t1": slot}, block, 1, job="7")
    return made, pending, said


def test_a_launcher_says_what_it_set_aside_and_a_trial_that_cannot_be_read_is_still_out(tmp_path, block, failing):
    made, pending, said = pending_block_in(tmp_path, block)
    failing("t1/end", errno.ESTALE, times=10**6)
    with pytest.raises(StoreError, match="t1/end"):
        list(made._collect(pending, None))
    assert "t1" in pending.slots
    assert said == []


def test_a_damaged_end_is_set_aside_and_told(tmp_path, block):
    made, pending, said = pending_block_in(tmp_path, block)
    (block.path / "t1" / "end").write_text("{half")
    assert list(made._collect(pending, None)) == []
    assert said == [f"what t1 left is damaged and lies in {block.path / 't1.damaged1'} now; it runs again"]
    assert (block.path / "t1.damaged1" / "end").read_text() == "{half"


def test_a_trial_that_says_it_was_stopped_runs_again_three_times_at_most(tmp_path, block, monkeypatch):
    made, pending, said = pending_block_in(tmp_path, block)
    seen = {"schema": 1, "evidence": {"system": {"stops": 1}}}
    stopped = trial_of(pending.slots["t1"], "invalid", "it was stopped", document=seen)
    monkeypatch.setattr(block_orders, "trial_from_files", lambda *_: stopped)
    for number in (1, 2, 3):
        assert list(made._collect(pending, None)) == []
        assert said.pop() == f"t1 was paused while it ran: running it again ({number} of 3 times)"
        (block.path / "t1").mkdir()
        (block.path / "t1" / "end").write_text(json.dumps(GOOD))
    assert list(made._collect(pending, None)) == [replace(stopped, repeated=3)]


@pytest.mark.parametrize("number", PASSING)
def test_a_record_that_cannot_be_read_makes_no_failed_trial(tmp_path, failing, number):
    record = tmp_path / "record.json"
    record.write_text('{"schema": 1}')
    failing("record.json", number, times=2)
    assert load_record(record)[0] == {"schema": 1}
    failing("record.json", number, times=10**6)
    with pytest.raises(StoreError, match=r"record\.json"):
        load_record(record)


@pytest.mark.parametrize("number", PASSING)
def test_a_program_that_cannot_be_read_was_not_edited(tmp_path, failing, number):
    (tmp_path / "train.py").write_text("print(1)\n")
    workload = Workload(name="w", command=("python", "train.py"), files=str(tmp_path), metric={"wall": True})
    began = program_files(workload)
    assert list(began) == ["train.py"]
    failing("train.py", number, times=2, calls=("open",))
    assert changed_file_texts(workload, began) == []
    failing("train.py", number, times=10**6, calls=("open",))
    with pytest.raises(StoreError, match=r"train\.py"):
        changed_file_texts(workload, began)


@pytest.mark.parametrize("number", PASSING)
@pytest.mark.parametrize("name", ["names.json", "images.json"])
def test_what_stands_beside_run_json_and_cannot_be_read_is_not_taken_for_none(tmp_path, failing, number, name):
    read = {
        "names.json": lambda: read_anonymizer(tmp_path / name),
        "images.json": lambda: load_supplied_images(RunFolder(tmp_path)),
    }
    assert not read[name]()
    (tmp_path / name).write_text({"names.json": '{"user": "me"}', "images.json": "[]"}[name])
    failing(name, number, times=2, calls=("stat",))
    assert read[name]() in ({}, read_anonymizer(tmp_path / "names.json"))
    failing(name, number, times=10**6, calls=("stat",))
    with pytest.raises(StoreError, match=name):
        read[name]()


@pytest.mark.parametrize("number", PASSING)
def test_a_folder_that_cannot_be_opened_or_has_no_locks_is_not_held_by_another_envmatrix(tmp_path, failing, number):
    failing(tmp_path.name, number, times=10**6, calls=("open",))
    with pytest.raises(StoreError, match=os.strerror(number)):
        RunFolder(tmp_path).lock()


def test_a_file_system_without_locks_is_called_that(tmp_path, monkeypatch):
    def refused(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refused)
    with pytest.raises(StoreError, match="No locks available") as caught:
        RunFolder(tmp_path).lock()
    assert "does not support locks" in caught.value.remedy
