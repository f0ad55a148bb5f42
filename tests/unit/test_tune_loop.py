"""A whole search on disk with simulated trials: it resumes, reports failures, and stops if no answer is possible."""

from __future__ import annotations

import contextlib
import json
import random
import re
import sys
from types import SimpleNamespace

import pytest

from envmatrix.__main__ import main
from envmatrix.api.tuning import search
from envmatrix.engines.local import LocalEngine
from envmatrix.errors import EngineGoneError, InputError, NothingRanError, StoppedRunError, StoreError
from envmatrix.launchers.local import Here
from envmatrix.results.folder import RunFolder
from envmatrix.results.trial import trial_of
from envmatrix.runner import loop
from envmatrix.search.loop import watch_step
from envmatrix.search.study_folder import StudyFolder

MATRIX = """
version: 2
factors:
  python: {{mine: {{interpreter: {python}}}}}
  size: {{small: {{}}, large: {{env: {{SIZE: large}}}}, broken: {{env: {{SIZE: broken}}}}}}
  place: {{here: {{}}, there: {{env: {{PLACE: there}}}}}}
  inert: {{no: {{}}, yes: {{env: {{INERT: "1"}}}}}}
environments:
  baseline: {{}}
  good: {{size: large, place: there, inert: yes}}
  bad: {{size: broken}}
workloads:
  own: {{command: [python, -c, "pass"], metric: {{regex: "speed: ([0-9.]+)", better: higher}}}}
designs:
  default: {{environments: [good, bad], workloads: own}}
"""


class Stopped(BaseException):
    """Simulates kill -9: no handler runs after it."""


class Machine:
    """Simulated machine that runs trials instantly; the speed of a cell follows from its levels."""

    def __init__(self, monkeypatch, gains):
        self.gains, self.ran, self.stops_at, self.clock = gains, [], None, 1000.0
        self.between_s, self.slow_from = 0.0, 10_000
        self.wall_s, self.noise, self.trouble = 1.0, 0.01, None
        self.down, self.fallen = (), {}  # parts of run names, and the first run with each: all its trials fail
        self.chance = random.Random(4)
        monkeypatch.setattr(loop, "run_with_rebuild", self.run)
        monkeypatch.setattr(loop, "_remove_leftovers", lambda *_: None)
        monkeypatch.setattr(search, "time", SimpleNamespace(time=lambda: self.clock))
        monkeypatch.setattr(loop, "alone_on_machine", lambda _: contextlib.nullcontext())
        monkeypatch.setattr(Here, "trials", self.trials)
        made, prepare = {}, LocalEngine.prepare

        def prepared(
            engine, image, libraries, progress
        ):  # a step asks the same Python the same questions as the previous step
            if image.name not in made:
                made[image.name] = prepare(engine, image, libraries, progress)
            return made[image.name]

        monkeypatch.setattr(LocalEngine, "prepare", prepared)

    def trials(self, blocks, work):
        for block in blocks:
            for slot in block:
                yield work.run(slot)

    def run(self, experiment, slot, _say):
        if len(self.ran) == self.stops_at:
            raise self.trouble(experiment) if self.trouble else Stopped
        levels = experiment.run.environments[slot.arm.runs].levels
        name = experiment.run.name
        self.ran.append((name, slot.trial))
        wall_s = self.wall_s * (1.0 if len(self.ran) < self.slow_from else 1.5)
        self.clock += wall_s + self.between_s
        gain = sum(self.gains.get(level, 0.0) or 0.0 for level in levels.values())
        about = {"wall_s": wall_s, "started": self.clock - wall_s}
        self.fallen |= {part: name for part in self.down if part in name and part not in self.fallen}
        if name in self.fallen.values() or any(self.gains.get(level, 0.0) is None for level in levels.values()):
            return trial_of(slot, "failed", "no metric in its output", **about)
        if gain < -0.9:
            ended = "ran past its limit and was ended after 10 s"
            return trial_of(slot, "timed_out", f"{ended} (raise `trial_limit` of design screen, or less work)", **about)
        value = 100.0 * (1.0 + gain) * (1.0 + self.chance.gauss(0.0, self.noise))
        return trial_of(
            slot, "ok", document={"schema": 1, "metrics": {"value": value, "peak_rss_bytes": 2**28}}, **about
        )


