"""Programs that harm: each is limited and reported, and nothing of the user's is lost."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.local, pytest.mark.timeout(300)]

ONE_BLOCK = ("bench", "--max-blocks", "1", "--environments", "tcmalloc")
OWN_FOLDER = "import os, shutil\nshutil.rmtree(os.getcwd(), ignore_errors=True)\nassert not os.path.exists('data')\n"
#: The clock of envmatrix's own processes, a day apart at each reading.
CLOCK = """
import itertools, time
real, turns = time.time, itertools.cycle((0, 86400))
time.time = lambda: real() + next(turns)
"""
FORKS = "import os\nwhile True:\n    os.fork()\n"
#: A lower limit on processes, in envmatrix's own process only.
CROWD = """
import sys
if "envmatrix" in sys.orig_argv:
    from envmatrix.block import fork_limit
    from envmatrix.engines import process_limits
    fork_limit.MOST_PROCESSES = process_limits.MOST_PROCESSES = 60
"""


@pytest.fixture
def own(project, monkeypatch):
    (project.folder / "matrix.yaml").unlink()
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    return project


def write(project, text):
    (project.folder / "mine.py").write_text(text)
    return ("--", "python", "mine.py")


def command_lines():
    listed = subprocess.run(["ps", "-e", "-ww", "-o", "args="], capture_output=True, text=True, check=True)
    return listed.stdout


def outcomes(project):
    return [trial["outcome"] for trial in project.trials()]


def test_gigabytes_of_output_are_read_and_not_kept(own):
    done = own.run(
        *ONE_BLOCK, *write(own, "line = 'x' * 99 + '\\n'\nfor _ in range(200):\n    print(line * 10 ** 4)\n")
    )
    assert (done.returncode, outcomes(own)) == (0, ["ok"] * 3), done.stderr
    for log in (own.newest() / "logs").iterdir():
        assert "bytes left out" in log.read_text()
        assert log.stat().st_size < 1_100_000


def test_a_program_that_deletes_its_own_folder_deletes_nothing_of_the_users(own):
    (own.folder / "data").mkdir()
    (own.folder / "data" / "x.bin").write_bytes(b"precious")
    done = own.run(*ONE_BLOCK, *write(own, OWN_FOLDER))
    assert (own.folder / "data" / "x.bin").read_bytes() == b"precious"
    assert (own.folder / "mine.py").read_text() == OWN_FOLDER
    assert (done.returncode, outcomes(own)) == (0, ["ok"] * 3), done.stderr


def test_a_program_that_waits_for_a_keyboard_is_refused_before_anything_is_measured(own):
    done = own.run(*ONE_BLOCK, *write(own, "name = input('your name? ')\n"))
    assert done.returncode == 4
    assert "EOFError: EOF when reading a line" in done.stderr
    assert "a trial has no keyboard: pass the answers as options" in done.stderr
    assert not (own.folder / "results").exists()


@pytest.mark.parametrize("argv", [("python", "-"), ("bash",)])
def test_a_program_that_would_come_from_the_keyboard_is_refused_with_what_to_type(own, argv):
    done = own.run(*ONE_BLOCK, "--", *argv)
    assert done.returncode == 2
    assert f"{' '.join(argv)} reads a program from standard input, which is empty in a trial" in done.stderr
    assert f"-- {argv[0]} FILE" in done.stderr


def test_a_file_that_each_run_opens_arrives_in_each_and_one_of_the_command_is_refused(own):
    (own.folder / "data.txt").write_text("17.5")
    write(own, "print('throughput:', float(input()), 'items/s')\n")
    with (own.folder / "data.txt").open() as file:
        _, said = own.start(*ONE_BLOCK, "--", "python", "mine.py", stdin=file).communicate(timeout=200)
    remedy = "python mine.py <data.txt"
    assert f"-> let each run open it: -- sh -c '{remedy}'" in said
    done = own.run(*ONE_BLOCK, "--", "sh", "-c", remedy)
    assert (done.returncode, outcomes(own)) == (0, ["ok"] * 3), done.stderr
    assert {trial["record"]["metrics"]["value"] for trial in own.trials()} == {17.5}


def test_a_program_that_forks_without_end_stops_at_the_limit_and_nothing_of_it_is_left(
    own, monkeypatch, tmp_path_factory
):
    folder = tmp_path_factory.mktemp("fork_limit")
    (folder / "sitecustomize.py").write_text(CROWD)
    monkeypatch.setenv("PYTHONPATH", ":".join(filter(None, [str(folder), os.environ.get("PYTHONPATH")])))
    done = own.run(*ONE_BLOCK, *write(own, FORKS), str(folder))
    assert done.returncode == 4, done.stderr
    assert "it could start no more processes or threads: a trial may have 60" in done.stderr
    assert str(folder) not in command_lines()
    assert (own.folder / "mine.py").read_text() == FORKS
    assert not (own.folder / "results").exists()


def test_a_clock_that_changes_during_a_run_changes_no_time(own, monkeypatch, tmp_path_factory):
    folder = tmp_path_factory.mktemp("clock")
    (folder / "sitecustomize.py").write_text(CLOCK)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    done = own.run(*ONE_BLOCK, "--budget", "30m", *write(own, "print('done')\n"))
    assert (done.returncode, outcomes(own)) == (0, ["ok"] * 3), done.stderr
    assert all(0 < trial["wall_s"] < 200 for trial in own.trials())
    assert all(0 < trial["record"]["metrics"]["value"] < 200 for trial in own.trials())
