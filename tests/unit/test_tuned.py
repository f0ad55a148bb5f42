"""How `nox -s selfbench -- --tune` judges a search."""

import argparse
import json
import re
import subprocess

import numpy as np
import pytest

from envmatrix.api.tuning import search
from tests.unit.test_tune_loop import Machine, Stopped, machine  # noqa: F401 - a fixture
from validation import tuned
from validation.tuned import commit, due, measure
from validation.tuned_check import words_of
from validation.tuned_verdict import judged, line_of, lines_of, summary_of

CLAIM = (1.2, 1.1, 1.3)


@pytest.mark.parametrize(
    ("found", "faster", "as_claimed"),
    [((1.19, 1.15, 1.25), True, True), ((1.1, 0.99, 1.25), False, True), ((None, None, None), False, False),
     ((1.35, 1.3, 1.4), True, False), ((1.08, 1.05, 1.11), True, False), ((1.1, 1.01, 1.2), True, True)],
)  # fmt: skip
def test_a_try_is_confirmed_where_another_run_shows_the_gain_that_was_claimed_but_for_chance(found, faster, as_claimed):
    told = judged(CLAIM, found)
    assert (told["faster"], told["as_claimed"], told["confirmed"]) == (faster, as_claimed, faster and as_claimed)


def test_of_two_runs_that_measure_the_same_so_many_are_as_claimed_as_their_intervals_say():
    chance = np.random.default_rng(1)
    first, second = np.exp(np.log(1.2) + chance.normal(0, [[0.03], [0.01]], (2, 4000)))
    told = [judged((a, a / np.exp(0.0588), a * np.exp(0.0588)), (b, b / np.exp(0.0196), b * np.exp(0.0196)))
            for a, b in zip(first, second, strict=True)]  # fmt: skip
    assert np.mean([one["as_claimed"] for one in told]) == pytest.approx(0.95, abs=0.01)


GOOD = {"of": "design default", "good": True, "confirmed": True, "beaten_by": [], "claimed": 1.2, "ratio": 1.19,
        "spent_s": 1210.0, "budget_s": 1200.0}  # fmt: skip
NONE = {"of": "python train.py", "good": False, "claimed": None, "spent_s": 1300.0, "budget_s": 1200.0}
BEATEN = {**GOOD, "good": False, "beaten_by": ["tcmalloc"]}


def test_nine_of_ten_are_wanted_and_fewer_tries_decide_nothing():
    tries = {f"try-{number}": GOOD for number in range(9)}
    assert summary_of(tries)["verdict"].startswith("not decided")
    found = summary_of({**tries, "a": NONE})
    assert found.pop("claimed_minus_found_points") == pytest.approx(1.0)
    assert found == {
        "tries": 10, "good": 9, "confirmed": 9, "beaten": 0, "within_budget": 9, "verdict": "MET",
        "of": {"design default": {"tries": 9, "good": 9}, "python train.py": {"tries": 1, "good": 0}},
    }  # fmt: skip
    assert summary_of({**tries, "last": BEATEN})["good"] == 9
    missed = summary_of({**tries, "a": NONE, "b": BEATEN})
    assert (missed["verdict"], missed["confirmed"], missed["beaten"]) == ("MISSED", 10, 1)


def test_a_try_is_told_in_a_line_and_tries_of_several_things_by_what_they_are_of():
    about = {"of": "design default", "recipe": {"malloc": "tcmalloc"}, "spent_s": 1190.0, "budget_s": 1200.0,
             "over_best_named": {"name": "jemalloc", "ratio": 1.01, "low": 0.97, "high": 1.05}}  # fmt: skip
    one = {**GOOD, **about, "interval": (1.1, 1.3), "low": 1.17, "high": 1.21, "blocks": 40, "faster": True,
           "as_claimed": True, "check": "check-01", "check_s": 1600.0}  # fmt: skip
    said = (
        "malloc=tcmalloc claimed 1.200 (1.100 to 1.300), found 1.190 (1.170 to 1.210) in 40 blocks, "
        "1.010 (0.970 to 1.050) times the best named, jemalloc: good; 1190 s of 1200 s, then check-01 of 1600 s"
    )
    assert line_of("try-01", one).strip() == f"try-01 (design default): {said}"
    said = line_of("try-01", {**one, "good": False, "as_claimed": False, "beaten_by": ["jemalloc"]})
    assert "jemalloc: not good (not as claimed, beaten by jemalloc); 1190 s" in said
    nothing = {**NONE, "recipe": {}}
    assert "nothing was recommended (the baseline): not good" in line_of("try-02", nothing)
    tries = {"try-01": one, "try-02": nothing}
    told = lines_of(tries, summary_of(tries))
    assert told[2:4] == ["of design default: 1 of 1 good", "of python train.py: 0 of 1 good"]
    assert "claimed minus found on average: +1.0 points" in told
    assert "1 of 2 tries good (1 confirmed, 0 beaten by a named recipe; wanted: 9 of 10): not decided" in told[-1]


