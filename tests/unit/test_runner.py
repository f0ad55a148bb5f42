"""The loop: complete, resumable, and done when it is enough. Trials are made up; the loop, store and race are real."""

import fcntl
from dataclasses import replace
from types import SimpleNamespace

import pytest

from envmatrix.errors import InputError
from envmatrix.launchers.here import Here
from envmatrix.runner import loop as runner
from envmatrix.store import RunFolder
from tests.synthetic import MATRIX_TEXT, Machine, make_plan, make_run, make_trials

SPEED = {"fast": 1.3, "slow": 0.7, "twin": 1.0}
NAMES = ("baseline", *SPEED)


class Watcher:
    def __init__(self):
        self.blocks = []

    def say(self, text):
        pass

    def trial_begins(self, slot, left_s):
        pass

    def trial_ended(self, trial):
        pass

    def block_ended(self, block, estimate):
        self.blocks.append(block)


@pytest.fixture
def quiet(monkeypatch, tmp_path):
    monkeypatch.setenv("ENVMATRIX_CACHE", str(tmp_path / "cache"))


def carry_out(tmp_path, monkeypatch, plan, *, stop_after=None):
    made = {trial.trial: trial for trial in make_trials(plan, Machine(speed=SPEED), plan.max_blocks)}
    folder = RunFolder(tmp_path / "run")
    if not folder.run_file.exists():
        folder.create(make_run(plan), MATRIX_TEXT)
    begun = []

    def run_trial(experiment, slot, say):
        begun.append(slot.trial)
        if stop_after is not None and len(begun) > stop_after:
            raise KeyboardInterrupt
        return made[slot.trial]

    monkeypatch.setattr(runner, "run_surely", run_trial)
    engine = SimpleNamespace(sweep=lambda run: 0)
    experiment = SimpleNamespace(folder=folder, plan=plan, run=folder.load(), engines={"local": engine})
    watcher = Watcher()
    ended = runner.run(experiment, Here(), watcher, watcher.say)
    names = [trial.trial for trial in folder.trials(plan)]
    folder.unlock()
    return ended, names, watcher


def test_it_runs_whole_blocks_until_the_last(tmp_path, monkeypatch, quiet):
    plan = make_plan(NAMES, max_blocks=7, target=0.001, budget_s=1e9)
    ended, names, watcher = carry_out(tmp_path, monkeypatch, plan)
    assert names == [slot.trial for block in plan.blocks() for slot in block]
    assert watcher.blocks == list(range(7))
    assert ended.outcomes == {"ok": 35}
    assert "all 7 blocks" in ended.why


def test_it_stops_when_every_interval_is_narrow(tmp_path, monkeypatch, quiet):
    plan = make_plan(NAMES, max_blocks=40, target=0.2, budget_s=1e9)
    ended, names, _ = carry_out(tmp_path, monkeypatch, plan)
    assert "every interval is within" in ended.why
    assert len(names) == (plan.min_blocks + 2) * 5  # it must stay narrow for three blocks in a row


def test_it_stops_when_the_budget_is_spent(tmp_path, monkeypatch, quiet):
    plan = make_plan(NAMES, max_blocks=40, target=0.0001, budget_s=30.0)
    ended, names, _ = carry_out(tmp_path, monkeypatch, plan)
    assert "budget of 30 s is spent" in ended.why
    assert 0 < len(names) < 200
    assert len(names) % 5 == 0


@pytest.mark.parametrize("race", [False, True])
@pytest.mark.parametrize("stop_after", [0, 1, 13, 36, 61, 62, 63])
def test_interrupted_anywhere_it_ends_as_if_it_had_not_been(tmp_path, monkeypatch, quiet, race, stop_after):
    plan = make_plan(NAMES, max_blocks=16, target=0.0001, budget_s=1e9, race=race)
    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    whole = carry_out(tmp_path / "whole", monkeypatch, plan)
    first = carry_out(tmp_path / "parts", monkeypatch, plan, stop_after=stop_after)
    rest = carry_out(tmp_path / "parts", monkeypatch, plan)
    assert first[0].interrupted == (len(whole[1]) > stop_after)
    assert rest[1] == whole[1]
    assert rest[0].why == whole[0].why
    if race:
        assert len(whole[1]) < 80, "the race should have sent somebody home"


def test_what_a_killed_run_left_is_swept_only_when_nothing_else_measures_here(tmp_path, monkeypatch, quiet):
    """Another run of the same name, in another folder of results, may be measuring: its trial is no leftover."""
    said = []

    def sweep(run):
        with (tmp_path / "cache" / "measuring.lock").open() as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return 1

    run = make_run(make_plan((), max_blocks=1))
    folder = RunFolder(tmp_path / "run")
    folder.create(run, MATRIX_TEXT)
    monkeypatch.setattr(
        runner, "run_surely", lambda experiment, slot, say: next(iter(make_trials(run.plan, Machine({}), 1)))
    )
    engines = {"local": SimpleNamespace(sweep=lambda name: sweep(name) if not said else 0)}
    experiment = SimpleNamespace(folder=folder, plan=run.plan, run=run, engines=engines)
    runner.run(experiment, Here(), Watcher(), said.append)
    assert said == ["removed 1 leftover(s) of an earlier, killed run"]


def test_a_race_refuses_blocks_side_by_side(tmp_path, monkeypatch, quiet):
    plan = replace(make_plan(NAMES), race=True)
    monkeypatch.setattr(Here, "width", 2)
    with pytest.raises(InputError, match="a race decides after every block"):
        carry_out(tmp_path, monkeypatch, plan)
