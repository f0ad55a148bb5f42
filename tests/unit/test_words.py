"""Messages that once named the wrong cause, or no place."""

from __future__ import annotations

from pathlib import Path

import pytest

from envmatrix.__main__ import main
from envmatrix.engines.docker_client import APIError, docker_errors
from envmatrix.errors import EngineError
from envmatrix.images import suites
from envmatrix.process import Exit, Finished
from tests.unit.test_values import HEAD, REST

FULL = (
    "E: You don't have enough free space in /var/cache/apt/archives/.",
    "tar: base.tar: Wrote only 2048 of 10240 bytes",
    "dpkg: error processing archive: failed to write (No space left on device)",
    "mmdebstrap: write failed: Disk quota exceeded",
)


@pytest.mark.parametrize("said", FULL)
def test_a_full_disk_while_a_base_is_made_is_no_fault_of_the_mirror(said):
    done = Finished(("mmdebstrap",), Exit(1, 1.0), "", said + "\n")
    with pytest.raises(EngineError, match="no space left on device") as caught:
        suites._check(done, "no base", Path("/cache"))
    assert "mirror" not in str(caught.value)


def test_a_cpu_that_the_engine_lacks_is_said_in_words():
    with pytest.raises(EngineError, match="lacks a CPU that is asked for") as caught, docker_errors("running b0"):
        raise APIError("400 Client Error: Requested CPUs are not available - requested 999, available: 0-1")
    assert "--cpus" in caught.value.remedy


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("version: 2\na:\n  " + "[" * 900 + "]" * 900, "3:902: nested too deeply"),
        ("version: 2\na: " + "[" * 900 + "]" * 899 + "}", "2:903: nested too deeply"),
        ("version: 2\na: b\nc: é \x01\n", "3:6: this is not YAML"),
        ("version: 2\na: [b\nc: d\n", "3:2: this is not YAML"),
        ("version: 2\nébc: é\udcff\n", "2:7: not UTF-8 text"),
        ("version: 2\na: &b [*b]\n", "2:4: aliases make this endless"),
        ('version: 2\na: "\\ud83c"\n', "2:4: half a character"),
        ("version: 2\n[a]: b\n", "2:1: a key must be one word"),
        (HEAD + "requires: {f: r}}" + REST, "6:37: environment 'other': f=a requires f to be r"),
        (HEAD + "env: {A: b}}\n  g: {a: {env: {A: c}}}" + REST, "env"),
    ],
)
def test_a_mistake_in_a_matrix_has_its_place_and_what_to_do(tmp_path, monkeypatch, capsys, text, place):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.yaml").write_bytes(text.encode(errors="surrogateescape"))
    assert main(["check"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("envmatrix: matrix.yaml:")
    assert place in said
    assert "\n  -> " in said


def test_without_a_gpu_that_is_what_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENVMATRIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("envmatrix.trials.experiment.has_gpu", lambda: False)
    (tmp_path / "matrix.yaml").write_text("""version: 2
factors: {torch: {host: {interpreter: /bin/false}}}
environments: {baseline: {}}
workloads: {w: {command: [python, x.py]}}
designs: {default: {environments: [baseline], workloads: w, gpus: all}}
""")
    (tmp_path / "x.py").touch()
    assert main(["bench", "--engine", "local", "--quiet"]) == 4
    assert "design 'default' asks for GPUs, and this machine has none" in capsys.readouterr().err
