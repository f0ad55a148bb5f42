"""What `nox -s selfbench -- --alarms` and `--decides` count, on runs whose answer is known."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests import verdicts
from tests.synthetic import Machine, make_plan, make_trials, write_run

COPIES = make_plan((), max_blocks=100_000)


def test_each_six_whole_blocks_are_a_decision_of_their_own():
    trials = list(make_trials(COPIES, Machine({}, noise=0.02), 20))
    assert len(list(verdicts.decisions(COPIES, trials))) == 3
    assert len(list(verdicts.decisions(COPIES, trials[:-2]))) == 3, "19 blocks"
    assert len(list(verdicts.decisions(COPIES, trials[:-1][: 2 * 18]))) == 3
    assert len(list(verdicts.decisions(COPIES, trials[: 2 * 18 - 1]))) == 2, "a block that is half there is none"


def faster(trial):
    metrics = trial.document["metrics"]
    return replace(
        trial, document={**trial.document, "metrics": {**metrics, "samples_per_s": 1.2 * metrics["samples_per_s"]}}
    )


def test_two_copies_are_called_different_in_few_decisions_and_two_that_differ_in_all():
    alike = list(make_trials(COPIES, Machine({}, noise=0.02), 240))
    found = verdicts.alarms_of(list(verdicts.decisions(COPIES, alike)))
    assert found["decisions"] == 40
    assert found["alarms"] <= 5
    assert found["verdict"].startswith("not decided")
    far = [faster(trial) if trial.arm.startswith("control") else trial for trial in alike]
    assert verdicts.alarms_of(list(verdicts.decisions(COPIES, far)))["share"] == 1.0


def decided(low, high):
    return SimpleNamespace(low=low, high=high)


@pytest.mark.parametrize(("wrong", "verdict"), [(10, "MET"), (11, "MISSED")])
def test_the_verdict_on_alarms_is_of_200_decisions(wrong, verdict):
    effects = [decided(1.01, 1.1)] * wrong + [decided(0.9, 1.1)] * (200 - wrong) + [decided(None, None)] * 7
    found = verdicts.alarms_of(effects)
    assert (found["decisions"], found["alarms"], found["verdict"]) == (200, wrong, verdict)
    assert found["low"] < found["share"] < found["high"]
    assert verdicts.alarms_of(effects[1:200])["verdict"].startswith("not decided: 200 are wanted")
    assert verdicts.alarms_of([])["verdict"] == "nothing measured yet"


def attempt(a, b=1.03, half=0.04, verdict="faster"):
    return {"a": (a, half, verdict), "b": (b, half, "undecided")}


def test_a_try_is_good_when_it_decides_all_that_differs_in_the_mean_of_all_tries():
    runs = [attempt(1.2)] * 4 + [attempt(1.15, verdict="undecided")]
    found = verdicts.tries_of(runs)
    assert (found["differing"], found["good"], found["verdict"]) == (["a"], 4, "MET")
    assert found["undecided"] == [[], [], [], [], ["a"]]
    assert found["median_half_widths"] == [0.04] * 5
    assert verdicts.tries_of([*runs[1:], runs[-1]])["verdict"] == "MISSED"
    assert verdicts.tries_of(runs[:4])["verdict"].startswith("not decided")
    assert verdicts.tries_of([attempt(1 / 1.1, verdict="slower")] * 5)["differing"] == ["a"]
    assert verdicts.tries_of([attempt(1.2), {}] + [attempt(1.2)] * 3)["undecided"][1] == ["a"], "a try without it"


def test_tries_are_the_runs_of_a_folder(tmp_path, capsys):
    plan = make_plan(("a", "b"))
    for number in range(5):
        write_run(tmp_path / f"run-{number}", plan, Machine({"a": 1.3}, noise=0.01), 10, seed=number)
    chosen = SimpleNamespace(design="copies,default", tries=0, to=tmp_path, engine="local", matrix=None)
    assert verdicts.decides(chosen) == 0
    said = capsys.readouterr().out
    assert "differ by 8% or more: a 1.3" in said
    assert "5 of 5 tries decided all of them (wanted: 4 of 5): MET" in said
    assert json.loads((tmp_path / "decides.json").read_text())["good"] == 5
