"""What a search says of the recipe that it confirmed."""

from __future__ import annotations

from dataclasses import replace

from envmatrix.report.tuning import lines_of
from envmatrix.stats.effects import Effect
from envmatrix.stats.metrics import VALUE
from envmatrix.stats.tuning_answer import TuneAnswer


def confirmed(low, *flags, verdict="faster", withheld="", **more):
    effect = Effect("own", "good", "local", "base", "value", 1.2, low, 1.3, 0.01, verdict, 12, flags, withheld=withheld)
    there = {"size": "large"}
    recipe = there if verdict == "faster" and not flags else {}
    return TuneAnswer(recipe, there, effect, (), {}, {}, 4, 3, 60.0, **more)


def test_what_bars_a_recipe_is_named_and_nothing_else_of_it():
    said = confirmed(1.1, "changes-numerics", "slow-trials", "fails-more").headline
    assert said == "size=large is not recommended (fails-more), whatever its speed."


def test_a_recipe_with_slow_trials_and_too_few_blocks_is_not_called_faster():
    said = confirmed(1.1, verdict="undecided", withheld="slow-trials").headline
    assert said.startswith("Nothing is shown to be faster than the baseline: size=large is 1.200 times as fast")
    assert said.endswith("; with slow trials there is no verdict below 20 blocks.")


def test_what_a_recipe_gains_in_a_number_that_is_no_speed_is_no_speed():
    metric = replace(VALUE, label="accuracy")
    assert "is 1.200 times as good as the baseline in accuracy (95 %" in confirmed(1.1, metric=metric).headline
    assert confirmed(1.1, unchecked=True).headline.endswith("fresh blocks). Equal work not checked.")
    assert "times as fast as the baseline (95 % interval 1.00004 to" in confirmed(1.00004).headline


def test_how_much_of_a_large_space_was_tried_is_told_in_numbers_that_can_be_read():
    said = lines_of(replace(confirmed(1.1), seen=1234, cells=6561))
    assert said[-1].startswith("1,234 of 6,560 configurations tried in 60 s (trials: ")
