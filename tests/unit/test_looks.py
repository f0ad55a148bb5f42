"""Steady-state runs: after the blocks, once per arm, within the budget, not compared; processes are simulated."""

from types import SimpleNamespace

import pytest

from envmatrix.errors import StoreError
from envmatrix.launchers.local import Here
from envmatrix.matrix.model import Workload
from envmatrix.plan.steady_state_runs_after_blocks import FULL_RUN_S, MIN_RUN_S, START_S, next_run_s, reserve_s
from envmatrix.results import RunFolder, trial_of
from envmatrix.results.redact import redact
from envmatrix.runner import loop as runner
from envmatrix.runner import steady_state_runs
from envmatrix.stats.measurements import read_measurements
from envmatrix.trials.execution import bench_arguments
from tests.synthetic import MATRIX_TEXT, Machine, make_plan, make_run, make_trials
from tests.unit.test_runner import Watcher

NAMES = ("baseline", "fast", "slow")
LOOKED = ["baseline:cnn@local", "fast:cnn@local", "slow:cnn@local"]


@pytest.fixture
def carry_out(tmp_path, monkeypatch, no_orphans):
    """Return a function that runs a plan to its end and returns (result, messages, steady-state runs made now)."""
    monkeypatch.setenv("ENVMATRIX_CACHE", str(tmp_path / "cache"))

    def run(plan, machine=None, launcher=None, *, stop_at=None, **more):
        made = {trial.trial: trial for trial in make_trials(plan, machine or Machine({}), plan.max_blocks)}
        folder = RunFolder(tmp_path / "run")
        if not folder.run_file.exists():
            folder.create(make_run(plan, design={"steady": True}, **more), MATRIX_TEXT)
        now = []

        def look(experiment, slot, progress):
            if len(now) == stop_at:
                raise KeyboardInterrupt
            now.append(slot)
            timing = {"steps_ns": [10**7] * 100, "training_ns": int(slot.look_s * 1e9), "look_s": slot.look_s}
            document = {"schema": 1, "timing": timing}
            return trial_of(slot, "ok", wall_s=slot.look_s + START_S, started=1.0, node="real-host", document=document)

        monkeypatch.setattr(steady_state_runs, "run_with_rebuild", look)
        monkeypatch.setattr(runner, "run_with_rebuild", lambda experiment, slot, progress: made[slot.trial])
        engine = SimpleNamespace(sweep=lambda run: 0)
        experiment = SimpleNamespace(
            folder=folder, plan=plan, run=folder.load(), engines={"local": engine}, trial_run_s=0.0
        )
        watcher, said = Watcher(), []
        ended = runner.run(experiment, launcher or Here(), watcher, said.append)
        folder.unlock()
        return SimpleNamespace(ended=ended, said=said, now=now, folder=folder)

    return run


def test_each_environment_has_one_look_after_the_blocks_and_no_control_has_one(carry_out):
    plan = make_plan(NAMES, max_blocks=6, target=0.001, budget_s=1e9)
    found = carry_out(plan)
    assert [look.arm for look in found.folder.steady_state_runs(plan)] == LOOKED
    assert [slot.look_s for slot in found.now] == [FULL_RUN_S] * 3
    assert found.ended.outcomes == {"ok": 24}, "looks are no trials of a block"
    assert "3 steady-state runs" in found.said[0]
    measured = read_measurements(found.folder, plan)
    assert {sum(fact.outcomes.values()) for fact in measured.facts.values()} == {6}


def test_blocks_leave_them_a_fifth_of_the_budget_and_they_share_it(carry_out):
    plan = make_plan(NAMES, max_blocks=40, target=0.0001, budget_s=120.0, min_blocks=2)
    found = carry_out(plan)
    trials_s = sum(trial.wall_s for trial in found.folder.trials(plan))
    assert trials_s <= 120 - reserve_s(120, 3) + 6 * 4
    assert "budget" in found.ended.why
    assert len(found.now) == 3
    assert all(MIN_RUN_S <= slot.look_s < FULL_RUN_S for slot in found.now)
    assert trials_s + sum(slot.look_s + START_S for slot in found.now) <= 120