@pytest.fixture
def machine(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.yaml").write_text(MATRIX.format(python=sys.executable))
    return Machine(monkeypatch, {"large": 0.2, "there": 0.1, "broken": None})


def watch(experiment, label):
    return watch_step(experiment, label, quiet=True, tell=lambda _: None)


def begun(said=None, budget="120s", **more):
    progress = said.append if said is not None else lambda _: None
    return search.begin_design_search(
        "default", search.SearchRequest(budget=budget, name="mine", **more, progress=progress)
    )


def test_a_search_finds_the_fewest_settings_confirms_them_and_tells_what_failed(machine, tmp_path):
    said = []
    result = search.finish_search(begun(said), watch)
    assert result.settings == {"size": "large", "place": "there"}
    low, high = result.interval
    assert low < 1.3 < high
    assert result.answer.dropped == {"size=broken": "failed: no metric in its output"}
    assert [one.factor for one in result.answer.contributions] == ["size", "place"]
    assert result.exit_code == 0
    assert result.answer.spent_s <= 1.05 * 120
    assert "export SIZE=large" in result.lines
    assert sum(result.answer.phases.values()) == len(machine.ran)
    body = json.loads((tmp_path / "results/mine/tune.json").read_text())
    assert (body["recommended"], body["low"]) == ({"size": "large", "place": "there"}, low)
    page = (tmp_path / "results/mine/report.html").read_text()
    assert "size=broken" in page.partition('id="dropped"')[2]
    levels = page.partition('id="levels"')[2].partition("</table>")[0]
    assert "size=large" in levels
    assert "size=broken" not in levels, "it was never read"
    assert "fresh blocks" in page
    assert re.search(r"Of python -c pass \(engine local, .*\), started 20\d\d-\d\d-\d\d \d\d:\d\d UTC\.", page)
    assert ">speed relative to the baseline</text>" in page
    assert ">trials, in the order they ran</text>" in page
    assert any(line.startswith("confirm") and "not confirmed" in line for line in said)
    assert result.answer.headline.endswith(" Equal work not checked.")
    (short,) = body["cautions"]
    assert short.startswith("Short run (")
    assert not body["equal_work_checked"]
    assert short in str(result)
    assert short in page
    early = search.TuneResult(result.folder, interrupted=True)
    assert (early.interval, early.settings, early.ratio) == (None, {}, None), "nobody ends it for what it shows so far"
    assert early.answer.headline == "Not finished yet: size=large, place=there is being confirmed."


@pytest.mark.parametrize("read_once", ["", ", read_once: true"])
@pytest.mark.parametrize(("at", "is_confirmed"), [(0, False), (6, False), (30, False), (112, True)])
def test_a_killed_search_goes_on_from_its_trials_and_loses_and_repeats_none(
    machine, tmp_path, at, is_confirmed, read_once
):
    file = tmp_path / "matrix.yaml"
    file.write_text(file.read_text().replace("workloads: own}", f"workloads: own{read_once}}}"))
    assert "workloads: own" + read_once in file.read_text()
    machine.stops_at = at
    with pytest.raises(Stopped):
        search.finish_search(begun(), watch)
    machine.stops_at = None
    result = search.finish_search(search.resume_study(search.find_study("mine"), None, lambda _: None), watch)
    assert result.settings == {"size": "large", "place": "there"}
    assert len(machine.ran) == len(set(machine.ran)) == sum(result.answer.phases.values())
    confirmation = StudyFolder(result.folder).steps()[-1].load()
    assert bool(confirmation.plan.looked) is is_confirmed, "what could be read of a confirmation is paid for"


def resumed(budget=None):
    return search.TuneResult(search.find_study("mine")).resume(budget=budget)


@pytest.mark.parametrize("step", [1, 2, 5])
def test_a_search_killed_before_the_run_of_a_step_was_written_goes_on_all_the_same(machine, monkeypatch, step):
    create, begun_ = RunFolder.create, []

    def killed(folder, *about, **more):
        begun_.append(folder)
        folder.logs.mkdir(parents=True)
        if len(begun_) == step:
            raise Stopped
        create(folder, *about, **more)

    monkeypatch.setattr(RunFolder, "create", killed)
    with pytest.raises(Stopped):
        search.finish_search(begun(), watch)
    result = search.finish_search(begun(), watch) if step == 1 else resumed()
    assert result.settings == {"size": "large", "place": "there"}
    assert len(machine.ran) == sum(result.answer.phases.values())


def test_what_every_step_has_to_say_as_it_gets_ready_is_told_once(machine, monkeypatch):
    prepare = LocalEngine.prepare

    def prepared(engine, image, libraries, progress):
        progress("data: made up")
        return prepare(engine, image, libraries, progress)

    monkeypatch.setattr(LocalEngine, "prepare", prepared)
    said = []
    search.finish_search(begun(said), watch)
    assert said.count("data: made up") == 1


def test_each_step_is_told_what_memory_processes_had_in_those_before_it(machine, monkeypatch):
    told, groups = [], loop.TrialGrouper

    def made(*given, usual, **more):
        told.append(usual)
        return groups(*given, usual=usual, **more)

    monkeypatch.setattr(loop, "TrialGrouper", made)
    search.finish_search(begun(), watch)
    assert told[0] == {}
    assert all(usual == {"own": 2**28} for usual in told[1:])
    assert len(told) > 3


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("at", [0, 40])
def test_ctrl_c_ends_it_and_what_is_written_says_so_until_it_is_over(machine, at):
    machine.stops_at, machine.trouble = at, lambda _: KeyboardInterrupt()
    result = search.finish_search(begun(), watch)
    assert (result.exit_code, result.settings) == (130, {})
    assert json.loads((result.folder / "tune.json").read_text())["interrupted"] is True
    assert "Not finished yet" in (result.folder / "report.html").read_text()
    machine.stops_at = None
    assert resumed().settings == {"size": "large", "place": "there"}
    assert json.loads((result.folder / "tune.json").read_text())["interrupted"] is False


def test_the_page_of_a_search_is_made_again_from_its_trials_on_any_machine(machine, tmp_path, monkeypatch, capsys):
    """Guards against `envmatrix report SEARCH` refusing a search as not a run."""
    result = search.finish_search(begun(), watch)
    written = {name: (result.folder / name).read_text() for name in ("tune.json", "report.html")}
    for name in written:
        (result.folder / name).write_text(written[name].replace("size=large", "old"))
    monkeypatch.setattr("envmatrix.search.study_folder.this_host", None)
    assert main(["report", "mine"]) == 0
    assert {name: (result.folder / name).read_text() for name in written} == written
    assert result.answer.headline in capsys.readouterr().out
    assert main(["report"]) == 0, "the newest one is the search"


def test_what_is_shown_of_a_search_that_was_killed_while_it_confirmed_claims_nothing(machine, capsys):
    machine.stops_at = 112
    with pytest.raises(Stopped):
        search.finish_search(begun(), watch)
    assert main(["report", "mine", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["headline"].startswith(
        "Not finished yet: size=large, place=there is being"
    )
    machine.stops_at = None
    assert resumed().settings
    machine.stops_at = len(machine.ran) + 6
    with pytest.raises(Stopped):
        resumed("240s")
    assert main(["report", "mine"]) == 0
    assert "Not finished yet" in capsys.readouterr().out, "what it told of at its end is not all that is there now"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("step", ["002-", "confirm"])
def test_a_baseline_that_fails_in_one_step_alone_costs_that_step_alone(machine, step):
    said, machine.down = [], (step,)
    result = search.finish_search(begun(said), watch)
    assert result.settings == {"size": "large", "place": "there"}
    assert sum(line.startswith("the baseline failed in this step") for line in said) == 1
    assert result.answer.dropped == {"size=broken": "failed: no metric in its output"}, "nothing else is to blame"


def test_a_baseline_that_fails_twice_in_a_row_ends_the_search_which_goes_on_when_that_is_mended(machine):
    machine.down = ("003-", "004-")
    with pytest.raises(NothingRanError, match="the baseline fails") as caught:
        search.finish_search(begun(), watch)
    assert "envmatrix resume mine" in caught.value.remedy
    assert resumed().settings == {"size": "large", "place": "there"}


def test_a_longer_budget_gives_a_search_that_was_over_more_fresh_blocks(machine):
    machine.noise = 0.05
    first = search.finish_search(begun(), watch)
    ran, again = len(machine.ran), resumed("240s")
    assert again.answer.effect.blocks > first.answer.effect.blocks + 10
    assert {run for run, _ in machine.ran[ran:]} == {StudyFolder(again.folder).steps()[-1].path.name}
    assert StudyFolder(again.folder).steps()[-1].load().plan.looked, "it went on because of what was read"
    assert 0.9 * 240 < again.answer.spent_s <= 1.05 * 240


def test_a_search_that_was_given_no_budget_takes_as_many_trials_as_it_needs(machine):
    said = []
    machine.wall_s = 100.0
    result = search.finish_search(begun(said, budget=None), watch)
    assert result.answer.effect.blocks >= 6
    assert any(line.startswith("no --budget was given: using ") for line in said)
    fewest = search.resume_study(result.folder, None, lambda _: None).search.fewest_trials()
    assert 1200 < result.answer.spent_s <= 1.05 * 1.15 * fewest * 100


def test_what_stops_a_search_says_how_the_search_goes_on(machine):
    def gone(experiment):
        return EngineGoneError("gone", remedy=f"when it is back, `envmatrix resume {experiment.run.name}` goes on")

    machine.stops_at, machine.trouble = 30, gone
    with pytest.raises(EngineGoneError) as caught:
        search.finish_search(begun(), watch)
    assert caught.value.remedy == "when it is back, `envmatrix resume mine` goes on"
    machine.trouble = lambda _: StoreError("No space left on device", remedy="free some space")
    with pytest.raises(StoppedRunError, match="the search was stopped") as full:
        resumed()
    assert "free some space; `envmatrix resume mine` continues" in full.value.remedy
    machine.stops_at = None
    assert resumed().settings == {"size": "large", "place": "there"}


def test_locks_are_looked_for_beside_the_matrix_that_it_began_with(machine, tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "matrix.yaml").rename(tmp_path / "there" / "other.yaml")
    machine.stops_at = 3
    with pytest.raises(Stopped):
        search.finish_search(
            search.begin_design_search(
                "default",
                search.SearchRequest(budget="120s", name="mine"),
                matrix="there/other.yaml",
            ),
            watch,
        )
    (tmp_path / "matrix.yaml").write_text("no matrix at all: [")
    again = search.resume_study(search.find_study("mine"), None, lambda _: None)
    assert again.matrix.path == "there/other.yaml"


def test_nobody_else_writes_to_a_search_that_goes_on(machine):
    machine.stops_at = 30
    with pytest.raises(Stopped):
        search.finish_search(begun(), watch)
    holder = StudyFolder(search.find_study("mine"))
    holder.lock()
    with pytest.raises(StoreError, match="another envmatrix is writing"):
        resumed()
    holder.unlock()


def test_a_search_that_is_over_is_resumed_without_a_further_trial(machine):
    search.finish_search(begun(), watch)
    ran = len(machine.ran)
    again = search.finish_search(search.resume_study(search.find_study("mine"), None, lambda _: None), watch)
    assert len(machine.ran) == ran
    assert again.settings == {"size": "large", "place": "there"}


def test_a_budget_holds_where_much_time_lies_between_the_trials(machine):
    machine.between_s = 0.4  # overhead of starting and ending trials of one second
    machine.slow_from = 60  # the machine becomes slower at some time
    result = search.finish_search(begun(), watch)
    assert result.settings == {"size": "large", "place": "there"}
    assert 0.9 * 120 < result.answer.spent_s <= 1.05 * 120


def test_nothing_is_recommended_where_nothing_gains(machine):
    machine.gains = {"large": -0.2, "there": -0.1, "broken": None, "yes": -0.1}
    result = search.finish_search(begun(), watch)
    assert (result.settings, result.ratio, result.lines) == ({}, None, "")
    assert "no configuration is expected to be better" in result.answer.headline


def test_where_every_candidate_fails_that_is_said(machine):
    machine.gains = {"large": None, "there": None, "broken": None, "yes": None}
    result = search.finish_search(begun(), watch)
    assert result.exit_code == 4
    assert "no configuration had a successful trial" in result.answer.headline
    assert set(result.answer.dropped) >= {"size=large", "size=broken", "place=there", "inert=yes"}


def test_what_takes_hopelessly_long_is_told_of_as_that(machine):
    machine.gains["broken"] = -9.0
    result = search.finish_search(begun(), watch)
    assert result.settings == {"size": "large", "place": "there"}
    said = "timed_out: ran past its limit and was ended after 10 s (`trial_limit`, or four times the baseline)"
    assert result.answer.dropped == {"size=broken": said}


def test_a_baseline_that_fails_ends_the_search(machine):
    machine.gains = {"small": None}
    with pytest.raises(NothingRanError, match="the baseline fails") as caught:
        search.finish_search(begun(), watch)
    assert "start another search (another --name, or remove results/mine)" in caught.value.remedy


def test_a_budget_that_turns_out_too_small_ends_it_after_each_level_was_seen_once(machine):
    with pytest.raises(InputError, match=r"cannot confirm anything: at 1\.0 s a trial") as caught:
        search.finish_search(begun(budget="20s"), watch)
    assert {run for run, _ in machine.ran} == {"001-evidence-mine"}
    budget = re.search("continue with `envmatrix resume mine --budget (.*)`", caught.value.remedy)[1]
    assert resumed(budget).settings == {"size": "large", "place": "there"}
    assert len(machine.ran) == len(set(machine.ran))
