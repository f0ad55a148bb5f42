"""Whether steps reached a steady state: known courses are classified correctly."""

import numpy as np
import pytest

from envmatrix.stats.steady_state.detection import MIN_STEPS, classify, level_changes
from validation.simulation import all_figures


def steps(course, noise=0.03, seed=1):
    chance = np.random.default_rng(seed)
    return 0.025 * np.exp(np.asarray(course) + chance.normal(0.0, noise, len(course)))


def test_steps_of_one_level_are_flat():
    found = classify(steps(np.zeros(300)))
    assert (found.kind, found.steps, found.seconds) == ("flat", 0, 0.0)
    assert found.step_s == pytest.approx(0.025, rel=0.01)


def test_a_warm_up_has_its_steps_and_its_seconds():
    times = steps(np.where(np.arange(300) < 40, 0.3, 0.0))
    found = classify(times)
    assert (found.kind, found.steps) == ("warm-up", 40)
    assert found.seconds == pytest.approx(times[:40].sum())
    assert found.step_s == pytest.approx(times[40:].mean())


def test_a_first_step_that_takes_much_longer_is_a_warm_up_of_one_step():
    found = classify(steps([3.0] + [0.0] * 299))
    assert (found.kind, found.steps) == ("warm-up", 1)


def test_a_process_that_gets_slower_and_stays_so_is_a_slow_down():
    found = classify(steps(np.where(np.arange(300) < 80, 0.0, 0.2)))
    assert (found.kind, found.steps) == ("slow-down", 80)


def test_a_shift_right_before_the_end_is_not_steady_and_nothing_more_is_said():
    found = classify(steps(np.where(np.arange(300) < 250, 0.0, 0.2)))
    assert found.kind == "not steady"
    assert (found.steps, found.seconds, found.step_s) == (None, None, None)


def test_a_pause_in_the_middle_is_no_level():
    course = np.zeros(300)
    course[150:152] = 2.0
    assert classify(steps(course)).kind == "flat"


def test_levels_that_are_nearly_alike_are_one():
    assert classify(steps(np.where(np.arange(300) < 100, 0.04, 0.0), noise=0.005)).kind == "flat"


def test_steps_without_any_noise_are_flat():
    assert classify([0.01] * 100).kind == "flat"


@pytest.mark.parametrize("times", [[], [0.1] * (MIN_STEPS - 1), [0.1] * 50 + [0.0]])
def test_of_too_few_steps_or_of_one_that_took_no_time_nothing_is_said(times):
    assert classify(times) is None


def test_very_many_steps_are_taken_together_and_the_warm_up_is_still_found():
    found = classify(steps(np.where(np.arange(30_000) < 5_000, 0.3, 0.0), noise=0.1))
    assert found.kind == "warm-up"
    assert found.steps == pytest.approx(5_000, abs=100)


def test_the_segmentation_is_the_cheapest_of_all():
    chance = np.random.default_rng(3)
    points = np.concatenate((chance.normal(0, 0.1, 6), chance.normal(1, 0.1, 5)))

    def squares(edges):
        parts = (points[a:b] for a, b in zip((0, *edges), (*edges, points.size), strict=True))
        return sum(((part - part.mean()) ** 2).sum() for part in parts)

    assert level_changes(points) == (6,)
    assert min(range(3, 9), key=lambda at: squares((at,))) == 6


def test_simulated_processes_are_called_what_they_are():
    found = {(f.question, f.machine, f.procedure): f.value for f in all_figures(100, only="steady")}
    for machine, least in (("independent", 0.8), ("calm", 1.0), ("shared VM", 0.6)):
        for course, kind in (
            ("flat", "flat"),
            ("40 steps 25 % slower", "warm-up"),
            ("80 steps 20 % faster", "slow-down"),
            ("last fifth 25 % slower", "not steady"),
        ):
            assert found[f"called {kind}", machine, f"{course}, 400 steps"] >= least