def test_what_a_claim_needs_comes_before_them(carry_out):
    plan = make_plan(NAMES, max_blocks=40, target=0.0001, budget_s=100.0)
    needed_s = sum(trial.wall_s for trial in make_trials(plan, Machine({}), plan.min_blocks))
    found = carry_out(make_plan(NAMES, max_blocks=40, target=0.0001, budget_s=1.02 * needed_s))
    assert f"used up after {plan.min_blocks} blocks" in found.ended.why


def test_looks_that_a_budget_has_no_room_for_are_named(carry_out):
    plan = make_plan(NAMES, max_blocks=40, target=0.0001, budget_s=10.0)
    found = carry_out(plan)
    assert found.now == []
    assert f"no steady-state run of {', '.join(LOOKED)}: the budget is used up" in found.said


def test_an_interrupted_run_goes_on_with_the_looks_that_lack(carry_out):
    plan = make_plan(NAMES, max_blocks=6, target=0.001, budget_s=1e9)
    first = carry_out(plan, stop_at=1)
    assert first.ended.interrupted
    rest = carry_out(plan)
    assert [slot.arm.name for slot in rest.now] == LOOKED[1:]
    assert not carry_out(plan).now


def test_a_half_written_look_is_made_again(carry_out):
    plan = make_plan(NAMES, max_blocks=6, target=0.001, budget_s=1e9)
    found = carry_out(plan)
    text = found.folder.looks_file.read_bytes()
    found.folder.looks_file.write_bytes(text[:-20])
    assert [slot.arm.name for slot in carry_out(plan).now] == LOOKED[-1:]
    assert len(list(found.folder.steady_state_runs(plan))) == 3


def test_what_broke_in_the_blocks_is_not_looked_at(carry_out):
    plan = make_plan(NAMES, max_blocks=6, target=0.001, budget_s=1e9)
    found = carry_out(plan, Machine({}, outcome={"slow": "failed"}))
    assert [slot.arm.name for slot in found.now] == LOOKED[:2]


def test_programs_of_ones_own_have_no_steps_to_look_at(carry_out):
    plan = make_plan(NAMES, max_blocks=6, target=0.001, budget_s=1e9)
    own = Workload.model_validate({"name": "cnn", "command": ["python", "x.py"]})
    found = carry_out(plan, workloads={"cnn": own})
    assert found.now == []
    assert not found.folder.looks_file.exists()


def test_a_launcher_that_runs_trials_elsewhere_makes_none_and_says_so(carry_out):
    class There(Here):
        measures_here = False

    plan = make_plan(NAMES, max_blocks=6, target=0.001, budget_s=1e9)
    found = carry_out(plan, launcher=There())
    assert found.now == []
    assert "no steady-state runs: launcher here runs trials on other machines" in found.said


def test_a_line_that_is_no_look_of_this_run_is_refused_by_its_place(carry_out):
    plan = make_plan(NAMES, max_blocks=6, target=0.001, budget_s=1e9)
    file = carry_out(plan).folder.looks_file
    file.write_text(file.read_text().replace('"environment":"fast"', '"environment":"other"'))
    with pytest.raises(StoreError, match="no other:cnn@local") as error:
        list(RunFolder(file.parent).steady_state_runs(plan))
    assert str(error.value.where).endswith("looks.jsonl:2")


def test_a_host_is_not_named_in_them(carry_out):
    plan = make_plan(NAMES, max_blocks=6, target=0.001, budget_s=1e9)
    folder = carry_out(plan).folder
    assert "real-host" not in folder.looks_file.read_text()
    assert "looks.jsonl" not in redact(folder), "nothing was left to hide"


def test_a_look_is_asked_for_with_its_seconds():
    said = bench_arguments(Workload(name="w"), {"work": "/w", "data": "/d"}, "python3", look_s=6.25)
    assert "--look=6.2" in said


@pytest.mark.parametrize(
    ("left", "looks", "seconds"),
    [(1000.0, 8, FULL_RUN_S), (80.0, 8, 6.0), (40.0, 8, MIN_RUN_S), (MIN_RUN_S + START_S - 0.1, 1, None)],
)
def test_what_is_left_is_shared(left, looks, seconds):
    assert next_run_s(left, looks) == seconds
