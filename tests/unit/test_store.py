"""No measurement is ever lost, and unreadable lines are reported with their place."""

import errno
import gzip
import json
import os
import re
import resource
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envmatrix.errors import StoreError
from envmatrix.results import Change, RunFolder, trial_of, write_user_path, write_whole
from envmatrix.system import atomic_files
from envmatrix.system.atomic_files import append_line, retry_writes
from envmatrix.system.progress import silent
from tests.synthetic import MATRIX_TEXT, make_plan, make_run

PLAN = make_plan(("a",))
RUN = make_run(PLAN, "r")

BROKEN_TRIAL = """{"schema": 2, "trial": "t", "block": 0, "position": 0, "environment": "e", "workload": "w",
"engine": "local", "outcome": "ok", %s}""".replace("\n", " ")


@pytest.fixture
def folder(tmp_path):
    made = RunFolder(tmp_path / "r")
    made.create(RUN, MATRIX_TEXT)
    return made


def trials(number):
    return [trial_of(slot, "ok", wall_s=1.0, document={"x": [1, 2]}) for slot in PLAN.block(0)][:number]


def test_a_run_comes_back_as_it_was_written(folder):
    assert folder.load_for_resume() == RUN
    assert folder.load().host.name == "node-1"


def test_trials_come_back_in_order(folder):
    for trial in trials(3):
        folder.append(trial)
    assert list(folder.trials(PLAN)) == trials(3)


def test_compressed_trials_are_read_as_they_were_and_become_plain_before_anything_is_appended(folder):
    for trial in trials(2):
        folder.append(trial)
    plain = folder.trials_file.read_bytes()
    packed = folder.trials_file.with_name("trials.jsonl.gz")
    packed.write_bytes(gzip.compress(plain))
    folder.trials_file.unlink()
    assert list(folder.trials(PLAN)) == trials(2)
    folder.remove_partial_lines()
    assert folder.trials_file.read_bytes() == plain
    assert not packed.exists()
    folder.append(trials(3)[2])
    assert list(folder.trials(PLAN)) == trials(3)


@pytest.mark.parametrize("spoil", [lambda body: body[:-20], lambda body: b"x" + body, lambda body: body[:30] + b"xxxx"])
def test_damaged_compressed_trials_are_reported_and_left(folder, spoil):
    for trial in trials(2):
        folder.append(trial)
    packed = folder.trials_file.with_name("trials.jsonl.gz")
    packed.write_bytes(spoil(gzip.compress(folder.trials_file.read_bytes())))
    folder.trials_file.unlink()
    for read in (lambda: list(folder.trials(PLAN)), folder.remove_partial_lines):
        with pytest.raises(StoreError, match=r"trials\.jsonl\.gz is damaged"):
            read()
    assert packed.exists()
    assert not folder.trials_file.exists()


def test_a_half_written_last_line_is_set_aside_and_nothing_else_is_touched(folder):
    for trial in trials(3):
        folder.append(trial)
    whole = folder.trials_file.read_bytes()
    for cut in range(1, len(whole) - whole[:-1].rfind(b"\n") - 1):
        folder.trials_file.write_bytes(whole[:-cut])
        assert list(folder.trials(PLAN)) == trials(2)
        assert folder.remove_partial_lines()
        assert not folder.remove_partial_lines()
        assert list(folder.trials(PLAN)) == trials(2)
        folder.append(trials(3)[2])
        assert folder.trials_file.read_bytes() == whole


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{}", "no schema number"),
        ("[1]", "no schema number"),
        ('{"schema": 99}', "newer than this version of envmatrix"),
        ('{"schema": 2}', "not a trial"),
        (BROKEN_TRIAL % '"node": [1]', "not a trial: node: must be text"),
        (BROKEN_TRIAL % '"record": [1]', "not a trial: record: must"),
        (BROKEN_TRIAL % '"outcome": "fine"', "not a trial: outcome: must be 'ok'"),
        ("{", "damaged"),
        ("\x00\x00", "damaged"),
        ("[" * 100_000, "damaged"),
    ],
)
def test_a_bad_line_is_named_with_its_number(folder, line, words):
    folder.append(trials(1)[0])
    with folder.trials_file.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(StoreError, match=words) as caught:
        list(folder.trials(PLAN))
    assert "trials.jsonl:2" in str(caught.value)


@pytest.mark.parametrize(
    "body",
    ["", "{", "[]", "{}", '{"schema": 1}', '{"schema": 2}', '{"schema": 1, "plan": 3}', '{"schema": true}', "\ud800"],
)
def test_a_bad_run_file_is_named(folder, body):
    folder.run_file.write_bytes(body.encode(errors="surrogatepass"))
    with pytest.raises(StoreError, match=r"run\.json"):
        folder.load()


