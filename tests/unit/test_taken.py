"""Elapsed time of trials: those alive together count once, from the first start to the last end."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from envmatrix.results.elapsed import ElapsedTime, trials_elapsed_s
from tests.synthetic import Machine, make_plan, make_trials

PLAN = make_plan(("a", "b"))


def trials(spans, **more):
    """Return a trial for each (block, start, seconds)."""
    made = next(iter(make_trials(PLAN, Machine({}), 1)))
    return [replace(made, block=block, started=start, wall_s=seconds, **more) for block, start, seconds in spans]


@pytest.mark.parametrize("seed", range(5))
def test_processes_that_start_one_after_the_other_take_as_long_as_their_group_in_any_order(seed):
    group = trials([(0, 100.0, 20.0), (0, 104.0, 12.0), (0, 108.0, 14.0), (1, 130.0, 5.0)], together=3, node="")
    random.Random(seed).shuffle(group)
    assert trials_elapsed_s(group) == pytest.approx(22.0 + 5.0)


def test_what_lies_between_two_trials_and_what_runs_on_another_node_is_told_apart():
    one = trials([(0, 0.0, 4.0), (0, 4.5, 3.0), (0, 9_000.0, 2.0)], node="n1")
    assert trials_elapsed_s(one) == pytest.approx(9.0), "a block that was resumed hours later"
    assert trials_elapsed_s([*one, *trials([(0, 0.0, 4.0)], node="n2")]) == pytest.approx(13.0)


def test_of_old_trials_nobody_knows_when_they_started():
    assert trials_elapsed_s(trials([(0, None, 6.0), (0, None, 6.0), (0, None, None)], together=2)) == pytest.approx(6.0)


def test_each_has_its_share():
    taken = ElapsedTime()
    for trial in trials([(0, 0.0, 10.0), (0, 2.0, 8.0), (0, 4.0, 4.0), (0, 10.0, 2.0)]):
        taken.add(trial)
    assert (taken.trials, taken.mean_trial_s) == (4, pytest.approx(3.0))
