"""The main loop: complete, resumable, ends when precise enough. Trials are simulated; loop, store and race are real."""

import fcntl
import os
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest

from envmatrix.durations_and_sizes import as_duration
from envmatrix.errors import InputError
from envmatrix.launchers.local import Here
from envmatrix.matrix.model import Workload
from envmatrix.results import RunFolder
from envmatrix.runner import loop as runner
from envmatrix.runner.first_block_warnings import budget_too_short_text
from envmatrix.trials import orphans
from tests.synthetic import MATRIX_TEXT, Machine, make_plan, make_run, make_trials

SPEED = {"fast": 1.3, "slow": 0.7, "twin": 1.0}
NAMES = ("baseline", *SPEED)


class Watcher:
    def __init__(self):
        self.blocks = []

    def progress(self, text):
        pass

    def trial_begins(self, slot, left_s, together=1):
        pass

    def trial_ended(self, trial):
        pass

    def block_ended(self, block, estimate, left_s, left):
        self.blocks.append(block)


@pytest.fixture
def quiet(monkeypatch, tmp_path, no_orphans):
    monkeypatch.setenv("ENVMATRIX_CACHE", str(tmp_path / "cache"))


def carry_out(tmp_path, monkeypatch, plan, *, stop_after=None, changed=lambda trial: trial):
    made = {trial.trial: changed(trial) for trial in make_trials(plan, Machine(speed=SPEED), plan.max_blocks)}
    folder = RunFolder(tmp_path / "run")
    if not folder.run_file.exists():
        folder.create(make_run(plan), MATRIX_TEXT)
    begun = []

    def run_trial(experiment, slot, progress):
        begun.append(slot.trial)
        if stop_after is not None and len(begun) > stop_after:
            raise KeyboardInterrupt
        return made[slot.trial]

    monkeypatch.setattr(runner, "run_with_rebuild", run_trial)
    engine = SimpleNamespace(sweep=lambda run: 0)
    experiment = SimpleNamespace(
        folder=folder, plan=plan, run=folder.load(), engines={"local": engine}, trial_run_s=0.0
    )
    watcher = Watcher()
    ended = runner.run(experiment, Here(), watcher, watcher.progress)
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
    assert "budget of 30 s was used up" in ended.why
    assert 0 < len(names) < 200
    assert len(names) % 5 == 0


def test_a_budget_counts_a_group_that_starts_one_after_the_other_from_its_first_start_to_its_last_end(
    tmp_path, monkeypatch, quiet
):
    """Guards against counting the mean lifetime of a group: six minutes of `default` took seven."""
    plan = make_plan(NAMES, max_blocks=40, target=0.0001, budget_s=100.0)

    def together(trial):
        later = 2.0 * trial.position  # each starts two seconds after the previous one; all end after ten
        return replace(trial, started=1e9 + 10 * trial.block + later, wall_s=10 - later, together=5)

    ended, names, _ = carry_out(tmp_path, monkeypatch, plan, changed=together)
    assert ended.why == "the budget of 100 s was used up after 10 blocks"
    assert len(names) == 50


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
    """Another run with the same name, in another results folder, may be measuring: its trial must not be removed."""
    said = []

    def sweep(run):
        with (tmp_path / "cache" / "measuring.lock").open() as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return 1

    run = make_run(make_plan((), max_blocks=1))
    folder = RunFolder(tmp_path / "run")
    folder.create(run, MATRIX_TEXT)
    monkeypatch.setattr(
        runner, "run_with_rebuild", lambda experiment, slot, progress: next(iter(make_trials(run.plan, Machine({}), 1)))
    )
    engines = {"local": SimpleNamespace(sweep=lambda name: sweep(name) if not said else 0, why_no_pauses=str)}
    experiment = SimpleNamespace(folder=folder, plan=run.plan, run=run, engines=engines, trial_run_s=0.0)
    runner.run(experiment, Here(), Watcher(), said.append)
    assert said == ["removed 1 leftover(s) of an earlier, killed run"]


def test_a_run_that_is_over_is_resumed_beside_another_one_that_measures(tmp_path, monkeypatch, quiet):
    """Guards against waiting for another measurement when nothing is left to run."""
    plan = make_plan(NAMES, max_blocks=7, target=0.0001, budget_s=1e9)
    carry_out(tmp_path, monkeypatch, plan, stop_after=20)
    waited = []
    monkeypatch.setattr(runner, "alone_on_machine", lambda progress: waited.append(1) or nullcontext())
    _, first, _ = carry_out(tmp_path, monkeypatch, plan)
    ended, again, _ = carry_out(tmp_path, monkeypatch, plan)
    assert (len(first), again, ended.why[:16], waited) == (35, first, "all 7 blocks wer", [1])