@pytest.fixture
def asked(machine, tmp_path):  # noqa: F811
    return argparse.Namespace(to=tmp_path / "tries", program=[], design="default", engine="local", matrix=None,
                              budget="120s", blocks=7, named=None, tries=1, minutes=18, of_bench="",
                              metric_steps="")  # fmt: skip


def test_a_program_is_searched_by_its_steps_where_that_is_asked_for(asked):
    plain, steps = (tuned.subject(again(asked, program=["a.py"], metric_steps=steps)) for steps in ("", "^step "))
    assert [tuned.asked_of(what).metric_steps for what in (plain, steps)] == ["", "^step "]
    assert [words_of(what) for what in (plain, steps)] == ["a.py", "a.py, by its steps"]


def again(chosen, **more):
    return argparse.Namespace(**{**vars(chosen), **more})


def judgement(chosen):
    return json.loads((chosen.to / "tune.json").read_text())


def killed(machine, chosen, at):  # noqa: F811
    machine.stops_at = at
    with pytest.raises(Stopped):
        measure(chosen)
    machine.stops_at = None


def checks(machine):  # noqa: F811
    return [run for run, _ in machine.ran if run.startswith("independent-")]


def test_tries_are_stopped_anywhere_and_the_same_command_goes_on(machine, asked, monkeypatch, capsys):  # noqa: F811
    monkeypatch.setattr(tuned, "commit", lambda: "abc")
    killed(machine, asked, 20)
    assert measure(again(asked, minutes=0)) == 1, "nothing is over: nothing is judged"
    assert "not over: 1/try-01 (design default)" in capsys.readouterr().err
    assert not (asked.to / "tune.json").exists()
    monkeypatch.setattr(tuned, "commit", lambda: "def+")
    killed(machine, asked, 125)
    assert checks(machine)
    assert measure(again(asked, tries=0)) == 0, "the check that was killed is gone on with, and nothing is searched"
    found = judgement(asked)
    assert list(found["each"]) == ["1/try-01"]
    one = found["each"]["1/try-01"]
    assert (one["good"], one["blocks"], one["commits"]) == (True, 7, ["abc", "def+"])
    assert (one["beaten_by"], one["over_best_named"]["name"], one["named"]) == ([], "good", ["good"])
    assert one["check_s"] >= 7 * 4, "seven blocks of baseline, copy, recipe and named recipe"
    assert found["within_budget"] == 1
    assert len(machine.ran) == len(set(machine.ran)), "no trial runs twice"
    said = capsys.readouterr().out
    assert "times the best named, good: good; " in said
    assert "1 part: 1 (" in said
    ran = len(machine.ran)
    assert due(asked.to / "1", 1) == [asked.to / "1/try-02"]
    assert measure(again(asked, tries=0)) == 0
    assert len(machine.ran) == ran


def test_all_tries_of_a_start_are_checked_by_one_run_that_has_each_recipe_once(machine, asked):  # noqa: F811
    killed(machine, again(asked, tries=2), 150)
    assert not checks(machine)
    assert measure(again(asked, tries=3)) == 0
    assert len(set(checks(machine))) == 1
    assert len(checks(machine)) == 7 * 4, "four tries with the same recipe, and one named: baseline, copy and two"
    found = judgement(asked)
    assert (found["tries"], found["good"]) == (4, 4), "one was over, one was stopped, and two are further ones"
    assert {one["check"] for one in found["each"].values()} == {"check-01"}
    assert measure(asked) == 0
    assert [one["check"] for one in judgement(asked)["each"].values()][-1] == "check-02", "what came later has its own"


def test_what_was_searched_and_not_checked_is_checked_by_the_next_start(machine, asked, monkeypatch):  # noqa: F811
    def stopped(*_):
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(tuned, "claim_all", stopped)
        with pytest.raises(Stopped):
            measure(asked)
    with monkeypatch.context() as patch:
        patch.setattr(tuned, "run_check", stopped)
        with pytest.raises(Stopped):
            measure(again(asked, tries=0))
    assert (asked.to / "1/check-01/check.json").exists()
    assert measure(again(asked, tries=0)) == 0
    assert judgement(asked)["good"] == 1
    assert len(set(checks(machine))) == 1


