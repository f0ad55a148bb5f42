"""``envmatrix tune``: requests refused before anything runs, and messages about existing searches."""

from __future__ import annotations

import os
import re
from types import SimpleNamespace

import pytest

from envmatrix.api.tuning import search
from envmatrix.cli import command_table
from envmatrix.durations_and_sizes import parse_duration
from envmatrix.errors import InputError
from envmatrix.matrix.additions import replace_includes, with_only_design
from envmatrix.matrix.parse import parse
from envmatrix.search.loop import check_budget
from envmatrix.search.step_results import Step, spent_s
from envmatrix.search.study_folder import StudyFolder

MATRIX = """
version: 2
factors:
  size:
    small: {env: {SIZE: null}}
    "1.10": {env: {SIZE: "1.10"}}
    large: {env: {SIZE: large}, turns: false}
  place:
    here: {}
    there: {env: {PLACE: there}}
environments:
  baseline: {}
  both: {size: large, place: there}
workloads:
  own: {command: [python, x.py]}
  other: {command: [python, y.py]}
designs:
  default: {environments: [both], workloads: own}
  alone: {environments: [], workloads: own}
  two: {environments: [both], workloads: [own, other]}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    return tmp_path


def refused(*words):
    arguments = command_table.parse(["tune", *words])
    with pytest.raises(InputError) as error:
        command_table.run_command(arguments)
    return f"{error.value.message}; {error.value.remedy}"


def test_the_words_of_a_program_come_behind_the_options():
    arguments = command_table.parse(
        ["tune", "--budget", "20m", "--factors", "malloc,threads", "--", "python", "train.py", "-v"]
    )
    assert (arguments.command, arguments.budget, arguments.factors) == (
        ["python", "train.py", "-v"], 1200.0, ["malloc", "threads"]
    )  # fmt: skip
    assert arguments.design is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "envmatrix tune -- python train.py"),
        (["--metric-regex", "x"], "--metric-regex needs a program"),
        (["default", "--", "python", "x.py"], "cannot be combined with a program"),
        (["nothing"], "no design 'nothing'"),
        (["two"], "design 'two' has 2 workloads"),
        (["alone"], "no factor has a second level; a search uses the levels of the"),
        (["default", "--factors", "siz"], "no factor 'siz' to search"),
        (["default", "--name", "../x"], "not a valid name"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(folder, words, said):
    assert said in refused(*words)
    assert not (folder / "results").exists()


def test_a_design_is_searched_over_the_levels_of_its_environments(folder):
    said = []
    begun = search.begin_design_search("default", search.SearchRequest(budget="5m", name="mine", progress=said.append))
    assert begun.study.factors == {"size": ("large",), "place": ("there",)}
    assert begun.study.budget == 300.0
    assert begun.space.named == {"both": 3}
    assert said[0] == "searching 3 configurations of size, place"
    fewest = begun.search.fewest_trials()
    assert said[1] == f"this needs at least {fewest} trials: 5m is enough if a trial takes up to {300 / fewest:.2g} s"


def test_a_search_of_which_nothing_was_run_begins_anew_under_its_name_but_where_it_is_about_to(folder):
    def begin():
        return search.begin_design_search("default", search.SearchRequest(budget="5m", name="mine"))

    begun = begin()
    with pytest.raises(InputError, match="this search has not run anything yet") as caught:
        search.resume_study(search.find_study("mine"), None, lambda _: None)
    assert "the search starts over under the same name" in caught.value.remedy
    begin()
    begun.folder.lock()
    with pytest.raises(InputError, match="it already exists"):
        begin()
    begun.folder.unlock()
    (folder / "results" / "other").mkdir()
    with pytest.raises(InputError, match="it already exists"):
        search.begin_design_search("default", search.SearchRequest(budget="5m", name="other"))


def test_resume_without_a_name_goes_on_with_the_newest_a_search_or_a_run(folder):
    begun = search.begin_design_search("default", search.SearchRequest(budget="5m", name="mine"))
    run = folder / "results" / "a-run" / "run.json"
    run.parent.mkdir()
    run.write_text("{}")
    os.utime(run, (1.0, 1.0))
    assert search.find_study(None) == begun.folder.path
    os.utime(begun.folder.file, (0.5, 0.5))
    assert search.find_study(None) is None


def test_a_search_goes_on_where_it_began_and_with_no_target_of_its_own(folder):
    search.begin_design_search("default", search.SearchRequest(budget="5m", name="mine"))
    for words, said in (["--nodes", "2"], "where it was started"), (["--target", "1%"], "a search has no"):
        with pytest.raises(InputError, match=said):
            command_table.run_command(command_table.parse(["resume", "mine", *words]))


def test_a_budget_that_is_no_duration_is_told_to_whoever_asks_from_python_too(folder):
    with pytest.raises(InputError, match="--budget: 'soon' is no duration"):
        search.begin_design_search("default", search.SearchRequest(budget="soon", name="mine"))
    assert not (folder / "results").exists()


def test_a_name_that_no_search_can_have_is_refused_before_anything_runs():
    with pytest.raises(InputError, match="--name: 'a b' is not a valid name"):
        search.SearchRequest(name="a b")


def test_steps_are_in_order_however_many_there_are(tmp_path):
    for name in ("998-screen-x", "1000-screen-x", "999-screen-x", "999-screen-x-2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").touch()
    found = [step.path.name for step in StudyFolder(tmp_path).steps()]
    assert found == ["998-screen-x", "999-screen-x", "999-screen-x-2", "1000-screen-x"]


def test_a_budget_that_confirms_nothing_is_refused_with_the_one_that_does(folder):
    begun = search.begin_design_search("default", search.SearchRequest(budget="5m", name="mine"))
    with pytest.raises(InputError, match=r"20s cannot confirm anything: at 2\.0 s a trial") as error:
        search.check_budget(begun.search, 20.0, 2.0)
    assert f"{begun.search.fewest_trials()} trials" in error.value.message
    assert "--budget" in error.value.remedy
    search.check_budget(begun.search, begun.search.fewest_trials() * 2.0, 2.0)


def test_a_step_is_a_matrix_of_its_own_with_texts_as_they_were_written(folder):
    whole = parse(MATRIX, folder / "matrix.yaml")
    made = with_only_design(
        whole, "screen", {"environments": ["cell"], "workloads": ["own"], "max_blocks": 1}, {"cell": {"size": "1.10"}}
    )
    assert list(made.designs) == ["screen"]
    assert made.environments["cell"].levels == {"size": "1.10"}
    assert made.factors == whole.factors
    again = parse(made.text, folder / "matrix.yaml")
    assert again.environments == made.environments


def test_further_libraries_are_included_in_the_matrix_of_a_program(folder):
    made = replace_includes(
        "version: 2\nenvironments: {baseline: {}}\n", folder / "matrix.yaml", ["envmatrix:hugepages"]
    )
    assert "glibc" in made.factors["hugepages"].levels


def test_the_time_of_a_search_is_that_of_its_trials_and_what_lies_between_but_not_a_night():
    def step(*spans):
        return Step(None, {}, (), spans, None)

    assert spent_s([step((0.0, 2.0), (3.0, 5.0)), step((5.5, 6.0))]) == pytest.approx(6.0)
    assert spent_s([step((0.0, 2.0)), step((50_000.0, 50_002.0))]) == pytest.approx(14.0)


def test_the_budget_to_type_suffices_if_trials_take_a_quarter_longer_than_the_trial_run():
    wanted = SimpleNamespace(fewest_trials=lambda: 39, first=(1, 2))
    with pytest.raises(InputError, match="a budget of 4m30s cannot confirm anything") as told:
        check_budget(wanted, 270.0, 8.3)
    check_budget(wanted, parse_duration(re.search(r"--budget (\w+)", told.value.remedy)[1]), 1.25 * 8.3)