def test_what_a_run_left_that_was_killed_after_its_last_trial_goes_when_it_is_resumed(tmp_path, monkeypatch, quiet):
    plan = make_plan(NAMES, max_blocks=7, target=0.0001, budget_s=1e9)
    carry_out(tmp_path, monkeypatch, plan)
    left = orphans.work_folder() / make_run(plan).name / "b0006-p004"
    left.mkdir(parents=True)
    carry_out(tmp_path, monkeypatch, plan)
    assert not left.exists()


def test_a_race_refuses_blocks_side_by_side(tmp_path, monkeypatch, quiet):
    plan = replace(make_plan(NAMES), race=True)
    monkeypatch.setattr(Here, "width", 2)
    with pytest.raises(InputError, match="a race decides after every block"):
        carry_out(tmp_path, monkeypatch, plan)


def begin(tmp_path, plan, machine, progress, **more):
    """Run simulated trials of a machine on which some environments fail."""
    made = {trial.trial: trial for trial in make_trials(plan, machine, plan.max_blocks)}
    folder = RunFolder(tmp_path / "run")
    folder.create(make_run(plan, **more), MATRIX_TEXT)
    folder.logs.mkdir(exist_ok=True)
    for name in made:
        (folder.logs / f"{name}.log").write_text("Traceback ...\nValueError: no data\n")
    engine = SimpleNamespace(sweep=lambda run: 0, started=lambda job: None, why_no_pauses=lambda: "")
    experiment = SimpleNamespace(
        folder=folder, plan=plan, run=folder.load(), engines={"local": engine}, trial_run_s=0.0
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "run_with_rebuild", lambda experiment, slot, progress: made[slot.trial])
        patch.setattr(
            runner,
            "run_interleaved",
            lambda _experiment, company, _progress, **_: [made[at.trial] for at in company.slots],
        )
        ended = runner.run(experiment, Here(), Watcher(), progress)
    folder.unlock()
    return ended, list(folder.trials(plan))


@pytest.mark.parametrize("outcome", ["failed", "invalid", "timed_out"])
def test_a_baseline_that_fails_in_the_first_block_stops_the_run_at_once(tmp_path, quiet, outcome):
    plan, said = make_plan(NAMES, budget_s=1e9), []
    broken = dict.fromkeys(("baseline", "control"), outcome)
    ended, trials = begin(tmp_path, plan, Machine(SPEED, outcome=broken), said.append)
    assert ended.lost
    assert ended.why.startswith("stopped: the reference ")
    assert f"made to be {outcome}" in ended.why
    assert [trial.outcome for trial in trials].count(outcome) == 1
    assert trials[-1].outcome == outcome
    assert trials[-1].block == 0
    assert "  | ValueError: no data" in said[-1]


def test_a_program_of_ones_own_that_fails_as_the_control_is_told_as_any_other(tmp_path, quiet):
    """The control has no environment of its own: it uses the baseline's."""
    plan, said = make_plan(NAMES, max_blocks=1, budget_s=1e9), []
    own = {"cnn": Workload(name="cnn", command=("python", "train.py"))}
    _, trials = begin(tmp_path, plan, Machine(SPEED, outcome={"control": "failed"}), said.append, workloads=own)
    assert "failed" in [trial.outcome for trial in trials if trial.environment == "control"]


@pytest.mark.parametrize("broken", [("control",), ("baseline",), ("baseline", "control")])
def test_in_turns_all_that_ended_together_is_on_disk_before_a_failing_reference_stops_the_run(tmp_path, quiet, broken):
    plan = make_plan(NAMES, max_blocks=2, min_blocks=2, budget_s=1e9)
    machine = Machine(SPEED, outcome=dict.fromkeys(broken, "timed_out"))
    ended, trials = begin(tmp_path, plan, machine, lambda text: None, design={"schedule": "turns"})
    assert ended.lost == (len(broken) == 2)
    assert [trial.trial for trial in trials] == [slot.trial for index in range(1 if ended.lost else 2)
                                                 for slot in plan.block(index)]  # fmt: skip


@pytest.mark.parametrize("broken", ["control", "fast"])
def test_a_run_goes_on_where_one_copy_of_the_baseline_ran_well(tmp_path, quiet, broken):
    """Tries seeds in which the failed copy comes first and seeds in which it comes last."""
    ends = set()
    for seed in range(6):
        plan = make_plan(NAMES, max_blocks=2, min_blocks=2, budget_s=1e9, seed=seed)
        (tmp_path / str(seed)).mkdir()
        ended, trials = begin(tmp_path / str(seed), plan, Machine(SPEED, outcome={broken: "failed"}), lambda text: None)
        first = next(slot.arm.environment for slot in plan.block(0) if slot.arm.runs == "baseline")
        ends.add(ended.lost)
        assert ended.lost == (broken == first == "control")
        assert len(trials) == (10 if not ended.lost else len(trials))
    assert ends == ({True, False} if broken == "control" else {False})