WRONG = [
    (("host",), [], "host: must contain"),
    (("host", "colour"), "red", "host.colour: Unexpected keyword argument"),
    (("skipped",), None, "skipped: must contain"),
    (("environments",), {"baseline": 3}, "environments.baseline: must contain"),
    (("environments", "a", "levels", "malloc"), ["x"], "environments.a.levels.malloc: must be text"),
    (("workloads",), {"cnn": 1}, "workloads.cnn: must contain"),
    (("design", "cumulative"), [[]], r"design.cumulative\[0\]: must be text"),
    (("design", "min_blocks"), {}, "design.min_blocks: must be a whole number"),
    (("design", "min_blocks"), 1, "design.min_blocks: must be at least 2"),
    (("design", "margin"), -1, "design.margin: '-1' must lie between"),
    (("design", "margin"), float("nan"), "design.margin: 'nan' must lie between"),
    (("design", "budget"), 10**400, "design.budget: .* is no duration"),
    (("design", "seed"), "one", "design.seed: must be a whole number"),
    (("design", "colour"), "red", "design.colour: is not a known key"),
    (("arms", 0, "name"), ["x"], r"arms\[0\].name: must be text"),
    (("command",), "ls", "command: must be a list"),
    (("colour",), "red", "colour: is not a known key"),
]


@pytest.mark.parametrize(("path", "value", "words"), WRONG)
def test_what_is_wrong_in_a_run_file_is_named_with_its_line(folder, path, value, words):
    body = json.loads(folder.run_file.read_text())
    part = body
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    text = json.dumps(body, indent=1)
    folder.run_file.write_text(text)
    with pytest.raises(StoreError, match=words) as caught:
        folder.load()
    line = text.split("\n")[caught.value.where.line - 1]
    named = next(key for key in reversed(path) if isinstance(key, str))
    assert f'"{named}"' in line or f'"{named}"' in text.split("\n")[caught.value.where.line - 2]


def test_a_run_of_an_older_schema_is_refused_with_its_place(folder):
    text = folder.run_file.read_text().replace('"schema": 2', '"schema": 1', 1)
    folder.run_file.write_text(text)
    with pytest.raises(StoreError, match="schema 1 is older than this version of envmatrix can read"):
        folder.load()


def test_nothing_stands_twice_in_a_run_file(folder):
    body = json.loads(folder.run_file.read_text())
    assert "plan" not in body
    assert "matrix_text" not in body
    assert "history" not in body
    assert folder.matrix() == MATRIX_TEXT


def test_a_run_whose_matrix_is_gone_says_so(folder):
    folder.matrix_file.unlink()
    with pytest.raises(StoreError, match="the matrix of this run is missing"):
        folder.matrix()


CHANGES = [
    Change(at="1", envmatrix="0", budget=600.0, was={"budget": "300"}),
    Change(at="2", envmatrix="0", target=0.1),
]


def test_what_changed_later_is_laid_over_the_run_in_order(folder):
    before = folder.run_file.read_bytes()
    for change in (*CHANGES, Change(at="3", envmatrix="0", budget=900.0, was={"budget": "600"})):
        folder.change(change)
    run = folder.load()
    assert (run.plan.budget_s, run.plan.target, run.design.budget) == (900.0, 0.1, 900.0)
    assert [change.at for change in run.history] == ["1", "2", "3"]
    assert run.history[2].text() == "3: budget 600 to 900 (envmatrix 0)"
    assert folder.run_file.read_bytes() == before


def test_a_change_that_an_older_envmatrix_wrote_is_read(folder):
    folder.history_file.write_text(
        '{"schema": 2, "at": "1", "envmatrix": "0.2.0", "budget": 600.0, "target": null, "max_blocks": null, '
        '"launcher_options": null, "looked": null, "files": {"torch@docker": "sha256:1"}, "was": {}, "command": []}\n'
    )
    assert folder.load().plan.budget_s == 600.0


def test_a_half_written_change_is_none_and_the_next_one_is_whole(folder):
    for change in CHANGES:
        folder.change(change)
    whole = folder.history_file.read_bytes()
    for cut in range(1, len(whole) - whole[:-1].rfind(b"\n") - 1):
        folder.history_file.write_bytes(whole[:-cut])
        assert folder.load().history == (CHANGES[0],)
    folder.change(CHANGES[1])
    assert folder.load().history == tuple(CHANGES)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "damaged"),
        ("[]", "no schema number"),
        ('{"schema": 3}', "newer than this version of envmatrix"),
        ('{"schema": 2}', "not a change of a run: at: is missing"),
        ('{"schema": 2, "at": "1", "envmatrix": "0", "budget": -1}', "not a change of a run: budget"),
        (
            '{"schema": 2, "at": "1", "envmatrix": "0", "colour": 1}',
            "not a change of a run: colour: is not a known key",
        ),
    ],
)
def test_a_bad_change_is_named_with_its_line(folder, line, words):
    folder.change(CHANGES[0])
    with folder.history_file.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(StoreError, match=words) as caught:
        folder.load()
    assert "history.jsonl:2" in str(caught.value)


def test_a_second_writer_is_refused(folder):
    folder.lock()
    with pytest.raises(StoreError, match="another envmatrix"):
        RunFolder(folder.path).lock()