def test_claims_and_what_is_kept_of_checks_are_all_that_is_judged_of_another_machine(machine, asked):  # noqa: F811
    assert measure(asked) == 0
    before, part = judgement(asked), asked.to / "1"
    kept = ("part.json", "asked.json", "tries.jsonl", "claim.json", "check.json", "run.json", "trials.jsonl.gz")
    for file in [path for path in part.rglob("*") if path.is_file()]:
        if file.name not in kept or file.parent.parent.name == "try-01":
            file.unlink()
    assert measure(again(asked, minutes=0)) == 0
    assert judgement(asked) == before
    assert measure(again(asked, tries=0)) == 0
    assert judgement(asked) == before, "there is nothing here to check, and no part begins for that"
    assert measure(asked) == 0
    assert list(judgement(asked)["each"]) == ["1/try-01", "2/try-01"]


def test_a_try_that_recommends_nothing_is_over_without_a_check_and_not_good(machine, asked):  # noqa: F811
    machine.gains = {"large": -0.2, "there": -0.1, "broken": None}
    assert measure(asked) == 0
    assert [one["good"] for one in judgement(asked)["each"].values()] == [False]
    assert not checks(machine)


def test_a_recipe_that_a_named_one_beats_is_not_good(machine, asked):  # noqa: F811
    killed(machine, asked, 122)
    machine.gains["yes"] = 0.5  # the machine has changed since the search: now the named recipe's third setting helps
    assert measure(again(asked, tries=0)) == 0
    one = judgement(asked)["each"]["1/try-01"]
    assert (one["confirmed"], one["good"]) == (True, False)
    assert (one["beaten_by"], one["over_best_named"]["name"]) == (["good"], "good")
    assert judgement(asked)["good"] == 0


def test_tries_of_a_design_and_of_a_program_are_checked_apart_and_each_goes_on_as_what_it_began(
    machine, asked, capsys, monkeypatch  # noqa: F811
):  # fmt: skip
    searched = []

    def begin_program(program, request, _show):
        searched.append((program.words, request.budget))
        return search.begin_design_search("default", request)

    monkeypatch.setattr(search, "begin_program_search", begin_program)
    killed(machine, asked, 30)
    other = again(asked, program=["python", "own.py", "-v"])
    killed(machine, again(other, tries=2), 140)
    assert searched == [(("python", "own.py", "-v"), "120s")], "what was stopped comes first, and stays what it was"
    assert measure(again(asked, tries=1)) == 0
    assert judgement(asked)["of"] == {
        "design default": {"tries": 1, "good": 1}, "python own.py -v": {"tries": 1, "good": 1}
    }  # fmt: skip
    assert [one["check"] for one in judgement(asked)["each"].values()] == ["check-01", "check-02"]


def test_tries_that_are_measured_in_different_ways_are_not_mixed(machine, asked, capsys):  # noqa: F811
    measure(asked)
    assert measure(again(asked, budget="5m")) == 2
    assert measure(again(asked, named=1)) == 2
    assert "or name another folder: --to DIR" in capsys.readouterr().err
    machine.stops_at, machine.trouble = len(machine.ran) + 4, lambda _: KeyboardInterrupt()
    assert measure(asked) == 130
    assert "interrupted: the same command goes on" in capsys.readouterr().err


def test_a_check_may_hold_the_best_named_recipes_alone(machine, asked):  # noqa: F811
    assert measure(again(asked, named=0)) == 0
    (one,) = judgement(asked)["each"].values()
    assert (one["named"], one["over_best_named"], one["good"]) == ([], None, True)


def test_a_check_whose_baseline_fails_is_told_and_its_try_is_not_over(machine, asked, capsys):  # noqa: F811
    machine.down = ("independent-",)
    assert measure(asked) != 0
    said = capsys.readouterr().err
    assert "check-01 of try-01 ended too soon: stopped: the reference failed in the first block" in said
    assert "its logs are in" in said
    assert "not checked: 1/try-01" in said
    assert not (asked.to / "tune.json").exists()


def test_other_folders_and_a_line_that_was_cut_short_disturb_nothing(machine, asked):  # noqa: F811
    measure(asked)
    part = asked.to / "1"
    for name in ("try-01-copy", "try-more"):
        (part / name).mkdir()
        (part / name / "study.json").touch()
    with (part / "tries.jsonl").open("a") as file:
        file.write('{"try": "try-0')
    assert due(part, 1) == [part / "try-02"]
    assert measure(again(asked, tries=0)) == 0
    assert list(judgement(asked)["each"]) == ["1/try-01"]


def test_the_commit_of_the_code_is_known_where_git_knows_it(monkeypatch, tmp_path):
    monkeypatch.setattr(tuned, "_ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert commit() == ""
    made = ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "x"]
    for words in (["init", "-q"], made):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    (tmp_path / "results").mkdir()
    for name, is_other in (("results/tries.jsonl", False), ("file", True)):
        (tmp_path / name).touch()
        subprocess.run(["git", "-C", str(tmp_path), "add", name], check=True)
        assert re.fullmatch(r"[0-9a-f]{40}\+" if is_other else "[0-9a-f]{40}", commit())
