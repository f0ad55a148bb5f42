"""One environment, opened for single processes: placed and limited as in a trial."""

import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from envmatrix.__main__ import main
from envmatrix.build.cache import Cache
from envmatrix.build.paths import BuildPaths
from envmatrix.engines.base import Prepared
from envmatrix.engines.docker import copy_frames
from envmatrix.engines.local import LocalEngine
from envmatrix.evidence.checks import parse_claim
from envmatrix.matrix.parse import parse
from envmatrix.plan.environment import build_environment
from envmatrix.system.process import Exit
from envmatrix.trials.environment_for_commands import Session

MATRIX = """
version: 1
factors: {place: {here: {}, second: {cpus: 0-1, memory_nodes: 0}}}
environments: {baseline: {}, second: {place: second}}
workloads: {cnn: {model: fashion-cnn}}
designs: {default: {environments: [second], workloads: cnn}}
"""


def test_a_process_is_placed_where_a_trial_would_be():
    jobs = []
    engine = SimpleNamespace(
        shares_files=True,
        inside=lambda mounts: {"work": "/work", "bench": "/bench"},
        run=lambda job: jobs.append(job) or Exit(7, 1.0),
    )
    environment = build_environment(parse(MATRIX, Path("m.yaml")), "second", {"place": "second"}, {})
    session = Session(environment, engine, Prepared("i", "local", "/venv", "/venv/bin/python", {}), Path("/bench"))
    assert session.execute(("python", "train.py"), 9.0).code == 7
    assert jobs[0].argv == ("/venv/bin/python", "train.py")
    assert (jobs[0].limits.cpus, jobs[0].limits.memory_nodes, jobs[0].limits.seconds) == ((0, 1), (0,), 9.0)


PROGRAM = """
from pathlib import Path
from tests.unit.test_session import local_session
code = "import sys; print(input()); print('wrong', file=sys.stderr)"
raise SystemExit(local_session().execute(("python", "-c", code), 9).code)
"""


def local_session():
    environment = build_environment(parse(MATRIX, Path("m.yaml")), "baseline", {}, {})
    prepared = Prepared("i", "local", sys.executable, sys.executable, {})
    return Session(environment, LocalEngine(BuildPaths(Cache(Path()), Path(), Path())), prepared, Path("/bench"))


def test_a_command_has_our_input_and_our_output_even_if_that_is_a_socket():
    ours, its = socket.socketpair()
    with ours, its:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], input=b"hello\n", stdout=its, stderr=subprocess.PIPE, check=False,
            cwd=Path(__file__).parents[2],
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, b"wrong\n")
        assert ours.recv(100) == b"hello\n"


def test_what_a_container_says_goes_to_our_output_and_error_output_apart(capfd):
    copy_frames([(b"one\n", None), (None, b"wrong\n"), (b"two\n", b"")])
    assert capfd.readouterr() == ("one\ntwo\n", "wrong\n")


@pytest.mark.parametrize("argv", [["evidence", "second"], ["export", "second"], ["exec", "second", "--", "true"],
                                  ["build", "second"]])  # fmt: skip
def test_engine_auto_is_the_first_that_this_machine_has(argv, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENVMATRIX_CACHE", str(tmp_path / "cache"))
    for name in ("DockerEngine", "ApptainerEngine", "PodmanEngine", "LocalEngine"):
        monkeypatch.setattr(f"envmatrix.engines.{name[:-6].lower()}.{name}.unavailable", lambda self: "not today")
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    cut = argv.index("--") if "--" in argv else len(argv)
    assert main([*argv[:cut], "--engine", "auto", *argv[cut:]]) == 4
    assert "engine local cannot be used here: not today" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("ended", "status"), [(Exit(3, 1.0), 3), (Exit(-9, 1.0), 137), (Exit(-15, 1.0, timed_out=True), 124)]
)
def test_exec_ends_as_its_program_did(monkeypatch, ended, status):
    engine = SimpleNamespace(passes_input=True)
    session = SimpleNamespace(engine=engine, execute=lambda command, limit_s: ended)
    monkeypatch.setattr("envmatrix.cli.shared_options.open_chosen_environment", lambda options: session)
    assert main(["exec", "second", "--", "python", "train.py"]) == status


def test_an_engine_without_images_of_its_own_is_built_as_the_design_is(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENVMATRIX_CACHE", str(tmp_path / "cache"))
    ready = Prepared("i", "enroot", "/images/i.sqsh", "/usr/bin/python3", {})
    monkeypatch.setattr("envmatrix.engines.enroot.EnrootEngine.unavailable", lambda self: None)
    monkeypatch.setattr("envmatrix.engines.enroot.EnrootEngine.prepare", lambda self, image, libraries, progress: ready)
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    assert main(["build", "second", "--engine", "enroot"]) == 0
    assert "/images/i.sqsh" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("seen", "code", "line"),
    [
        ({}, 0, "  not verified  inductor.zentorch_calls = > 0: only a trial of `envmatrix bench` shows it"),
        ({"inductor": {"graphs": 1, "zentorch_calls": 0}}, 3, "  FAILED  inductor.zentorch_calls = > 0, found 0"),
    ],
)
def test_what_only_work_shows_fails_no_evidence_of_a_process_without_work(seen, code, line, monkeypatch, capsys):
    claims = [parse_claim("malloc", ["libc"]), parse_claim("inductor.zentorch_calls", ["> 0"])]
    environment = SimpleNamespace(claims=claims)
    session = SimpleNamespace(environment=environment, evidence=lambda _: {"malloc": {"library": "libc"}, **seen})
    monkeypatch.setattr("envmatrix.cli.shared_options.open_chosen_environment", lambda options: session)
    assert main(["evidence", "zentorch"]) == code
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "zentorch: 1 of 2 checks hold"
    assert "  ok      malloc = libc" in lines
    assert line in lines


@pytest.mark.parametrize(("source", "code", "word"), [("outside", 0, "not verified"), ("probe", 3, "FAILED")])
def test_what_no_process_could_be_asked_for_is_not_verified_and_no_failure(source, code, word, monkeypatch, capsys):
    """Guards against "FAILED, found None" for a program that ends by os._exit."""
    environment = SimpleNamespace(claims=[parse_claim("malloc.options.trim_threshold", ["1"])])
    evidence = {"malloc": {"library": "libc"}, "source": source}
    session = SimpleNamespace(environment=environment, evidence=lambda _: evidence)
    monkeypatch.setattr("envmatrix.cli.shared_options.open_chosen_environment", lambda options: session)
    assert main(["evidence", "tuned"]) == code
    assert f"  {word}  malloc.options.trim_threshold = 1" in capsys.readouterr().out
