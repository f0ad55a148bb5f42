"""The counts of `nox -s selfbench -- --alarms` and `--decides`, on runs with a known answer."""

import argparse
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from envmatrix.results import RunFolder
from envmatrix.system.atomic_files import append_line
from tests.installed import ROOT
from tests.synthetic import Machine, make_plan, make_trials, write_run
from validation import measured_parts, verdicts

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
    found = verdicts.tries_of({"1": runs})
    assert (found["tries"], found["good"], found["verdict"]) == (5, 4, "MET")
    [one] = found["each"].values()
    assert one["differing"] == ["a"]
    assert one["undecided"] == [[], [], [], [], ["a"]]
    assert one["median_half_widths"] == [0.04] * 5
    assert verdicts.tries_of({"1": [*runs[1:], runs[-1]]})["verdict"] == "MISSED"
    assert verdicts.tries_of({"1": runs[:4], "2": []})["verdict"].startswith("not decided")
    assert verdicts.tries_of_part([attempt(1 / 1.1, verdict="slower")] * 5)["differing"] == ["a"]
    assert verdicts.tries_of_part([attempt(1.2), {}, attempt(1.2)])["undecided"][1] == ["a"], "a try without it"


def test_effects_in_the_steady_state_are_judged_next_to_those_of_the_first_steps():
    folder = RunFolder(ROOT / "results/reference-steady")
    first, steady = verdicts.effects_of(folder)
    summary = json.loads((folder.path / "summary.json").read_text())
    [book] = [effect for effect in summary["effects"] if effect["primary"] and effect["environment"] == "book"]
    assert first["book"][0] == pytest.approx(book["ratio"])
    assert steady["book"][0] == pytest.approx(book["steady_ratio"])
    assert steady["run-cpu"][2] == "slower"
    assert first.keys() == steady.keys()
    assert verdicts.tries_of({"1": [steady] * 9}, 10, 9)["verdict"].startswith("not decided: 10")


def test_what_differs_on_one_machine_need_not_on_another():
    undecided = [attempt(1.02, verdict="undecided")] * 3
    found = verdicts.tries_of({"1": [attempt(1.2)] * 2, "2": undecided})
    assert (found["tries"], found["good"], found["verdict"]) == (5, 5, "MET")
    assert [one["differing"] for one in found["each"].values()] == [["a"], []]
    assert verdicts.tries_of({"1": [attempt(1.2)] * 2 + undecided})["good"] == 2, "one machine's tries are one mean"


def test_ten_copies_are_five_pairs_and_what_breaks_costs_its_own_pair_alone():
    plan = make_plan(tuple(f"copy-{number}" for number in range(3, 11)))
    trials = list(make_trials(plan, Machine({}, noise=0.02), 13))
    assert [pair[0].environment for pair in verdicts.pairs_of(plan)] == [
        "baseline",
        "copy-3",
        "copy-5",
        "copy-7",
        "copy-9",
    ]
    assert len(list(verdicts.decisions(plan, trials))) == 5 * 2
    lost = [one.environment == "copy-8" and one.block in (3, 9) for one in trials]
    broken = [replace(one, outcome="failed") if is_lost else one for one, is_lost in zip(trials, lost, strict=True)]
    assert len(list(verdicts.decisions(plan, broken))) == 4 * 2 + 1
    far = [faster(trial) if trial.environment in ("control", "copy-4") else trial for trial in trials]
    assert [verdicts.alarms_of([effect])["alarms"] for effect in verdicts.decisions(plan, far)] == [1, 1, 1, 1] + [
        0
    ] * 6


@pytest.mark.parametrize("text", ["3", "0", "-2", "x"])
def test_processes_of_a_block_are_pairs(text):
    with pytest.raises(argparse.ArgumentTypeError, match="pairs"):
        verdicts.pairs(text)
    assert verdicts.pairs("10") == 10


def chosen_in(tmp_path, **more):
    asked = {"design": "copies,default", "tries": 0, "minutes": 0, "to": tmp_path, "engine": "local", "matrix": None,
             "of_bench": "", "alarms": False, "decides": False, "launcher": "here", "node": ""}  # fmt: skip
    return SimpleNamespace(**{**asked, **more})


def test_alarms_of_all_parts_add_up_and_parts_of_another_bench_are_told(tmp_path, capsys, monkeypatch):
    chosen = chosen_in(tmp_path, alarms=True)
    assert verdicts.measure(chosen) == 2
    assert "no part in" in capsys.readouterr().err
    for number, bench in enumerate(("aaa1", "bbb2")):
        monkeypatch.setattr(measured_parts, "bench_here", lambda bench=bench: bench)
        part = measured_parts.part_here(tmp_path, {}, "", lambda _: None)
        write_run(part / "copies-turns", COPIES, Machine({}, noise=0.02), 12 + 6 * number, seed=number)
    assert verdicts.measure(chosen) == 0
    said = capsys.readouterr().out
    assert "2 parts: 1 (" in said
    assert "different bench/: aaa1 (1), bbb2 (2)" in said
    assert "of 5 decisions" in said
    whole = json.loads((tmp_path / "alarms.json").read_text())
    assert [one["decisions"] for one in whole["each"].values()] == [2, 3]
    for file in tmp_path.glob("*/*/trials.jsonl"):
        file.unlink()
    assert verdicts.measure(chosen) == 0
    assert json.loads((tmp_path / "alarms.json").read_text()) == whole, "what is kept says the same"
    assert verdicts.measure(chosen_in(tmp_path, alarms=True, of_bench="bb")) == 0
    assert json.loads((tmp_path / "alarms.json").read_text())["decisions"] == 3


def test_tries_are_the_runs_of_all_parts_that_are_over(tmp_path, capsys, monkeypatch):
    plan = make_plan(("a", "b"))
    for number in range(6):
        monkeypatch.setattr(measured_parts, "machine_here", lambda _, number=number: f"machine {number // 3}")
        part = measured_parts.part_here(tmp_path, {}, "", lambda _: None)
        write_run(part / f"run-{number}", plan, Machine({"a": 1.3}, noise=0.01), 10, seed=number)
        if number:
            append_line(part / "tries.jsonl", json.dumps({"run": f"run-{number}"}))
    assert verdicts.measure(chosen_in(tmp_path, decides=True)) == 0
    said, complained = capsys.readouterr()
    assert "part 2: environments that differ by 8% or more: a 1.3" in said
    assert "5 of 5 tries decided all of them (wanted: 4 of 5): MET" in said
    assert "run-0 is not over" in complained
    each = json.loads((tmp_path / "decides.json").read_text())["each"]
    assert [one["runs"] for one in each.values()] == [["run-1", "run-2"], ["run-3", "run-4", "run-5"]]


def test_a_try_that_was_stopped_is_gone_on_with_before_another_begins(tmp_path, monkeypatch):
    ran, part = [], tmp_path / "1"

    def run(argv, check):
        assert not check
        ran.append(argv[3:5])
        if argv[3] == "bench":
            write_run(part / f"run-{len(ran)}", make_plan(("a",)), Machine({}), 1)
        return SimpleNamespace(returncode=130 if len(ran) == 1 else 0)

    monkeypatch.setattr(verdicts.subprocess, "run", run)
    chosen = chosen_in(tmp_path, decides=True, tries=2, minutes=18)
    assert verdicts.measure(chosen) == 130
    assert verdicts.measure(chosen) == 0
    assert ran == [["bench", "default"], ["resume", "run-1"], ["bench", "default"]]
    assert verdicts.over(part) == {"run-1", "run-3"}
