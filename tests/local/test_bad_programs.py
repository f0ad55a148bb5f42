"""Programs that harm: each is limited and reported, and nothing of the user's is lost."""

import os
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


@pytest.fixture
def own(project, monkeypatch):
    (project.folder / "matrix.yaml").unlink()
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    return project


def write(project, text):
    (project.folder / "mine.py").write_text(text)
    return ("--", "python", "mine.py")


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


def test_a_clock_that_changes_during_a_run_changes_no_time(own, monkeypatch, tmp_path_factory):
    folder = tmp_path_factory.mktemp("clock")
    (folder / "sitecustomize.py").write_text(CLOCK)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    done = own.run(*ONE_BLOCK, "--budget", "30m", *write(own, "print('done')\n"))
    assert (done.returncode, outcomes(own)) == (0, ["ok"] * 3), done.stderr
    assert all(0 < trial["wall_s"] < 200 for trial in own.trials())
    assert all(0 < trial["record"]["metrics"]["value"] < 200 for trial in own.trials())
