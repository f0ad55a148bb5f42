"""A search's conclusions about the recipe it confirmed."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from envmatrix.search.answer import Contribution, TuneAnswer
from envmatrix.search.report import answer_lines, to_json
from envmatrix.stats.effects import Effect
from envmatrix.stats.metrics import VALUE
from envmatrix.stats.pairing import ratio_from_log
from envmatrix.stats.steady_state.effect import SteadyEffect
from validation.simulated_tuning import FEW, FEW_TRIALS, FIRST, METHODS, Found, searched


def confirmed(low, *flags, verdict="faster", withheld="", **more):
    effect = Effect("own", "good", "local", "base", "value", 1.2, low, 1.3, 0.01, verdict, 12, flags, withheld=withheld)
    there = {"size": "large"}
    recipe = there if verdict == "faster" and not flags else {}
    space = {"contributions": (), "dropped": {}, "phases": {}, "cells": 4, "seen": 3, "spent_s": 60.0}
    return TuneAnswer(settings=recipe, tried=there, effect=effect, **space, **more)


def test_what_bars_a_recipe_is_named_and_nothing_else_of_it():
    said = confirmed(1.1, "changes-numerics", "slow-trials", "fails-more").headline
    assert said == "size=large is not recommended (fails-more), whatever its speed."


@pytest.mark.parametrize(
    ("ratio", "verdict", "said"),
    [
        (1.15, "faster", "size=large is 1.150 times as fast as the baseline in seconds 5 to 10 of its steps "
                         r"\(95 % CI 1.0\d+ to 1.2\d+; first steps 1.200, 1.100 to 1.300, 12 fresh blocks\)."),
        (1.02, "undecided", r"size=large is 1.\d+ times as fast as the baseline in its first steps \(.*\), but "
                            r"undecided in seconds 5 to 10 of its steps \(1.020, "),
        (0.8, "slower", r"Nothing to recommend: size=large is 1.\d+ times as fast as the baseline in its first steps "
                        r"\(.*\), but slower in seconds 5 to 10 of its steps \(0.800, "),
    ],
)  # fmt: skip
def test_a_recipe_is_told_by_its_later_steps(ratio, verdict, said):
    steady = SteadyEffect(ratio, ratio / 1.05, ratio * 1.05, ratio / 1.2, 3, 5.0, 10.0, changes=False, verdict=verdict)
    answer = confirmed(1.1, steady=steady)
    recipe = {} if verdict == "slower" else answer.settings
    answer = replace(answer, settings=recipe, effect=replace(answer.effect, error=0.02))
    assert re.match(said, answer.headline), answer.headline
    assert answer.gain == pytest.approx(ratio if verdict == "faster" else 1.2, rel=0.02)
    assert to_json("s", answer, "")["steady"]["until_s"] == 10.0


def test_a_recipe_with_slow_trials_and_too_few_blocks_is_not_called_faster():
    said = confirmed(1.1, verdict="undecided", withheld="slow-trials").headline
    assert said.startswith("Nothing is significantly faster than the baseline: size=large is 1.200 times as fast")
    assert said.endswith("; with outliers, a verdict needs 20 blocks.")


def test_what_a_recipe_gains_in_a_number_that_is_no_speed_is_no_speed():
    metric = replace(VALUE, label="accuracy")
    assert "is 1.200 times as good as the baseline in accuracy (95 %" in confirmed(1.1, metric=metric).headline
    assert confirmed(1.1, unchecked=True).headline.endswith("fresh blocks). Equal work not checked.")
    assert "times as fast as the baseline (95 % CI 1.00004 to" in confirmed(1.00004).headline


def test_how_much_of_a_large_space_was_tried_is_told_in_numbers_that_can_be_read():
    said = answer_lines(replace(confirmed(1.1), seen=1234, cells=6561))
    assert said[-1].startswith("1,234 of 6,560 configurations tried in 60 s (trials: ")


def test_a_gain_that_is_hardly_shown_is_told_smaller_than_it_was_measured():
    """A gain is reported only if its interval is above 1, which favours lucky ones: shrink it accordingly."""
    hardly = confirmed(1.001)
    hardly = replace(hardly, effect=replace(hardly.effect, ratio=1.10, error=0.04))
    assert 1.001 < hardly.gain < 1.06
    assert f"is {hardly.gain:.3f} times" in hardly.headline
    clearly = replace(hardly, effect=replace(hardly.effect, low=1.09, error=0.004))
    assert clearly.gain == pytest.approx(1.10, abs=0.001)
    nothing = confirmed(0.98, verdict="undecided")
    assert nothing.gain == nothing.effect.ratio


def test_told_gains_of_a_small_effect_in_much_noise_are_right_on_average():
    """With a true gain of 3 % and an error of 2 %, the plain ratios of reported gains are over 2 points too high."""
    drawn = np.random.default_rng(7).normal(np.log(1.03), 0.02, 4000)
    told = [value for value in drawn if value > 2.5 * 0.02]
    gains = []
    for value in told:
        answer = confirmed(ratio_from_log(value - 2.5 * 0.02))
        gains.append(replace(answer, effect=replace(answer.effect, ratio=ratio_from_log(value), error=0.02)).gain)
    assert np.exp(told).mean() > 1.05
    assert abs(np.mean(gains) - 1.03) < 0.5 * (np.exp(told).mean() - 1.03)


def test_what_the_model_thinks_of_each_setting_is_called_a_guess_and_no_interval():
    guess = Contribution("size", "large", 1.12, 1.06, 1.19)
    said = "\n".join(answer_lines(replace(confirmed(1.1), contributions=(guess,))))
    assert "(the model's estimate and its uncertainty; not confirmed, not a 95 % interval):" in said
    assert "1.12 (1.06 to 1.19)" in said


def test_searches_that_claim_nothing_are_not_off_by_nothing(monkeypatch):
    """Half of these searches report nothing and the others 10 points too much: the error is 10 points, not 5."""
    drawn = iter([Found(0, 0.0), Found(0, float(np.log(1.1)))] * 3)
    monkeypatch.setitem(METHODS, "made up", lambda _: next(drawn))
    figures = {one.question: one for one in searched("made up", 0.03, FIRST, 6, FEW, trials=FEW_TRIALS)}
    off = figures["claimed minus true, points"]
    assert (off.value, off.runs) == (pytest.approx(10.0), 3)
