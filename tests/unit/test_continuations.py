"""Blocks that go on after their trials: which ones, for how long, within the budget; processes are simulated."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from bench.early_and_late_steps import second_half
from envmatrix.launchers.local import Here
from envmatrix.matrix.model import Workload
from envmatrix.plan.steady_state_block_share import FULL_S, MIN_S, seconds_of_steps, share_of_blocks_to_continue
from envmatrix.results import RunFolder
from envmatrix.results.elapsed import ElapsedTime
from envmatrix.runner import loop as runner
from tests.synthetic import MATRIX_TEXT, Machine, make_plan, make_run
from tests.synthetic import make_trials as all_trials
from tests.unit.test_runner import Watcher

NAMES = ("baseline", "fast", "slow")
BLOCK_S = 30.0


def continued_after_trials(trial, seconds, change, noise=0.0):
    """Return a trial whose process went on with ``change`` times its speed."""
    document = trial.document
    trial_s = document["metrics"]["training_s"]
    step_ns = 1e9 * trial_s / document["result"]["steps"]
    later_ns = round(step_ns / change * math.exp(noise))
    stretches = seconds * [([], [later_ns] * max(1, round(1e9 / later_ns)))]
    timing = {**document["timing"], "later": second_half(stretches, step_ns, 10**9)}
    return replace(trial, document={**document, "timing": timing})


@pytest.fixture
def carry_out(tmp_path, monkeypatch, no_orphans):
    """Return a function that runs a plan and returns (seconds of each block that went on, messages, the run's end)."""
    monkeypatch.setenv("ENVMATRIX_CACHE", str(tmp_path / "cache"))

    def run(plan, *, launcher=None, together=True, noise=lambda trial: 0.0, **more):
        made = {trial.trial: trial for trial in all_trials(plan, Machine({}), plan.max_blocks)}
        folder, later, said = RunFolder(tmp_path / "run"), {}, []
        if not folder.run_file.exists():
            folder.create(make_run(plan, design={"steady": True, "schedule": "turns"}, **more), MATRIX_TEXT)

        def interleaved(_experiment, company, _progress, later_s=None):
            block = company.slots[0].block
            if later_s is not None:
                later[block] = later_s
            ended = [made[slot.trial] for slot in company.slots]
            count = len(company.slots)
            ended = [replace(t, started=1e9 + 1000 * block, wall_s=BLOCK_S, together=count) for t in ended]
            if later_s is None:
                return ended
            return [
                replace(continued_after_trials(t, round(later_s), 1.0, noise(t)), later_s=later_s * count)
                for t in ended
            ]

        monkeypatch.setattr(runner, "run_interleaved", interleaved)
        engine = SimpleNamespace(sweep=lambda run: 0, started=lambda job: None, why_no_pauses=lambda: "")
        experiment = SimpleNamespace(
            folder=folder, plan=plan, run=folder.load(), engines={"local": engine}, trial_run_s=0.0
        )
        if not together:
            monkeypatch.setattr("envmatrix.trials.concurrent_trial_groups.usable_memory", lambda free: 1)
        ended = runner.run(experiment, launcher or Here(), Watcher(), said.append)
        folder.unlock()
        elapsed = ElapsedTime()
        for trial in folder.trials(plan):
            elapsed.add(trial)
        return SimpleNamespace(later=later, said=said, ended=ended, elapsed=elapsed)

    return run


def plan_of(blocks_s, **more):
    return make_plan(NAMES, **{"target": 0.0001, "budget_s": blocks_s, **more})


def test_the_last_blocks_that_a_verdict_needs_go_on_and_the_budget_holds(carry_out):
    budget_s = 6 * BLOCK_S + 3 * 4 * 6.0
    found = carry_out(plan_of(budget_s))
    assert found.later == {3: pytest.approx(6.0), 4: pytest.approx(6.0), 5: pytest.approx(6.0)}
    assert found.elapsed.seconds == pytest.approx(6 * BLOCK_S), "what comes later is no part of a trial"
    assert found.elapsed.seconds + found.elapsed.later_s <= budget_s + 1e-6
    assert sum("go on for 6.0 s of steps each" in line for line in found.said) == 1
    assert any("enough for 10 s" in line for line in found.said)


def test_two_blocks_go_on_where_the_budget_has_no_room_for_three(carry_out):
    budget_s = 6 * BLOCK_S + 2 * 4 * 4.0
    found = carry_out(plan_of(budget_s))
    assert found.later == {3: pytest.approx(4.0), 4: pytest.approx(4.0)}
    assert found.elapsed.seconds + found.elapsed.later_s <= budget_s + 1e-6


def test_a_budget_without_room_for_them_has_its_blocks_and_says_so(carry_out):
    found = carry_out(plan_of(6 * BLOCK_S + 2 * 4 * (MIN_S - 0.5)))
    assert found.later == {}
    assert sum("the budget ends before steady effects" in line and "--budget" in line for line in found.said) == 1
    (at_the_end,) = [line for line in found.said if line.startswith("no steady effects, only those of first steps: ")]
    assert "the budget ended before them" in at_the_end


def test_with_time_for_more_blocks_as_many_go_on_as_narrow_the_interval_most(carry_out):
    budget_s = 30 * (BLOCK_S + 4 * FULL_S)
    quiet = carry_out(plan_of(budget_s))
    assert sorted(quiet.later)[:3] == [3, 4, 5]
    assert set(quiet.later.values()) == {FULL_S}
    assert len(quiet.later) == 3, "the change does not differ between processes"


def test_the_noisier_the_change_the_more_blocks_go_on(carry_out):
    noisy = carry_out(
        plan_of(25 * (BLOCK_S + 4 * FULL_S)),
        noise=lambda trial: 0.2 * math.sin(1.7 * trial.block + 2.3 * trial.position),
    )
    assert len(noisy.later) > 6


def test_a_resumed_run_counts_the_blocks_that_went_on(carry_out):
    budget_s = 6 * BLOCK_S + 3 * 4 * FULL_S
    assert sorted(carry_out(plan_of(budget_s, max_blocks=5)).later) == [3, 4]
    assert sorted(carry_out(plan_of(budget_s)).later) == [5]


@pytest.mark.parametrize(
    "more",
    [
        {"workloads": {"cnn": Workload.model_validate({"name": "cnn", "command": ["python", "x.py"],
                                                       "metric": {"steps": "^step"}})}},
        {"together": False},
    ],
    ids=["own program", "memory"],
)  # fmt: skip
def test_what_cannot_go_on_does_not_and_that_is_said(carry_out, more):
    found = carry_out(plan_of(1000.0, max_blocks=7), **more)
    assert found.later == {}
    assert (
        sum("no steady effects, only those of first steps: no process could go on" in line for line in found.said) == 1
    )


def test_a_launcher_that_runs_trials_elsewhere_has_none_and_says_so(carry_out):
    class There(Here):
        measures_here = False

    found = carry_out(plan_of(1000.0, max_blocks=7), launcher=There())
    assert found.later == {}
    assert sum("no steady" in line for line in found.said) == 1


@pytest.mark.parametrize(
    ("left", "groups", "processes", "seconds"), [(1000.0, 2, 4, FULL_S), (40.0, 1, 8, 5.0), (23.0, 1, 8, None)]
)
def test_what_is_left_is_shared_by_all_processes(left, groups, processes, seconds):
    assert seconds_of_steps(left, groups, processes) == seconds


def test_the_share_is_that_of_the_narrowest_interval():
    """A search over all numbers of blocks that the same time allows."""
    change, block, later_s, block_s, budget_s = 0.0015, 0.004, 100.0, 40.0, 2000.0
    variances = {
        (blocks, groups): block / blocks + change / groups
        for blocks in range(2, 50)
        for groups in range(2, blocks + 1)
        if blocks * block_s + groups * later_s <= budget_s
    }
    blocks, groups = min(variances, key=variances.get)
    assert groups / blocks == pytest.approx(share_of_blocks_to_continue(change, block, later_s, block_s), abs=0.03)
    assert share_of_blocks_to_continue(0.0, 0.0, later_s, block_s) == 1.0
