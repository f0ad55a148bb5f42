"""Redaction of a run from before folders and hosts were replaced by placeholders."""

from __future__ import annotations

import json

import pytest

from envmatrix.__main__ import main
from envmatrix.api.reproduction_packs import pack_run
from envmatrix.errors import StoreError
from envmatrix.report.formats.json_file import summary_to_json
from envmatrix.report.report_data import summarise
from envmatrix.results import RunFolder
from envmatrix.results.redact import has_personal_names, redact
from envmatrix.system.regular_files import read_lines
from tests.committed import REFERENCES, RESULTS

AS_IT_WAS = {"{cache}": "/home/dora/.cache/envmatrix", "{home}": "/home/dora", '"node-1"': '"vm9"'}


@pytest.fixture
def old(tmp_path):
    """Return a real run with its original folder and host names."""
    for name in ("run.json", "trials.jsonl", "matrix.yaml"):
        text = b"".join(read_lines(RESULTS / "reference-xla" / name)).decode()
        for shown, real in AS_IT_WAS.items():
            text = text.replace(shown, real)
        (tmp_path / "old").mkdir(exist_ok=True)
        (tmp_path / "old" / name).write_text(text)
    return RunFolder(tmp_path / "old")


def figures(value):
    """Return everything in a document that is not text, in order."""
    if isinstance(value, dict):
        return [figures(entry) for entry in value.values()]
    return [figures(entry) for entry in value] if isinstance(value, list) else None if isinstance(value, str) else value


def strings(value):
    if isinstance(value, dict):
        return [*value, *(text for entry in value.values() for text in strings(entry))]
    if isinstance(value, list):
        return [text for entry in value for text in strings(entry)]
    return [value] if isinstance(value, str) else []


def test_what_names_somebody_is_told_before_it_is_packed(old, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("envmatrix.api.reproduction_packs.find_bench_copy", lambda _: tmp_path / "none")
    said = []
    pack_run(old.path, output=tmp_path / "a.tar.gz", progress=said.append)
    told = "the archive contains host names or user folders: run `envmatrix redact reference-xla`, then pack again"
    assert said[:1] == [told]
    redact(old)
    pack_run(old.path, output=tmp_path / "b.tar.gz", progress=said.append)
    assert said.count(told) == 1


@pytest.mark.parametrize("run", REFERENCES, ids=lambda path: path.name)
def test_no_committed_run_names_anybody(run):
    assert not has_personal_names(RunFolder(run))


def test_an_older_run_says_all_it_said_but_for_folders_and_hosts(old):
    before = {file: [json.loads(line) for line in file.read_text().splitlines()] for file in [old.trials_file]}
    said = json.loads(json.dumps(summary_to_json(summarise(old))))
    run, stamp = json.loads(old.run_file.read_text()), old.run_file.stat()
    assert redact(old) == ("trials.jsonl", "run.json")
    after = RunFolder(old.path)
    written = after.run_file.read_text() + after.trials_file.read_text()
    assert "dora" not in written
    assert "vm9" not in written
    told = json.loads(json.dumps(summary_to_json(summarise(after))))
    assert (said.pop("host"), told.pop("host")) == ("vm9", "node-1")
    assert told == said, "effects, intervals, outcomes, digests"
    lines = [json.loads(line) for line in after.trials_file.read_text().splitlines()]
    assert figures(lines) == figures(before[after.trials_file])
    pairs = zip(strings(before[after.trials_file]), strings(lines), strict=True)
    changed = {text for text, shown in pairs if text != shown}
    assert all("/home/dora" in text for text in changed)
    again = json.loads(after.run_file.read_text())
    assert figures(again) == figures(run)
    assert {key for key in run if again[key] != run[key]} <= {"host", "matrix_text", "command"}
    assert after.run_file.stat().st_mtime_ns == stamp.st_mtime_ns


def test_a_second_time_nothing_changes_also_without_what_the_names_stand_for(old):
    redact(old)
    lines = old.trials_file.read_bytes()
    assert redact(RunFolder(old.path)) == ()
    old.names_file.unlink()
    assert redact(RunFolder(old.path)) == ()
    assert old.trials_file.read_bytes() == lines


def test_a_damaged_line_is_named_and_all_stays(old):
    with old.trials_file.open("ab") as file:
        file.write(b'{"schema": 1, \n')
    before = (old.run_file.read_bytes(), old.trials_file.read_bytes())
    with pytest.raises(StoreError, match="damaged") as caught:
        redact(old)
    assert caught.value.where.line == len(before[1].splitlines())
    assert (old.run_file.read_bytes(), old.trials_file.read_bytes()) == before


def test_the_command_makes_the_reports_again(old, capsys):
    (old.path / "report.md").write_text("on vm9, as it was")
    assert main(["redact", str(old.path)]) == 0
    assert "trials.jsonl, run.json changed" in capsys.readouterr().out
    report = (old.path / "report.md").read_text()
    assert "node-1" in report
    assert "vm9" not in report
