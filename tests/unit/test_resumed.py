"""Changes by `resume` are stored in the run, stay in effect, and are shown in every report."""

from __future__ import annotations

import io
import json
import re
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from rich.console import Console

from envmatrix.__main__ import main
from envmatrix.api import runs
from envmatrix.api.result import Result
from envmatrix.cli import progress_and_result
from envmatrix.errors import InputError, StoppedRunError, StoreError, Where
from envmatrix.plan import Plan
from envmatrix.report.formats.terminal import print_summary
from envmatrix.report.report_data import summarise_measurements
from envmatrix.report.write import write_reports
from envmatrix.results import RunFolder
from envmatrix.runner.loop import RunEnding
from envmatrix.stats.measurements import fold_trials
from envmatrix.trials.experiment_setup import Experiment
from envmatrix.trials.new_run_options import NewRun
from envmatrix.trials.resume_overrides import apply_resume_changes
from envmatrix.version import __version__
from tests.synthetic import Machine, make_plan, make_run, make_trials, write_run


@pytest.fixture
def begun(tmp_path):
    """Return a function that loads, like a later start, a run with a budget of 300 s."""
    # With too few blocks for an analysis, the history has only the requests.
    written = write_run(tmp_path / "run", make_plan(("a",)), Machine({"a": 1.2}), 4)

    def start():
        folder = RunFolder(written.path)
        return Experiment(folder.load(), folder, {}, {}, tmp_path, tmp_path)

    return start


def again(experiment, **asked):
    found = apply_resume_changes(experiment, **asked)
    experiment.folder.unlock()
    return found


def test_a_budget_given_twice_stands_twice_and_a_later_start_without_one_has_the_last(begun):
    assert again(begun(), budget="10m", command=("resume", "--budget", "10m")).plan.budget_s == 600
    assert again(begun(), budget=900.0).plan.budget_s == 900
    assert again(begun()).plan.budget_s == 900
    history = begun().run.history
    assert [(change.budget, change.was) for change in history] == [(600, {"budget": "300"}), (900, {"budget": "600"})]
    assert history[0].command == ("resume", "--budget", "10m")
    assert {change.envmatrix for change in history} == {__version__}
    assert all(change.at.endswith("+00:00") for change in history)


def test_a_run_that_has_had_all_its_blocks_gets_more_of_them(begun):
    assert again(begun(), max_blocks=400).plan.max_blocks == 400
    assert again(begun()).plan.max_blocks == 400
    (change,) = begun().run.history
    assert (change.max_blocks, change.was) == (400, {"max_blocks": "40"})
    with pytest.raises(InputError, match="--max-blocks: this run may already have 400 blocks"):
        again(begun(), max_blocks=399)


def test_a_race_keeps_its_most_number_of_blocks_from_which_its_decisions_follow(begun):
    race = begun().run
    race = race.model_copy(update={"design": race.design.model_copy(update={"race": True})})
    begun().folder.run_file.write_text(race.model_dump_json(by_alias=True))
    with pytest.raises(InputError, match="this run is a race"):
        again(begun(), max_blocks=400)


def test_what_is_undecided_at_the_end_is_told_with_the_command_that_gives_it_as_much_time_again(tmp_path):
    """The trials of six blocks of baseline, control and two others take 2 min 12 s: more than the budget."""
    names, noisy = ("a", "b"), Machine({"b": 2.0}, noise=0.1)

    def told(name, noise=noisy, **more):
        plan = make_plan(names, budget_s=60.0, **more)
        return progress_and_result.undecided_advice(Result(write_run(tmp_path / name, plan, noise, 6).path))

    assert re.fullmatch(r"undecided: a; to run longer: envmatrix resume noisy --budget 4m[0-5]0s", told("noisy"))
    assert told("full", max_blocks=6).endswith("s --max-blocks 12")
    assert told("quiet", Machine({"a": 1.2, "b": 2.0}, noise=0.001)) == ""
    assert told("narrow", target=0.9) == "", "precision had ended it"
    assert told("race", race=True) == ""
    assert told("look", max_blocks=6, min_blocks=7) == "", "it was to claim nothing"


def test_for_more_blocks_of_a_run_that_is_read_once_a_new_one_is_told(tmp_path):
    folder = write_run(tmp_path / "once", make_plan(("a",), read_once=True), Machine({"a": 1.02}), 8)
    assert re.search(
        r"to run longer: envmatrix bench quick --budget", progress_and_result.undecided_advice(Result.of(folder))
    )


def test_what_does_not_change_is_not_written(begun):
    found = again(begun(), budget="5m", target="3%", launcher_options={})
    assert (found.run.history, begun().folder.history_file.exists()) == ((), False)


@pytest.mark.parametrize(("budget", "told"), [("5m", True), ("2m", True), ("10m", False), (None, False)])
def test_a_budget_that_the_run_has_had_is_told_to_be_that_of_the_whole_run(begun, monkeypatch, budget, told):
    said = []
    monkeypatch.setattr(runs, "reopen_experiment", lambda *_: begun())
    runs.reopen_run(begun().folder.path, NewRun(progress=said.append), budget=budget).folder.unlock()
    assert any("the whole run, which has already used 5m" in line for line in said) is told


