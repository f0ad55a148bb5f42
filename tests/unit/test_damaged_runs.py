"""Damaged files of a run: each gives a message with its place, at once, and nothing is changed."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from envmatrix.__main__ import main
from envmatrix.build.lockfile import read_lock
from envmatrix.errors import InputError
from envmatrix.results import RunFolder
from envmatrix.system.regular_files import MAX_DOCUMENT_BYTES
from envmatrix.trials.execution import load_record
from tests.unit.test_extensions import MATRIX, PLUGINS, WORK

READERS = (
    ["resume", "one", "--quiet"], ["report", "one"], ["report", "one", "--json"], ["compare", "one", "two"],
    ["figure", "time", "one"],
)  # fmt: skip
DEEP = "[" * 9000 + "]" * 9000
DIGITS = "2" * 5000
PACK = ["pack", "one", "--output", "one.tar.gz"]


def pipe(file):
    os.mkfifo(file)


def device(file):
    file.symlink_to("/dev/zero")


def folder(file):
    file.mkdir()


def large(file):
    with file.open("wb") as opened:
        opened.truncate(MAX_DOCUMENT_BYTES * 2)
        opened.seek(0, os.SEEK_END)
        opened.write(b"\n")


KINDS = {
    pipe: "is not a regular file",
    device: "is not a regular file",
    folder: "is a folder, not a file",
    large: "MiB",
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return a project with a finished run, on an engine that takes no time."""
    place = tmp_path_factory.mktemp("finished")
    (place / "program").mkdir()
    (place / "program" / "work.py").write_text(WORK)
    (place / "matrix.yaml").write_text(MATRIX.replace("PROGRAM", "program"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv("ENVMATRIX_CACHE", str(place / "cache"))
        patch.syspath_prepend(str(PLUGINS))
        assert main(["bench", "--name", "one", "--quiet"]) == 0
    return place


@pytest.fixture
def project(finished, tmp_path, monkeypatch):
    """Return a copy of that project to damage; the cache is shared."""
    shutil.copytree(finished, tmp_path / "copy", ignore=shutil.ignore_patterns("cache"))
    shutil.copytree(finished / "results" / "one", other := tmp_path / "copy" / "results" / "two")
    change(other / "run.json", '"name": "one"', '"name": "two"')
    monkeypatch.chdir(tmp_path / "copy")
    monkeypatch.setenv("ENVMATRIX_CACHE", str(finished / "cache"))
    monkeypatch.setenv("TOY_PYTHON", sys.executable)
    monkeypatch.syspath_prepend(str(PLUGINS))
    return tmp_path / "copy"


def said_by(capsys, arguments, code=2):
    assert main(arguments) == code, (arguments, capsys.readouterr())
    out, err = capsys.readouterr()
    assert "bug in envmatrix" not in err
    return out + err


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["run.json", "trials.jsonl", "history.jsonl"])
@pytest.mark.parametrize(("put", "words"), KINDS.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_a_file_of_a_run_that_is_no_regular_one_is_refused_at_once(project, capsys, put, words, name):
    file = project / "results" / "one" / name
    file.unlink(missing_ok=True)
    put(file)
    for arguments in (*READERS, PACK):
        if put is large and name == "trials.jsonl" and arguments == PACK:
            continue  # packing does not read it: a long run may have that many trials
        text = said_by(capsys, arguments)
        assert words in text, (arguments, text)
        assert name in text
        assert "-> restore it from a copy" in text


@pytest.mark.parametrize("put", KINDS)
def test_other_files_that_are_no_regular_ones_are_none(project, capsys, put):
    place = project / "results" / "one"
    (place / "summary.json").unlink()
    put(place / "summary.json")
    assert "one" in json.loads(said_by(capsys, ["history", "--json"], 0))["unreadable"]
    put(project / "record.json")
    assert load_record(project / "record.json") == (None, None)
    put(project / "a.lock")
    with pytest.raises(Exception, match="cannot read the lock"):
        read_lock(project / "a.lock")
    put(project / "a.tar.gz")
    assert "a.tar.gz" in said_by(capsys, ["reproduce", "a.tar.gz"])
    (place / "matrix.yaml").unlink()
    put(place / "matrix.yaml")
    assert "matrix.yaml" in said_by(capsys, ["pack", "one", "--output", "one.tar.gz"])


def test_a_matrix_may_come_through_a_pipe_but_not_without_end(project, capsys):
    reader, writer = os.pipe()
    os.write(writer, (project / "matrix.yaml").read_bytes())
    os.close(writer)
    assert "is valid" in said_by(capsys, ["check", "--matrix", f"/dev/fd/{reader}"], 0)
    os.close(reader)
    assert "not a regular file" in said_by(capsys, ["check", "--matrix", "/dev/zero"])
    large(project / "large.yaml")
    assert "has more than 4 MiB" in said_by(capsys, ["check", "--matrix", "large.yaml"])


def change(file, old, new):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("name", "old", "new", "words"),
    [
        ("trials.jsonl", '"block":0', '"block":[]', "trials.jsonl:1:42: this line is not a trial: block"),
        ("trials.jsonl", '"trial":"', '"trial":[],"x":"', "trials.jsonl:1:21: this line is not a trial: trial"),
        ("trials.jsonl", '"outcome":"ok"', '"outcome":{}', "trials.jsonl:1:121: this line is not a trial: outcome"),
        ("trials.jsonl", '"wall_s":', '"wall_s":"x","was":', "trials.jsonl:1:161: this line is not a trial: wall_s"),
        ("trials.jsonl", '{"schema":2', '{"schema":2,,', "trials.jsonl:1:13: this line is damaged: Expecting"),
        ("trials.jsonl", '{"schema":2', '{"schema":' + DEEP, "trials.jsonl:1:9010: this line is damaged: nested"),
        ("trials.jsonl", '{"schema":2', '{"schema":' + DIGITS, "trials.jsonl:1:11: this line is damaged: a number"),
        (
            "run.json",
            '"created": ',
            '"[[[\\"": ' + DEEP + ', "created": ',
            "run.json:4:9010: not valid JSON: nested",
        ),
        (
            "run.json",
            '"created": ',
            '"at": 12, "c": ' + DIGITS + ', "created": ',
            "run.json:4:17: not valid JSON",
        ),
        ("run.json", '"image": {', '"other": {', "is missing"),
        (
            "run.json",
            '"name": "one"',
            '"name": "../one"',
            "run.json:3:10: this is not a run.json",
        ),
        ("run.json", '"arms": [', '"arms": [], "x": [', "(arms: the list is empty)"),
        ("run.json", '"workloads": {', '"workloads": {}, "x": {', "is missing, but the plan uses it)"),
        ("run.json", '"side": null', '"side": "old"', "old is missing, but an environment belongs to it"),
        ("run.json", '"memory_nodes": null', '"memory_nodes": "9-1"', "'9-1' is not a CPU list"),
        ("run.json", '"name": "control:', '"name": "other:', "run.json:"),
        ("run.json", '"created": ', '"created" ', "run.json:4:12: not valid JSON: Expecting ':' delimiter"),
    ],
)
def test_what_no_envmatrix_wrote_is_named_with_its_line(project, capsys, name, old, new, words):
    file = project / "results" / "one" / name
    change(file, old, new)
    before = file.read_bytes()
    for arguments in READERS:
        assert words in said_by(capsys, arguments), arguments
    assert file.read_bytes() == before


def test_an_environment_that_is_missing_is_named_by_what_goes_on_with_it(project, capsys):
    file = project / "results" / "one" / "run.json"
    document = json.loads(file.read_text())
    del document["environments"]["fast"]
    file.write_text(json.dumps(document))
    said = said_by(capsys, ["resume", "one", "--quiet"])
    assert "results/one/run.json: environment fast is missing, but the run's plan uses it" in said


def test_numbers_written_as_texts_are_understood(project, capsys):
    file = project / "results" / "one" / "trials.jsonl"
    first = json.loads(file.read_text().split("\n")[0])
    change(file, f'"wall_s":{first["wall_s"]}', f'"wall_s":"{first["wall_s"]}"')
    for arguments in (*READERS, PACK):
        said_by(capsys, arguments, 0)


def test_text_that_is_not_utf8_is_named_with_its_place(project, capsys):
    file = project / "results" / "one" / "run.json"
    file.write_bytes(file.read_bytes().replace(b'"created"', b'"cr\xff"'))
    assert "run.json:4:5: not UTF-8 text" in said_by(capsys, ["report", "one"])
    lock = project / "two.lock"
    lock.write_bytes("# é\n# é".encode() + b"\xff")
    with pytest.raises(
        InputError, match=r"two.lock:2:4: the lock file is not UTF-8 text\n  -> run `envmatrix lock` to lock again"
    ):
        read_lock(lock)


def test_a_line_that_was_cut_short_is_set_aside_however_long_it_is(tmp_path):
    run = RunFolder(tmp_path)
    whole, cut = b'{"schema":2}\n' * 3, b"x" * 200_000
    run.trials_file.write_bytes(whole + cut)
    assert run.remove_partial_lines()
    assert run.trials_file.read_bytes() == whole
    assert (tmp_path / "trials.half-written").read_bytes() == cut + b"\n"
    assert not run.remove_partial_lines()
    Path(run.trials_file).write_bytes(b"only a beginning")
    assert run.remove_partial_lines()
    assert run.trials_file.read_bytes() == b""
