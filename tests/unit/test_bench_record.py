"""A record is written whole or not at all, and a target that is not a regular file is not replaced."""

import errno
import json
import os
import sys

import pytest

from bench import command_line, record

DOCUMENT = {"schema": 1, "x": None}


def test_a_record_is_written_whole_and_for_everybody_to_read(tmp_path):
    target = tmp_path / "record.json"
    record.write(DOCUMENT, str(target))
    assert json.loads(target.read_text()) == DOCUMENT
    assert target.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [target]


def test_a_record_that_cannot_be_written_to_its_end_leaves_the_old_one(tmp_path):
    record.write({"a": 1}, str(tmp_path / "record.json"))
    with pytest.raises(ValueError, match="not JSON compliant"):
        record.write({"a": 2, "b": float("nan")}, str(tmp_path / "record.json"))
    assert json.loads((tmp_path / "record.json").read_text()) == {"a": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["record.json"]


def test_a_link_stays_one_and_a_pipe_a_pipe(tmp_path):
    real, link, pipe = tmp_path / "real", tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(real)
    os.mkfifo(pipe)
    record.write(DOCUMENT, str(link))
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    record.write(DOCUMENT, str(pipe))
    assert (link.is_symlink(), json.loads(real.read_text())) == (True, DOCUMENT)
    assert (pipe.is_fifo(), json.loads(os.read(reader, 99))) == (True, DOCUMENT)
    os.close(reader)


def test_whoever_reads_a_record_may_go_and_nothing_is_said(monkeypatch, capsys):
    def gone(_):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setitem(command_line._COMMANDS, "evidence", (gone, command_line._add_record, ""))
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    assert command_line.main(["evidence"]) == 0
    print("what is left to flush")
    assert capsys.readouterr() == ("", "")