def test_a_budget_that_ends_before_any_claim_is_told_before_it_is_spent(tmp_path, quiet):
    plan, said = make_plan(NAMES, max_blocks=40, budget_s=60.0), []
    begin(tmp_path, plan, Machine(SPEED), said.append)
    assert sum("a verdict needs 6 blocks" in line for line in said) == 1, "on a busy machine too"
    enough = make_plan(NAMES, max_blocks=6, budget_s=1e5)
    (tmp_path / "enough").mkdir()
    said.clear()
    begin(tmp_path / "enough", enough, Machine(SPEED), said.append)
    assert said == []


def test_a_budget_waits_for_the_blocks_of_a_claim_where_they_come_first_and_ends_then(tmp_path, quiet):
    """On a machine slower than the trial run suggested, the run would otherwise end without a verdict, or take long."""
    said = []
    plan = make_plan(NAMES, max_blocks=40, target=0.0001, budget_s=30.0, claims_first=True)
    ended, trials = begin(tmp_path, plan, Machine(SPEED), said.append)
    assert len(trials) == plan.min_blocks * 5
    assert ended.why == "the 6 blocks that a verdict needs were run", "nobody set the budget of 30 s"
    [line] = said
    assert line.startswith("the first table comes after about 3m")
    assert "30" not in line
    said.clear()
    (tmp_path / "enough").mkdir()
    longer = make_plan(NAMES, max_blocks=40, target=0.0001, budget_s=500.0, claims_first=True)
    _, trials = begin(tmp_path / "enough", longer, Machine(SPEED), said.append)
    assert len(trials) > plan.min_blocks * 5
    assert said == ["the first table comes after about 8m20s: 6 blocks of 5 trials, or more"]


def test_what_is_left_of_a_budget_that_waits_is_the_time_of_the_blocks_that_come_first(tmp_path, monkeypatch, quiet):
    left = []
    monkeypatch.setattr(
        Watcher, "block_ended", lambda self, block, estimate, left_s, blocks: left.append((left_s, blocks))
    )
    plan = make_plan(NAMES, max_blocks=40, target=0.0001, budget_s=30.0, claims_first=True)
    carry_out(tmp_path, monkeypatch, plan)
    assert [round(blocks) for _, blocks in left] == [5, 4, 3, 2, 1, 0]
    assert [seconds > 0 for seconds, _ in left] == [True] * 5 + [False]


def test_blocks_that_leave_the_long_looks_no_time_are_told_with_the_budget_for_both():
    assert budget_too_short_text(360.0, 6, 4.0, 10, looks=9) == "", "5.5 blocks of 40 s and 72 s of looks"
    said = budget_too_short_text(360.0, 6, 5.5, 10, looks=9)
    assert "a block of 10 takes about 55s" in said
    assert "that leaves 58s of the 6m budget for the steady-state runs, which need 72s; --budget " in said
    enough = 55.0 * 6 * 1.1
    assert f"--budget {as_duration(min(enough / 0.8, enough + 9 * 14))} is enough for both" in said
    assert budget_too_short_text(360.0, 6, 5.5, 10) == ""
    assert "too short for a verdict" in budget_too_short_text(360.0, 6, 7.0, 10, looks=9)


def test_a_block_that_can_only_be_too_long_is_told_before_anything_runs(tmp_path, quiet, monkeypatch):
    """Starting five processes takes 7.5 s of CPU time; six blocks take 45 s."""
    monkeypatch.setattr(os, "getloadavg", lambda: (0.5, 0.0, 0.0))
    said = []
    for budget_s in (40.0, 50.0):
        (tmp_path / str(budget_s)).mkdir()
        plan = make_plan(NAMES, max_blocks=6, budget_s=budget_s)
        begin(tmp_path / str(budget_s), plan, Machine(SPEED), said.append)
    assert said[0].startswith("one block takes 8s or more of your 40s (5 trials to start), and a verdict needs")
    assert sum("to start" in line for line in said) == 1
    monkeypatch.setattr(os, "getloadavg", lambda: (6.0 * (os.cpu_count() or 1), 0.0, 0.0))
    (tmp_path / "busy").mkdir()
    begin(tmp_path / "busy", make_plan(NAMES, max_blocks=6, budget_s=50.0), Machine(SPEED), said.append)
    [line] = [line for line in said if "next to other programs: 6 wait for each CPU" in line]
    assert line.startswith("one block takes 45s or so of your 50s (5 trials to start ")
