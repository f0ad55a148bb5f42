"""Standard input of a command with a program: a file meant for it is refused, and nothing else is mistaken for one."""

import os
import pty
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: What every command with a program does around it.
CHECK = "from envmatrix.cli.unused_stdin import check_unused_input as c\nwith c(['./a b', '-x']): pass"
NOTE = "note: standard input has data, which no run of your program gets"


@pytest.fixture
def variables(tmp_path, monkeypatch):
    """Return variables with which CHECK is ./check in the current folder, which has a file of data too."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.txt").write_text("1\n2\n3\n")
    (tmp_path / "empty").touch()
    (tmp_path / "check.py").write_text(CHECK)
    (tmp_path / "check").write_text(f"#!/bin/sh\nexec {sys.executable} check.py\n")
    (tmp_path / "check").chmod(0o755)
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def said(variables, line, **streams):
    """Return what a line of a shell prints, with our standard input closed unless ``streams`` has one."""
    streams = {"stdin": subprocess.DEVNULL, **streams}
    done = subprocess.run(
        ["bash", "-c", line], env=variables, capture_output=True, text=True, timeout=100, check=False, **streams
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("command", ["bench", "tune", "init", "evidence x"])
def test_a_file_is_refused_by_every_command_before_anything_runs(variables, command):
    name, *more = command.split()
    argv = [sys.executable, "-m", "envmatrix", name, *more, "--", "./a b", "-x"]
    with Path("data.txt").open() as file:
        done = subprocess.run(argv, env=variables, stdin=file, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "envmatrix: standard input is data.txt, which no run of your program gets",
        """  -> let each run open it: -- sh -c ''"'"'./a b'"'"' -x <data.txt'""",
    ]


@pytest.mark.parametrize(
    ("line", "remedy"),
    [("python - < data.txt", "name it: -- python data.txt"), ("bash -s <data.txt", "name it: -- bash data.txt")],
)
def test_a_program_that_is_the_file_itself_is_named(variables, line, remedy):
    assert remedy in said(variables, f"{sys.executable} -m envmatrix bench -- {line}")


@pytest.mark.parametrize(
    "line",
    [
        "./check </dev/null",
        "./check <&-",
        "./check <empty",
        "{ cat >/dev/null; ./check; } <data.txt",
        "true | ./check",
        "sleep 3 | ./check",
        "nohup ./check",
        "echo ./check | bash; echo data",
        "bash <<<$'./check\nexit 0\ncat'",
        "printf './check\n#\n' >script; bash <script",
        "while read -r number; do ./check; done <data.txt",
        "xargs -n 1 ./check <data.txt",
        "printf './check\nexit 0\ncat\n' | bash",
        "setsid ./check </dev/null",
        "(./check &) </dev/null; sleep 1",
    ],
)
def test_nothing_is_said_of_an_input_that_nobody_meant_for_the_program(variables, line):
    assert "standard input" not in said(variables, line)


def test_nothing_is_said_of_a_terminal_and_of_a_connection_without_data(variables):
    master, terminal = pty.openpty()
    ours, theirs = socket.socketpair()
    assert [said(variables, "./check", stdin=one) for one in (terminal, theirs)] == ["", ""]
    for one in (master, terminal):
        os.close(one)
    ours.close()
    theirs.close()


@pytest.mark.parametrize("line", ["yes | ./check", "{ cat data.txt; sleep 3; } | ./check", "./check <<<data"])
def test_data_in_a_pipe_is_reported_and_not_refused(variables, line):
    text = said(variables, line)
    assert NOTE in text or "standard input is FILE, which no run of your program gets" in text  # older shells


def test_data_in_a_connection_is_reported_as_over_ssh(variables):
    ours, theirs = socket.socketpair()
    ours.send(b"data")
    assert NOTE in said(variables, "./check", stdin=theirs)


def test_an_input_that_a_wrapper_shares_is_reported_and_not_refused(variables):
    code = "import subprocess; subprocess.run(['./check'])"
    assert NOTE in said(variables, f'{sys.executable} -c "{code}" <data.txt')