def test_a_disk_that_takes_no_more_leaves_the_old_file_whole(tmp_path):
    target = tmp_path / "file"
    write_whole(target, "old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(StoreError, match="File too large"):
            write_whole(target, "new" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_line_is_on_disk_when_it_counts_as_recorded_and_stands_once_if_the_disk_refused_at_first(
    tmp_path, monkeypatch
):
    synced = []

    def fsync(handle):
        synced.append(os.fstat(handle).st_size)
        if len(synced) == 1:  # the line is in the file, but perhaps not on the disk
            raise OSError(errno.ESTALE, "gone for a moment")

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(atomic_files, "_PAUSE_S", 0.0)
    with retry_writes(silent):
        append_line(tmp_path / "lines", "first")
    append_line(tmp_path / "lines", "second")
    assert (tmp_path / "lines").read_text() == "first\nsecond\n"
    assert synced == [6, 6, 13]


def mount(*words):
    if subprocess.run(["mount", *words], capture_output=True, check=False).returncode:
        pytest.skip("nothing can be mounted here")


def test_on_a_read_only_file_system_a_run_can_be_read_and_what_cannot_be_written_is_told(tmp_path):
    mount("-t", "tmpfs", "tmpfs", str(tmp_path))
    try:
        kept = RunFolder(tmp_path / "run")
        kept.create(RUN, MATRIX_TEXT)
        kept.append(trials(1)[0])
        mount("-o", "remount,ro", str(tmp_path))
        with pytest.raises(StoreError, match=r"(?s)trials.jsonl: Read-only file system.*make it writable"):
            kept.append(trials(2)[1])
        assert [trial.trial for trial in kept.trials(PLAN)] == [trials(1)[0].trial]
        told = []

        def mend(line):
            told.append(line)
            mount("-o", "remount,rw", str(tmp_path))

        with retry_writes(mend):
            kept.append(trials(2)[1])
        assert re.match(r".*trials.jsonl: Read-only file system; retrying for at most 120 s", told[0])
        assert "is writable again" in told[1]
        assert [trial.trial for trial in kept.trials(PLAN)] == [trial.trial for trial in trials(2)]
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def test_where_a_person_said_a_link_stays_one_and_a_pipe_a_pipe(tmp_path):
    real, link, pipe = tmp_path / "real", tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(real)
    os.mkfifo(pipe)
    write_user_path(link, "new")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_user_path(pipe, "new")
    assert (link.is_symlink(), real.read_text()) == (True, "new")
    assert (pipe.is_fifo(), os.read(reader, 9)) == (True, b"new")
    os.close(reader)


def test_a_folder_is_no_file_to_write_to(tmp_path):
    with pytest.raises(StoreError) as caught:
        write_user_path(tmp_path, "new")
    assert caught.value.remedy == "it is a folder: name a file"


def test_a_link_in_a_run_from_elsewhere_leads_no_report_out_of_it(tmp_path):
    outside, report = tmp_path / "outside", tmp_path / "report.md"
    outside.write_text("mine")
    report.symlink_to(outside)
    write_whole(report, "new")
    assert (outside.read_text(), report.read_text(), report.is_symlink()) == ("mine", "new", False)


@given(reason=st.text(), name=st.text(min_size=1))
def test_any_text_survives_a_line(tmp_path_factory, reason, name):
    folder = RunFolder(tmp_path_factory.mktemp("run"))
    trial = trial_of(PLAN.block(0)[0], "failed", reason, node=name)
    folder.append(trial)
    assert folder.trials_file.read_bytes().count(b"\n") == 1
    assert list(folder.trials(PLAN)) == [trial]


def test_what_a_program_said_need_not_be_unicode(folder):
    """A file name that is not UTF-8 becomes a lone surrogate, which strict JSON parsers refuse."""
    trial = trial_of(PLAN.block(0)[0], "ok", "\udcff", document={"evidence": {"argv": ["\udcfe"], "n": float("inf")}})
    folder.append(trial)
    assert list(folder.trials(PLAN)) == [trial]


def test_unknown_keys_of_the_same_schema_are_passed_over(folder):
    folder.append(trials(1)[0])
    line = json.loads(folder.trials_file.read_text())
    folder.trials_file.write_text(json.dumps({**line, "later": 1}) + "\n")
    assert list(folder.trials(PLAN)) == trials(1)


def test_a_line_written_again_loses_nothing_of_a_record_that_cannot_all_be_understood(tmp_path):
    odd = {"schema": "x", "metrics": {"a": [1], "b": 2}, "evidence": {"cpu": 3, "new": {"key": 1}}, "later": 1.0}
    folder = RunFolder(tmp_path)
    folder.append(trial_of(PLAN.block(0)[0], "ok", document=odd))
    (read,) = folder.trials(PLAN)
    assert read.line() + "\n" == folder.trials_file.read_text()
    assert read.document == odd
    assert read.record.metrics == {"b": 2}
    assert (read.record.version, read.record.evidence.cpu) == (None, None)
