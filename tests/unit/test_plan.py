"""The plan is random, complete, and the same for the same seed."""

import time
from collections import Counter
from dataclasses import replace

import pytest

from envmatrix.plan import Plan, make_arms

ARMS = make_arms(("baseline", "a", "b", "c"), ("cnn",), ("local",), "baseline")
PLAN = Plan("d", ARMS, 7, 6, 20_000, 0.02, 0.03, 300.0)


def test_every_block_holds_every_arm_once():
    for block in (PLAN.block(index) for index in range(50)):
        assert sorted(slot.arm.name for slot in block) == sorted(arm.name for arm in ARMS)


def test_every_trial_moves_its_stack_otherwise():
    paddings = [slot.padding for index in range(50) for slot in PLAN.block(index)]
    assert len(set(paddings)) > len(paddings) / 2
    assert 0 <= min(paddings) < 400 < 3700 < max(paddings) < 4096


def test_a_control_is_always_in_the_plan():
    control = next(arm for arm in ARMS if arm.is_control)
    assert (control.runs, control.reference) == ("baseline", "baseline:cnn@local")


def test_the_same_seed_gives_the_same_order_and_another_seed_another():
    assert PLAN.block(3) == PLAN.block(3)
    assert [PLAN.block(i) for i in range(5)] != [replace(PLAN, seed=8).block(i) for i in range(5)]


def test_every_arm_stands_at_every_position_equally_often():
    counts = Counter((slot.position, slot.arm.name) for index in range(2000) for slot in PLAN.block(index))
    expected = 2000 / len(ARMS)
    assert max(abs(count - expected) for count in counts.values()) < 5 * expected**0.5
    assert len(counts) == len(ARMS) ** 2


def test_a_hundred_thousand_trials_are_planned_in_two_seconds():
    began = time.process_time()  # CPU time: other load on the machine does not matter
    assert sum(len(block) for block in PLAN.blocks()) == 100_000
    assert time.process_time() - began < 10  # generous: `nox -s selfbench` checks the real number


def test_trial_names_are_unique_and_sort_in_order():
    names = [slot.trial for index in range(30) for slot in PLAN.block(index)]
    assert names == sorted(set(names))


@pytest.mark.parametrize("engines", [("local",), ("local", "docker", "apptainer")])
def test_every_reference_is_an_arm_and_an_engine_is_compared_with_the_first(engines):
    arms = make_arms(("baseline", "a"), ("w1", "w2"), engines, "baseline")
    names = {arm.name for arm in arms}
    assert len(names) == len(arms)
    assert all(arm.reference in names for arm in arms if arm.reference)
    assert sum(arm.reference is None for arm in arms) == 2
    for engine in engines[1:]:
        base = next(arm for arm in arms if arm.name == f"baseline:w1@{engine}")
        assert base.reference == "baseline:w1@local"
