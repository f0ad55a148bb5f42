"""How `nox -s selfbench -- --tune` judges a try."""

import argparse
import json
import re
import subprocess

import pytest

from tests import tuned
from tests.tuned import commit, due, judged, line_of, measure, summary_of
from tests.unit.test_tune_loop import Machine, Stopped, machine  # noqa: F401 - a fixture


@pytest.mark.parametrize(
    ("claimed", "low", "high", "faster", "good"),
    [((1.1, 1.3), 1.15, 1.25, True, True), ((1.1, 1.3), 0.99, 1.25, False, False),
     ((1.4, 1.6), 1.1, 1.3, True, False), ((1.1, 1.3), None, None, False, False)],
)  # fmt: skip
def test_a_try_is_good_where_another_run_shows_the_gain_that_was_claimed(claimed, low, high, faster, good):
    found = judged(claimed, low, high)
    assert (found["faster"], found["good"]) == (faster, good)


def test_nine_of_ten_are_wanted_and_fewer_tries_decide_nothing():
    time = {"spent_s": 1210.0, "budget_s": 1200.0}
    good, none = {"good": True, "beaten_by": [], **time}, {"good": None, **time, "spent_s": 1300.0}
    beaten = {**good, "beaten_by": ["tcmalloc"]}
    tries = {f"try-{number}": good for number in range(9)}
    assert summary_of(tries)["verdict"].startswith("not decided")
    assert summary_of({**tries, "a": none}) == {"tries": 10, "good": 9, "within_budget": 9, "verdict": "MET"}
    assert summary_of({**tries, "last": beaten})["good"] == 9
    assert summary_of({**tries, "a": none, "b": beaten})["verdict"] == "MISSED"


def test_a_try_is_told_in_a_line():
    about = {"recipe": {"malloc": "tcmalloc"}, "spent_s": 1190.0, "budget_s": 1200.0, "good": True, "beaten_by": [],
             "over_best_named": {"name": "jemalloc", "ratio": 1.01, "low": 0.97, "high": 1.05}}  # fmt: skip
    one = {**about, "claimed": 1.2, "interval": (1.1, 1.3), "ratio": 1.21, "low": 1.17, "high": 1.25, "blocks": 40}
    said = (
        "malloc=tcmalloc claimed 1.200 (1.100 to 1.300), found 1.210 (1.170 to 1.250) in 40 blocks, "
        "1.010 (0.970 to 1.050) times the best named, jemalloc: good; 1190 s of 1200 s"
    )
    assert line_of("try-01", one).strip() == f"try-01: {said}"
    said = line_of("try-01", {**one, "beaten_by": ["jemalloc"]})
    assert said.endswith("beaten by jemalloc: not good; 1190 s of 1200 s")
    assert "nothing was recommended" in line_of("try-01", {**about, "good": None})


@pytest.fixture
def asked(machine, tmp_path):  # noqa: F811
    return argparse.Namespace(to=tmp_path / "tries", program=[], design="default", engine="local", matrix=None,
                              budget="120s", blocks=7, tries=1)  # fmt: skip


def judgement(chosen):
    return json.loads((chosen.to / "tune.json").read_text())


def killed(machine, chosen, at):  # noqa: F811
    machine.stops_at = at
    with pytest.raises(Stopped):
        measure(chosen)
    machine.stops_at = None


def test_tries_are_stopped_anywhere_and_the_same_command_goes_on(machine, asked, monkeypatch, capsys):  # noqa: F811
    monkeypatch.setattr(tuned, "commit", lambda: "abc")
    killed(machine, asked, 20)
    assert measure(argparse.Namespace(**{**vars(asked), "tries": 0})) == 1, "nothing is over: nothing is judged"
    assert not (asked.to / "tune.json").exists()
    monkeypatch.setattr(tuned, "commit", lambda: "def+")
    killed(machine, asked, 125)
    independent = [run for run, _ in machine.ran if run.startswith("independent-")]
    assert independent
    assert measure(asked) == 0
    found = judgement(asked)
    assert list(found["of"]) == ["try-01"], "what was killed is gone on with, and is no further try"
    one = found["of"]["try-01"]
    assert (one["good"], one["blocks"], one["commits"]) == (True, 7, ["abc", "def+"])
    assert (one["beaten_by"], one["over_best_named"]["name"]) == ([], "good")
    assert found["within_budget"] == 1
    assert len(machine.ran) == len(set(machine.ran)), "no trial runs twice"
    assert "times the best named, good: good; " in capsys.readouterr().out
    ran = len(machine.ran)
    assert due(asked) == [asked.to / "try-02"]
    assert measure(argparse.Namespace(**{**vars(asked), "tries": 0})) == 0
    assert len(machine.ran) == ran


def test_a_try_that_recommends_nothing_is_over_without_an_independent_run_and_not_good(machine, asked):  # noqa: F811
    machine.gains = {"large": -0.2, "there": -0.1, "broken": None}
    assert measure(asked) == 0
    assert [one["good"] for one in judgement(asked)["of"].values()] == [None]
    assert not any(run.startswith("independent") for run, _ in machine.ran)


def test_a_recipe_that_a_named_one_beats_is_not_good(machine, asked):  # noqa: F811
    killed(machine, asked, 122)
    machine.gains["yes"] = 0.5  # the machine has changed since the search: now the named recipe's third setting helps
    assert measure(asked) == 0
    one = judgement(asked)["of"]["try-01"]
    assert (one["good"], one["beaten_by"], one["over_best_named"]["name"]) == (True, ["good"], "good")
    assert judgement(asked)["good"] == 0


def test_tries_of_different_things_are_not_mixed_and_ctrl_c_is_told_with_a_way_on(machine, asked, capsys):  # noqa: F811
    measure(asked)
    assert measure(argparse.Namespace(**{**vars(asked), "budget": "5m"})) == 2
    assert "another folder: --to DIR" in capsys.readouterr().err
    machine.stops_at, machine.trouble = len(machine.ran) + 4, lambda _: KeyboardInterrupt()
    assert measure(asked) == 130
    assert "interrupted: the same command goes on" in capsys.readouterr().err


def test_the_commit_of_the_code_is_known_where_git_knows_it(monkeypatch, tmp_path):
    monkeypatch.setattr(tuned, "_ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert commit() == ""
    made = ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "x"]
    for words in (["init", "-q"], made):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    assert re.fullmatch("[0-9a-f]{40}", commit())
    (tmp_path / "file").touch()
    subprocess.run(["git", "-C", str(tmp_path), "add", "file"], check=True)
    assert commit().endswith("+")
