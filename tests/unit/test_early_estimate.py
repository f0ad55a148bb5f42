"""What a run says of its environments before a verdict is possible."""

import numpy as np
import pytest

from envmatrix.runner.running_estimate import RunningEstimate, clearly_worse_than_reference
from tests.synthetic import Machine, make_plan, make_trials

PLAN = make_plan(("good", "bad", "twin"))


def early(blocks, machine, plan=PLAN):
    estimate = RunningEstimate(plan, {})
    for trial in make_trials(plan, machine, blocks, 1):
        estimate.add(trial)
    return estimate.early_headline()


MACHINE = Machine({"good": 1.3, "bad": 0.6}, noise=0.01)


def test_one_block_has_no_measure_of_noise_and_names_none():
    assert early(1, MACHINE) == ""


@pytest.mark.parametrize("blocks", [2, 3, 5])
def test_from_the_second_block_on_what_is_clearly_bad_is_told_apart(blocks):
    behind, ahead = early(blocks, MACHINE).split("; ")
    assert behind == "clearly behind: bad"
    assert ahead.startswith("still open: good, ")
    assert "twin" in ahead
    assert "control" not in ahead


def test_nothing_is_said_of_a_run_without_a_number():
    assert RunningEstimate(PLAN, {}).early_headline() == ""


def test_many_environments_are_counted_and_the_best_of_them_named():
    said = early(2, Machine({"e0": 1.5}, noise=0.001), make_plan(tuple(f"e{number}" for number in range(9))))
    assert said.startswith("still open: e0, ")
    assert said.endswith(", 3 more")


def test_an_environment_that_always_fails_hides_no_other():
    logs = np.array([[-0.5, -0.51, -0.49], [np.nan] * 3])
    assert clearly_worse_than_reference(np.array([[0.0, 0.01, 0.0], [0.01, 0.0, 0.0]]), logs).tolist() == [True, False]
    assert not clearly_worse_than_reference(np.full((2, 3), np.nan), logs).any()


def test_one_block_is_not_enough():
    assert clearly_worse_than_reference(np.zeros((2, 1)), np.full((1, 1), -9.0)).tolist() == [False]


@pytest.mark.parametrize(("noisier", "most"), [(1.0, 0.03), (10.0, 0.10)])
def test_all_lines_together_seldom_call_an_equal_environment_behind(noisier, most):
    chance = np.random.default_rng(1)
    logs = chance.normal(0.0, 0.03, (1000, 6, 5))
    logs[:, -1] *= noisier
    hits = [any(clearly_worse_than_reference(one[:2, :n], one[2:, :n]).any() for n in (2, 3, 4, 5)) for one in logs]
    assert np.mean(hits) < most
