"""The simulation of blocks that change during a run."""

import numpy as np
import pytest

from validation import adaptive_blocks as blocks


def test_the_noise_of_each_environment_is_found_from_blocks_alone():
    chance = np.random.default_rng(1)
    true = np.array([0.03, 0.01, 0.05, 0.03])
    logs = chance.standard_normal((5, 20_000)) * true[[0, 0, 1, 2, 3], None] + chance.standard_normal(20_000)
    assert np.sqrt(blocks.noise_of(logs)) == pytest.approx(true, rel=0.05)


def test_effects_that_noise_explains_are_shrunken():
    chance = np.random.default_rng(1)
    logs = chance.normal(0.0, 0.03, (10, 8))
    assert np.abs(blocks.components("none", logs).effects).max() < 0.01
    logs[2] += 1.0
    assert blocks.components("one", logs).effects[0] == pytest.approx(1.0, abs=0.05)


def test_the_time_of_those_that_leave_is_for_the_rest():
    assert blocks._blocks_of_the_rest([], 8, 100) == 10
    assert blocks._blocks_of_the_rest([6, 6], 8, 100) == 11
    assert blocks._blocks_of_the_rest([6, 20], 8, 100) == pytest.approx(6 + 40 / 9)


def test_second_trials_are_for_a_noisy_reference_and_not_for_equal_noise():
    equal = np.full(10, 0.03**2)
    assert blocks.choose_copies(equal, 30).time == 11
    noisy = equal.copy()
    noisy[0] *= 9
    assert blocks.choose_copies(noisy, 30).copies > 2
