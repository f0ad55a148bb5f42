"""The first look at a program of the command line."""

import fcntl
from pathlib import Path
from types import SimpleNamespace

import pytest

from envmatrix.api import programs
from envmatrix.errors import InputError
from envmatrix.matrix.parse import parse
from envmatrix.matrix.starter import FOR_ANY, FOR_TORCH
from envmatrix.plan.environment import all_libraries
from envmatrix.record.model import Record
from envmatrix.trials import leftovers
from envmatrix.trials.look import started
from envmatrix.trials.requested import Overrides
from envmatrix.units import as_budget, parse_duration


def test_a_first_look_runs_alone_and_nothing_of_an_earlier_trial_beside_it(tmp_path, monkeypatch):
    """It sets the budget and the limits: beside another's measuring it would take too long, and spoil that too."""
    monkeypatch.setenv("ENVMATRIX_CACHE", str(tmp_path))
    done = []
    monkeypatch.setattr(leftovers, "end_processes", lambda: done.append("swept"))

    def look(*_):
        with (tmp_path / "measuring.lock").open() as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        done.append("looked")
        return SimpleNamespace(output="it")

    monkeypatch.setattr(programs, "look", look)
    seen = programs._looked(None, None, 2, lambda _: None, done.append)
    assert (seen.output, done) == ("it", ["swept", "looked", "it", "looked", "it"])


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Make a matrix for a program that takes so long once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(programs, "_possible", lambda torch: list(FOR_TORCH if torch else FOR_ANY))

    def make(wall_s, said=None, **asked):
        seen = SimpleNamespace(wall_s=wall_s, output="", record=Record(evidence=None))
        monkeypatch.setattr(programs, "_looked", lambda *_: seen)
        words = programs.Asked(("python", "mine.py"))
        return programs.make_matrix(words, Overrides(**asked), Path("matrix.yaml"), (said or []).append, print)

    return make


@pytest.mark.parametrize("wall_s", [5.0, 5.4, 6.0])
def test_a_program_of_five_seconds_has_its_first_table_in_three_minutes(made, wall_s):
    design = made(wall_s).matrix.designs["default"]
    assert design.environments == ("tcmalloc", "one-thread"), "an allocator and threads, not allocators only"
    claims_s = wall_s * 6 * (len(design.environments) + 2)
    assert claims_s <= design.budget <= 170, "enough for six blocks, and done in time with the installation"


def test_what_is_left_out_to_be_done_soon_is_told_with_the_budget_that_has_time_for_all(made):
    first = made(5.0)
    assert first.more.startswith("left out, to be done soon: glibc-tuned, mimalloc, jemalloc, pinned (--budget 4m40s ")
    assert set(made(5.0, budget="4m40s").matrix.designs["default"].environments) == set(FOR_ANY)
    assert made(5.0, budget="4m40s").more == ""
    assert made(5.0, environments=("pinned",)).more == "", "it was said which"


def test_only_what_is_tried_is_fetched_and_the_matrix_that_is_saved_has_all(made):
    first = made(5.0)
    assert [library.files for library in all_libraries(first.matrix)] == [("libtcmalloc_minimal.so.4",)]
    assert len(all_libraries(parse(first.text, Path("matrix.yaml")))) > 3
    named = made(5.0, environments=("jemalloc",)).matrix
    assert [library.files for library in all_libraries(named)] == [("libjemalloc.so.2",)]
    assert "jemalloc" in made(5.0, environments=("jemaloc",)).matrix.environments, "it is what was meant"


def test_a_short_program_is_tried_in_all_and_a_long_one_in_two(made):
    assert set(made(1.0).matrix.designs["default"].environments) == set(FOR_ANY)
    long = made(60.0).matrix.designs["default"]
    assert (len(long.environments), long.budget) == (2, 28 * 60)


@pytest.mark.parametrize(
    ("seconds", "text"), [(60, "60s"), (119, "2m"), (138, "2m20s"), (149, "2m30s"), (599, "10m"), (601, "11m")]
)
def test_a_budget_is_written_as_it_is_read_and_hardly_longer(seconds, text):
    assert as_budget(seconds) == text
    assert seconds <= parse_duration(text) < seconds + 60


@pytest.mark.parametrize(
    ("name", "mode", "remedy"),
    [
        ("run.sh", 0o755, "name its folder too, as a shell wants it: -- ./run.sh --fast"),
        ("run.sh", 0o644, "make it executable (`chmod +x run.sh`), or name what runs it: -- bash run.sh --fast"),
        ("run.py", 0o755, "-- python run.py --fast"),
    ],
)
def test_a_program_that_no_path_has_is_told_as_it_would_start(tmp_path, monkeypatch, name, mode, remedy):
    monkeypatch.chdir(tmp_path)
    Path(name).write_text("#!/bin/sh\n")
    Path(name).chmod(mode)
    with pytest.raises(InputError) as told:
        started((name, "--fast"))
    assert told.value.remedy == remedy