def test_the_target_and_what_is_asked_of_the_launcher_are_changed_in_the_same_way(begun):
    again(begun(), target="1%", launcher_options={"partition": "long"})
    again(begun(), launcher_options={"nodes": "2"})
    run = begun().run
    assert (run.plan.target, dict(run.launcher_options)) == (0.01, {"partition": "long", "nodes": "2"})
    assert 'target 0.03 to 0.01, launcher_options {} to {"partition": "long"}' in run.history[0].text()


def test_what_cannot_be_is_refused_and_nothing_is_written(begun):
    for asked in ({"budget": "soon"}, {"budget": 0}, {"target": "200%"}):
        with pytest.raises(InputError, match=f"--{next(iter(asked))}: "):
            again(begun(), **asked)
        assert begun().run.history == ()


def test_a_run_that_another_envmatrix_writes_to_is_not_changed(begun):
    other = begun().folder
    other.lock()
    with pytest.raises(StoreError, match="another envmatrix is writing"):
        apply_resume_changes(begun(), budget="10m")
    other.unlock()
    assert begun().run.history == ()


def test_every_report_says_what_was_changed_and_when(begun):
    again(begun(), budget="10m")
    again(begun(), target="1%")
    folder = begun().folder
    summary = write_reports(folder)
    out = io.StringIO()
    print_summary(summary, Console(file=out, width=200, force_terminal=False))
    for text in (out.getvalue(), *((folder.path / name).read_text() for name in ("report.md", "report.html"))):
        assert "budget 300 to 600" in text
        assert "target 0.03 to 0.01" in text
    first, second = json.loads((folder.path / "summary.json").read_text())["changes"]
    assert (first["budget"], second["target"], first["was"]) == (600.0, 0.01, {"budget": "300"})


def test_reports_that_cannot_be_written_are_no_bad_input_and_can_be_made_later(tmp_path, monkeypatch):
    def full(*_, **__):
        raise StoreError("No space left on device", where=Where(tmp_path / "summary.json"))

    run = make_run(make_plan(("a",)), "r")
    monkeypatch.setattr(runs, "run_experiment", lambda *_: RunEnding())
    monkeypatch.setattr(runs, "write_reports", full)
    watched = SimpleNamespace(progress=print)
    with pytest.raises(StoppedRunError, match="its reports could not be written") as caught:
        runs.finish_run(SimpleNamespace(folder=RunFolder(tmp_path), run=run), lambda _: nullcontext(watched))
    assert caught.value.exit_code == 4
    assert caught.value.remedy.endswith("then `envmatrix report r`")


PLAIN = """version: 2
factors: {python: {own: {interpreter: PYTHON}}, colour: {none: {}, red: {env: {COLOUR: red}}}}
environments: {baseline: {}, red: {colour: red}}
workloads: {say: {command: [python, -c, "print('speed 2')"], metric: {regex: "speed (.*)"}}}
designs: {default: {environments: [red], workloads: say, min_blocks: 2, max_blocks: 2, budget: 1m}}
"""


def test_an_interpreter_that_is_gone_stops_a_resume_which_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENVMATRIX_CACHE", str(tmp_path / "cache"))
    (tmp_path / "matrix.yaml").write_text(PLAIN.replace("PYTHON", sys.executable))
    assert main(["bench", "--engine", "local", "--name", "one", "--quiet"]) == 0, capsys.readouterr()
    lines = tmp_path / "results" / "one" / "trials.jsonl"
    kept = lines.read_text().split("\n", 1)[0] + "\n"
    lines.write_text(kept)
    run = tmp_path / "results" / "one" / "run.json"
    run.write_text(re.sub(r'"interpreter": "[^"]*"', '"interpreter": "/nowhere/python"', run.read_text()))
    assert main(["resume", "one", "--quiet"]) == 4
    assert "is no longer available on local: interpreter: " in capsys.readouterr().err
    assert lines.read_text() == kept


def test_a_complete_run_that_is_resumed_is_read_once_and_its_blocks_are_not_planned_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENVMATRIX_CACHE", str(tmp_path / "cache"))
    (tmp_path / "matrix.yaml").write_text(PLAIN.replace("PYTHON", sys.executable))
    assert main(["bench", "--engine", "local", "--name", "one", "--quiet"]) == 0
    calls, readings, block = [], RunFolder.readings, Plan.block
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "readings", lambda *arguments: calls.append("read") or readings(*arguments))
        patch.setattr(Plan, "block", lambda *arguments: calls.append("planned") or block(*arguments))
        assert main(["resume", "one", "--quiet"]) == 0
    assert calls == ["read"]
    file = tmp_path / "results" / "one" / "summary.json"
    resumed = file.read_text()
    assert main(["report", "one"]) == 0
    assert file.read_text() == resumed


@pytest.mark.parametrize(("most", "asked"), [(40, "budget"), (4, "budget and a `--max-blocks` above 4")])
def test_a_report_says_that_a_run_has_had_all_its_blocks(most, asked):
    plan = make_plan(("a",), max_blocks=most)
    cautions = summarise_measurements(make_run(plan), fold_trials(plan, make_trials(plan, Machine({}), 4))).cautions
    (few,) = (caution for caution in cautions if caution.kind == "too-few-blocks")
    assert few.remedy == f"`envmatrix resume made-up` with a larger {asked}: 2 more blocks needed"
