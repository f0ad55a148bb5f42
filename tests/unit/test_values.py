"""`check` refuses values that a later command would refuse, with line and column."""

from __future__ import annotations

from pathlib import Path

import pytest

from envmatrix.__main__ import main
from envmatrix.errors import InputError
from envmatrix.matrix.parse import MatrixError, parse
from envmatrix.matrix.yaml_positions import parse_yaml

HEAD = "version: 2\nfactors:\n  f:\n    r: {}\n    a: {"
REST = """
environments: {baseline: {}, other: {f: a}}
workloads: {w: {command: [python, x.py]}}
designs: {default: {environments: [other], workloads: w}}
"""


def check(tmp_path, monkeypatch, capsys, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.yaml").write_text(text)
    (tmp_path / "x.py").touch()
    code = main(["check"])
    return code, "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("level", "words"),
    [
        ('cpus: "{{x}}"', "cpus: unknown template {x}; known: logical_cpus"),
        ("cpus: a-b", "cpus: 'a-b' is not a CPU list, such as 0-3,8"),
        ('cpus: "99998"', "environment 'other': CPU 99998"),
        ("memory_nodes: '99998'", "environment 'other': memory node 99998"),
        ("memory_nodes: x", "memory_nodes: 'x' is not a CPU list"),
        ("srun: --cpu-bind=core", "srun: 'core' is no value of srun's --cpu-bind"),
        ("srun: [--mem-bind=local, --cpu-bind=map_cpu:x]", "'map_cpu:x' is no value of srun's --cpu-bind"),
        ("srun: --ntasks=4", "'--ntasks=4' is not one of srun's options --cpu-bind, --cpus-per-task"),
        ("srun: --cpu-bind=cores;id", "'cores;id' is no value of srun's --cpu-bind"),
        ("srun: [--cpu-bind=cores, --cpu-bind=threads]", "srun: --cpu-bind is there twice"),
        ("cpu_quota: 0", "cpu_quota: '0' is not a number of CPUs of at least 0.01, such as 1 or 1.5"),
        ("cpu_quota: half", "cpu_quota: 'half' is not a number of CPUs"),
        ("cpu_quota: nan", "cpu_quota: 'nan' is not a number of CPUs"),
        ("suite: --help", "suite: '--help' is not a Debian suite"),
        ("suite: 'Bookworm '", "suite: 'Bookworm ' is not a Debian suite"),
        ("base: --x", "base: '--x' is not an image"),
        ("base: 'not an image'", "base: 'not an image' is not an image"),
        ("python: new", "python: 'new' is not a Python version, such as 3.11 or 3.13t"),
        ("interpreter: ''", "interpreter: '' is not valid"),
        ("modules: [ok/1, '-v; rm']", "'-v; rm' is not the name of a module"),
        ("index: --trusted-host=x", "index: '--trusted-host=x' is not valid"),
        ("requirements: [--pre]", "'--pre' is not a valid requirement, such as numpy==2.3.5"),
        ("requirements: [numpy, 'tor ch==1']", "'tor ch==1' is not a valid requirement"),
        (
            "requirements: ['torch @@@']",
            "'torch @@@' is not a valid requirement, such as numpy==2.3.5: '@@' is not a URL",
        ),
        ("apt: --help", "'--help' is not a Debian package"),
        ("apt: 'a1 | b c'", "'b c' is not a Debian package"),
        ('preload: ["a\\nb.so"]', "must be a library's file name"),
        ('env: {A: "\\ud83c"}', "half a character (a lone surrogate)"),
        ('env: {"\\udf89": a}', "half a character (a lone surrogate)"),
    ],
)
def test_a_value_that_cannot_be_is_refused_where_it_stands(tmp_path, monkeypatch, capsys, level, words):
    code, said = check(
        tmp_path, monkeypatch, capsys, f"version: 2\nfactors:\n  f:\n    r: {{}}\n    a: {{{level}}}{REST}"
    )
    assert code == 2
    assert words in said
    assert "matrix.yaml:5:" in said


def test_cpus_of_a_design_that_this_machine_lacks_are_refused_where_they_stand(tmp_path, monkeypatch, capsys):
    rest = REST.replace("workloads: w}", "workloads: w, cpus: '99998'}")
    code, said = check(tmp_path, monkeypatch, capsys, f"version: 2\nfactors: {{f: {{r: {{}}, a: {{}}}}}}{rest}")
    assert code == 2
    assert "matrix.yaml:5:64: design 'default': CPU 99998" in said


@pytest.mark.parametrize(
    "level",
    ["cpus: '{physical_cpu_list}'", "cpus: '0'", "memory_nodes: '0'", "suite: sid", "python: '3.11'", "apt: a1 | b2",
     "requirements: ['numpy>=2', 'a[b]==1; python_version>\"3\"', ./x.whl]",
     "requirements: ['a @ https://h/a.whl', 'a @ git+ssh://h/a', 'a @ file:///a.whl']",
     "base: debian:x@sha256:0",
     "interpreter: ~/venv/bin/python", "index: https://h/simple", 'env: {A: "\\ud83c\\udf89"}'],
)  # fmt: skip
def test_a_value_that_can_be_is_taken(tmp_path, monkeypatch, capsys, level):
    code, said = check(
        tmp_path, monkeypatch, capsys, f"version: 2\nfactors:\n  f:\n    r: {{}}\n    a: {{{level}}}{REST}"
    )
    assert code == 0, said


def test_a_character_that_json_writes_in_two_halves_is_one():
    assert parse_yaml('a: "\\ud83c\\udf89"', Path("m.yaml")).data == {"a": "\N{PARTY POPPER}"}
    with pytest.raises(InputError, match=r"m\.yaml:1:4: half a character"):
        parse_yaml('a: "\\ud83c"', Path("m.yaml"))


def test_a_matrix_with_such_a_character_goes_through_every_file(tmp_path, monkeypatch, capsys):
    text = 'version: 2\nfactors: {f: {r: {}, a: {description: "\\ud83c\\udf89", env: {A: "\\ud83c\\udf89"}}}}' + REST
    assert check(tmp_path, monkeypatch, capsys, text)[0] == 0
    assert main(["definitions", "--output", "out"]) == 0
    assert main(["plan"]) == 0
    assert "\N{PARTY POPPER}" in (tmp_path / "out" / "other.Dockerfile").read_text(encoding="utf-8")
    with pytest.raises(MatrixError):
        parse(text.replace("version: 2", "version: 9"), Path("m.yaml"))
