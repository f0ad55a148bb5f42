"""A whole search on disk, its trials made up: it is resumed, tells what failed, and stops where nothing can be said."""

from __future__ import annotations

import contextlib
import json
import random
import sys

import pytest

from envmatrix.api import tunes
from envmatrix.errors import InputError, NothingRanError
from envmatrix.launchers.here import Here
from envmatrix.runner import loop
from envmatrix.runner.tuning_progress import watch_step
from envmatrix.store.study import StudyFolder
from envmatrix.store.trial import trial_of

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
    """What kill -9 is to a loop: nothing behind it runs."""


class Machine:
    """Runs trials in no time at all: how fast a cell is follows from its levels."""

    def __init__(self, monkeypatch, gains):
        self.gains, self.ran, self.stops_at, self.clock = gains, [], None, 1000.0
        self.between_s, self.slow_from = 0.0, 10_000
        self.chance = random.Random(4)
        monkeypatch.setattr(loop, "run_surely", self.run)
        monkeypatch.setattr(loop, "_sweep", lambda *_: None)
        monkeypatch.setattr(loop, "alone_on_machine", lambda _: contextlib.nullcontext())
        monkeypatch.setattr(Here, "trials", self.trials)

    def trials(self, blocks, work):
        for block in blocks:
            for slot in block:
                yield work.run(slot)

    def run(self, experiment, slot, _say):
        if len(self.ran) == self.stops_at:
            raise Stopped
        levels = experiment.run.environments[slot.arm.runs].levels
        self.ran.append((experiment.run.name, slot.trial))
        wall_s = 1.0 if len(self.ran) < self.slow_from else 1.5
        self.clock += wall_s + self.between_s
        gain = sum(self.gains.get(level, 0.0) or 0.0 for level in levels.values())
        about = {"wall_s": wall_s, "started": self.clock - wall_s}
        if any(self.gains.get(level, 0.0) is None for level in levels.values()):
            return trial_of(slot, "failed", "no metric in its output", **about)
        value = 100.0 * (1.0 + gain) * (1.0 + self.chance.gauss(0.0, 0.01))
        return trial_of(slot, "ok", document={"schema": 1, "metrics": {"value": value}}, **about)


@pytest.fixture
def machine(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.yaml").write_text(MATRIX.format(python=sys.executable))
    return Machine(monkeypatch, {"large": 0.2, "there": 0.1, "broken": None})


def watch(experiment, label):
    return watch_step(experiment, label, quiet=True, tell=lambda _: None)


def begun(said=None, budget="120s", **more):
    say = said.append if said is not None else lambda _: None
    return tunes.begin_design("default", tunes.Sought(budget, name="mine", **more), None, None, say)


def test_a_search_finds_the_fewest_settings_confirms_them_and_tells_what_failed(machine, tmp_path):
    said = []
    result = tunes.carry_out(begun(said), watch)
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
    assert ">speed over the baseline</text>" in page
    assert ">trials, in the order they ran</text>" in page
    assert any(line.startswith("confirm") and "not confirmed" in line for line in said)
    assert result.answer.headline.endswith(" Equal work not checked.")
    (short,) = body["cautions"]
    assert short.startswith("Short run: its blocks span")
    assert not body["equal_work_checked"]
    assert short in str(result)
    assert short in page
    early = tunes.TuneResult(result.folder, interrupted=True)
    assert (early.interval, early.settings, early.ratio) == (None, {}, None), "nobody ends it for what it shows so far"
    assert early.answer.headline == "Not over yet: size=large, place=there is being confirmed."


@pytest.mark.parametrize(("at", "is_confirmed"), [(30, False), (112, True)])
def test_a_killed_search_goes_on_from_its_trials_and_loses_and_repeats_none(machine, at, is_confirmed):
    machine.stops_at = at
    with pytest.raises(Stopped):
        tunes.carry_out(begun(), watch)
    machine.stops_at = None
    result = tunes.carry_out(tunes.resume_study(tunes.find_study("mine"), None, lambda _: None), watch)
    assert result.settings == {"size": "large", "place": "there"}
    assert len(machine.ran) == len(set(machine.ran)) == sum(result.answer.phases.values())
    confirmation = StudyFolder(result.folder).steps()[-1].load()
    assert bool(confirmation.plan.looked) is is_confirmed, "what could be read of a confirmation is paid for"


def test_a_search_that_is_over_is_resumed_without_a_further_trial(machine):
    tunes.carry_out(begun(), watch)
    ran = len(machine.ran)
    again = tunes.carry_out(tunes.resume_study(tunes.find_study("mine"), None, lambda _: None), watch)
    assert len(machine.ran) == ran
    assert again.settings == {"size": "large", "place": "there"}


def test_a_budget_holds_where_much_time_lies_between_the_trials(machine):
    machine.between_s = 0.4  # for trials of a second, what starts and ends each of them
    machine.slow_from = 60  # the machine is slower from some time on
    result = tunes.carry_out(begun(), watch)
    assert result.settings == {"size": "large", "place": "there"}
    assert 0.9 * 120 < result.answer.spent_s <= 1.05 * 120


def test_nothing_is_recommended_where_nothing_gains(machine):
    machine.gains = {"large": -0.2, "there": -0.1, "broken": None, "yes": -0.1}
    result = tunes.carry_out(begun(), watch)
    assert (result.settings, result.ratio, result.lines) == ({}, None, "")
    assert "nothing is expected to gain" in result.answer.headline


def test_where_every_candidate_fails_that_is_said(machine):
    machine.gains = {"large": None, "there": None, "broken": None, "yes": None}
    result = tunes.carry_out(begun(), watch)
    assert result.exit_code == 4
    assert "Not one configuration ran well" in result.answer.headline
    assert set(result.answer.dropped) >= {"size=large", "size=broken", "place=there", "inert=yes"}


def test_a_baseline_that_fails_ends_the_search(machine):
    machine.gains = {"small": None}
    with pytest.raises(NothingRanError, match="the baseline fails"):
        tunes.carry_out(begun(), watch)


def test_a_budget_that_turns_out_too_small_ends_it_after_each_level_was_seen_once(machine):
    with pytest.raises(InputError, match=r"too few to confirm anything: with 1\.0 s a trial"):
        tunes.carry_out(begun(budget="20s"), watch)
    assert {run for run, _ in machine.ran} == {"001-evidence-mine"}
