"""``envmatrix atlas advise``: what an atlas predicts for this machine, and what it cannot tell."""

from __future__ import annotations

import json

import pytest

from envmatrix.__main__ import main
from envmatrix.api import atlas as api
from envmatrix.stats.meta_analysis.atlas import predict, read_atlas
from tests.unit.test_atlas import steady
from tests.unit.test_known_order import HERE, effect, entry, malloc, one_thread, written

RATIOS = (1.10, 1.12, 1.13, 1.14, 1.15, 1.17)


@pytest.fixture
def advise(tmp_path, monkeypatch, capsys):
    """Return a function that advises this machine, HERE, from the runs given."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(api, "this_processor", lambda: HERE)

    def say(entries, *words):
        written(tmp_path / "atlas", entries)
        assert main(["atlas", "advise", *words]) == 0
        return capsys.readouterr().out

    return say


def test_a_machine_that_was_never_measured_gets_the_prediction_interval_and_the_command_that_measures_it(advise):
    said = advise([entry(number, malloc("jemalloc", ratio)) for number, ratio in enumerate(RATIOS)])
    first, answer, *_ = said.splitlines()
    assert first == "this machine (this CPU, 2 CPUs) is not in the atlas"
    assert answer == (
        "jemalloc is predicted to be 1.07 to 1.20 times as fast as baseline in cnn (95 % prediction interval, from 6 "
        "machines)"
    )
    assert "6 of 6 in it" in said
    assert said.endswith("measure it here: envmatrix bench --environments jemalloc -- PROGRAM\n")


def test_a_machine_of_the_atlas_gets_its_own_effect(advise):
    own = entry(9, malloc("jemalloc", 1.3), machine=HERE)
    said = advise([own, *(entry(number, malloc("jemalloc", ratio)) for number, ratio in enumerate(RATIOS))])
    first, answer, *_ = said.splitlines()
    assert first == "this machine (this CPU, 2 CPUs) is in the atlas"
    assert answer == "jemalloc was 1.28 to 1.32 times as fast as baseline in cnn (95 % CI, measured on this machine)"


@pytest.mark.parametrize("machines", [1, 2])
def test_below_three_machines_nothing_is_told(advise, machines):
    said = advise([entry(number, malloc("jemalloc", 1.2)) for number in range(machines)])
    assert "nothing can be told about this machine: a prediction needs 3 machines" in said
    assert "a prediction needs 3): jemalloc in cnn" in said
    assert "ratio" not in said, "no figure that nothing carries"


def test_the_best_is_told_first_and_an_atlas_without_anything_faster_says_so(advise):
    effects = malloc("a", 1.1), malloc("b", 1.2), one_thread(0.7), effect("c", 1.0, ("openmp", "gnu", "intel"))
    found = predict(read_atlas([entry(number, *effects) for number in range(3)]), HERE)
    assert [one.environment for one in found] == ["b", "a", "c", "one-thread"]
    said = advise([entry(number, one_thread(0.7)) for number in range(3)])
    assert "nothing is known to be faster here: no interval is above 1" in said


def test_unmeasured_environments_of_one_workload_are_measured_by_one_command_that_runs_it(advise):
    """The built-in matrix has the workload ``fashion-cnn``."""
    work = {"workload": "fashion-cnn", "reference": "baseline:fashion-cnn@local"}
    effects = malloc("mimalloc", 1.2, **work), malloc("tcmalloc", 1.3, **work), malloc("jemalloc", 1.4)
    runs = [entry(number, *effects) for number in range(3)]
    said = advise([*runs, entry(9, malloc("jemalloc", 1.4), machine=HERE)])
    command = "envmatrix bench --environments tcmalloc,mimalloc --workloads fashion-cnn default"
    assert said.endswith(f"measure it here: {command}\n")


def test_programs_read_the_same(advise):
    runs = [entry(number, malloc("jemalloc", ratio)) for number, ratio in enumerate(RATIOS)]
    body = json.loads(advise(runs, "--json"))
    (row,) = body["predictions"]
    assert (body["schema"], body["known"], body["machine"]["model"]) == (1, False, "this CPU")
    assert (row["environment"], row["measured"], row["machines"], row["covered"]) == ("jemalloc", False, 6, 6)
    assert 1.05 < row["low"] < row["ratio"] < row["high"] < 1.21


def test_a_damaged_file_is_named_and_the_others_are_read(tmp_path, capsys):
    folder = written(tmp_path / "theirs", [entry(number, malloc("jemalloc", 1.1)) for number in range(4)])
    sorted(folder.iterdir())[0].write_text("{")
    assert main(["atlas", "advise", "--from", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "warning: left out: " in said
    assert "from 3 machines" in said


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["one"], "RUN, --to and --sign are for `add`"),
        (["--output", "x"], "--output is for `show`"),
        (["--from", "nosuch"], "no such folder: nosuch"),
    ],
)
def test_a_mistake_is_told(tmp_path, monkeypatch, capsys, words, told):
    monkeypatch.chdir(tmp_path)
    assert main(["atlas", "advise", *words]) == 2
    assert told in capsys.readouterr().err


def test_the_effect_of_later_steps_counts_for_a_training_if_it_is_known(advise):
    slow_later, fast_later = steady(1.0), steady(1.1)
    runs = [entry(n, malloc("a", 1.2, steady=slow_later), malloc("b", 1.1, steady=fast_later)) for n in range(4)]
    said = advise(runs)
    words = "b is predicted to be 1.09 to 1.11 times as fast as baseline in cnn, in seconds 6 to 11 of its steps ("
    assert words in said
    assert [one.environment for one in predict(read_atlas(runs), HERE)] == ["b", "a"]
    assert "against baseline; seconds: later steps" in said


@pytest.mark.parametrize(
    ("own", "later", "expected"),
    [
        (None, 3, (1.0, "seconds 6 to 11", False)),
        (None, 2, (1.2, "", False)),
        (malloc("a", 1.3, steady=steady(0.9)), 3, (0.9, "seconds 6 to 11", True)),
        (malloc("a", 1.3), 3, (1.3, "", True)),
    ],
)
def test_a_measurement_here_counts_before_later_steps_of_others(own, later, expected):
    runs = [entry(n, malloc("a", 1.2, steady=steady(1.0) if n < later else None)) for n in range(3)]
    runs += [entry(9, own, machine=HERE)] if own else []
    (one,) = predict(read_atlas(runs), HERE)
    assert (pytest.approx(one.ratio), one.later, one.measured) == expected
