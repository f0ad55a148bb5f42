"""exec, evidence and export use what was measured: the program's own Python, even without a matrix.yaml."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from envmatrix.__main__ import main
from tests.local.conftest import Project

pytestmark = [pytest.mark.local, pytest.mark.timeout(300)]

PROGRAM = """
import os, sys, only_here
print("ran with", sys.executable, os.environ.get("OMP_NUM_THREADS"), os.environ.get("CORPUS"))
sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Benchmark a program that needs a module of its own Python, in a folder without a matrix.yaml."""
    made = Project(tmp_path_factory.mktemp("measured"))
    (made.folder / "matrix.yaml").unlink()
    (made.folder / "train.py").write_text(PROGRAM)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", made.folder / "venv"], check=True)
    packages = next((made.folder / "venv").glob("lib/python3*/site-packages"))
    (packages / "only_here.py").write_text("")
    words = ("bench", "--name", "mine", "--environments", "one-thread", "--max-blocks", "1", "--quiet")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CORPUS", "a b")
        done = made.run(*words, "--pass-env", "CORPUS", "--", "venv/bin/python", "train.py")
    assert done.returncode == 0, done.stderr
    return made


class Copy:
    """A copy of that folder, in which commands run in this process: starting one takes seconds."""

    def __init__(self, folder, python, capfd):
        self.folder, self.python, self._capfd = folder, python, capfd

    def run(self, *words):
        self._capfd.readouterr()
        code = main(words)
        return subprocess.CompletedProcess(words, code, *self._capfd.readouterr())


@pytest.fixture
def own(measured, tmp_path, monkeypatch, capfd):
    """Return a copy of the folder; its run still names the original program and Python."""
    monkeypatch.setenv("CORPUS", "a b")
    monkeypatch.chdir(tmp_path)
    shutil.copytree(measured.folder / "results", tmp_path / "results")
    shutil.copy(measured.folder / "train.py", tmp_path)
    return Copy(tmp_path, f"{measured.folder}/venv/bin/python", capfd)


def said(own):
    return f"ran with {own.python} 1 a b"


def test_what_was_measured_is_run_looked_at_and_exported(own):
    done = own.run("exec", "one-thread", "--", "python", "train.py")
    assert (done.returncode, done.stdout.strip()) == (0, said(own)), done.stderr
    assert done.stderr == "using one-thread of run mine, your newest run (--run or --matrix picks another)\n"
    failed = own.run("exec", "one-thread", "--run", "mine", "--", "python", "train.py", "9")
    assert (failed.returncode, failed.stdout.strip(), failed.stderr) == (9, said(own), "")
    seen = own.run("evidence", "one-thread", "--json")
    assert seen.returncode == 0, seen.stderr
    evidence = json.loads(seen.stdout)["evidence"]
    assert evidence["system"]["executable"] == own.python
    assert evidence["variables"]["OMP_NUM_THREADS"] == "1"
    assert "export OMP_NUM_THREADS=1" in own.run("export", "one-thread").stdout
    script = own.folder / "job.sh"
    assert own.run("export", "one-thread", "--as", "slurm", "--output", str(script)).returncode == 0
    job = subprocess.run(["sh", str(script)], cwd="/", capture_output=True, text=True, check=False)
    assert (job.returncode, job.stdout.strip()) == (0, said(own)), job.stderr


def test_which_matrix_is_used_is_said_unless_it_is_the_one_here(own, tmp_path_factory, monkeypatch):
    (own.folder / "matrix.yaml").write_text(
        "version: 2\nfactors: {threads: {default: {}, one: {env: {OMP_NUM_THREADS: '1'}}}}\n"
        "environments: {baseline: {}, one-thread: {threads: one}}\n"
        "workloads: {w: {command: [python, train.py], metric: {wall: true}}}\n"
        "designs: {default: {environments: [one-thread], workloads: w}}\n"
    )
    here = own.run("export", "one-thread")
    assert here.stderr.startswith(
        "using one-thread of matrix.yaml; your newest run used another Python (to use that: --run mi"
    )
    assert own.run("exec", "one-thread", "--run", "mine", "--", "python", "train.py").stdout.strip() == said(own)
    (own.folder / "matrix.yaml").write_text((own.folder / "results" / "mine" / "matrix.yaml").read_text())
    same = own.run("export", "one-thread")
    assert (same.returncode, same.stderr) == (0, "")
    monkeypatch.chdir(tmp_path_factory.mktemp("empty"))
    for words in (["list", "environments"], ["plan", "quick"], ["export", "glibc-tuned"]):
        assert "using the matrix and the PyTorch that come with envmatrix" in own.run(*words).stderr.splitlines()[0], (
            words
        )


def test_what_cannot_be_had_of_a_run_is_told_with_what_to_do(own):
    run = own.folder / "results" / "mine" / "run.json"
    whole = run.read_text()
    for words in (["export", "warp"], ["exec", "warp", "--", "true"], ["evidence", "warp", "--run", "mine"]):
        done = own.run(*words)
        assert done.returncode == 2
        assert "run mine has no environment 'warp'" in done.stderr
        assert "; or take it from another matrix: `--matrix FILE`" in done.stderr
    near = own.run("export", "one-thraed").stderr
    assert "did you mean 'one-thread'? Or take it from another matrix: `--matrix FILE`" in near
    run.write_text(whole.replace("venv/bin/python", "gone/bin/python"))
    for words in (
        ["export", "one-thread"],
        ["exec", "one-thread", "--", "python", "train.py"],
        ["evidence", "one-thread"],
    ):
        done = own.run(*words)
        assert done.returncode == 4, done.stderr
        assert "environment one-thread of run mine is not available on this machine" in done.stderr
        assert "gone/bin/python" in done.stderr
        assert "`--matrix FILE`" in done.stderr
    run.write_text(whole)
    (run.parent / "matrix.yaml").unlink()  # run.json has what was measured
    assert own.run("export", "one-thread").returncode == 0
    run.write_text(whole[:100])
    for words in (["export", "one-thread"], ["exec", "one-thread", "--run", "mine", "--", "true"]):
        done = own.run(*words)
        assert done.returncode == 2
        assert "run.json" in done.stderr
        assert "Traceback" not in done.stderr
    assert "no run 'nope'" in own.run("evidence", "one-thread", "--run", "nope").stderr
    (own.folder / "results" / "empty").mkdir()
    assert "results/empty is not a run: it has no run.json" in own.run("export", "one-thread", "--run", "empty").stderr
    (own.folder / "matrix.yaml").symlink_to("gone.yaml")
    assert "matrix.yaml: the file does not exist" in own.run("export", "one-thread").stderr


def test_a_search_has_environments_too(own):
    study = own.folder / "results" / "found"
    study.mkdir()
    (study / "study.json").write_text("{}")
    Path(own.folder / "results" / "mine").rename(study / "001-confirm")
    time.sleep(0.01)
    (study / "study.json").touch()
    for words in ((), ("--run", "found")):
        done = own.run("exec", "one-thread", *words, "--", "python", "train.py")
        assert (done.returncode, done.stdout.strip()) == (0, said(own)), done.stderr
    assert "using one-thread of search found" in own.run("export", "one-thread").stderr
