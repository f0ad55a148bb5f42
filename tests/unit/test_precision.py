"""The arithmetic of `nox -s selfbench -- --precision`, on numbers with a known answer."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from envmatrix.matrix.parse import parse
from envmatrix.system.atomic_files import append_line
from tests.synthetic import Machine, make_plan, write_run
from validation import precision, precision_parts
from validation import precision_figures as figures
from validation.precision_figures import Estimate, Measured


def measured(*rows, seconds=60.0):
    return Measured(
        tuple(f"a{number}" for number in range(len(rows))), np.array(rows), np.full(len(rows[0]), float(seconds))
    )


def drawn(sd, blocks, seconds, seed, arms=1):
    return measured(*np.random.default_rng(seed).normal(0, sd, (arms, blocks)), seconds=seconds)


def test_a_third_of_the_spread_in_half_the_time_is_18_times_the_precision_a_minute():
    row = np.array([0.1, -0.2, 0.05, 0.3, -0.1, 0.0, 0.2])
    found = figures.gain(measured(row / 3, seconds=30), measured(row, seconds=60))
    assert found
    assert found.value == pytest.approx(18.0)
    assert math.log(found.high / 18) == pytest.approx(math.log(18 / found.low))


def test_the_gain_over_arms_is_their_geometric_mean():
    row = np.array([0.1, -0.2, 0.05, 0.3, -0.1, 0.0, 0.2])
    found = figures.gain(measured(row / 2, row[::-1] / 8), measured(row, row[::-1]))
    assert found
    assert found.value == pytest.approx(math.sqrt(4 * 64))


def test_a_block_without_a_pair_is_left_out_of_its_arm_alone():
    row = np.array([0.1, -0.2, math.nan, 0.3, -0.1, 0.0, 0.2])
    whole = row[np.isfinite(row)]
    assert figures.deviation([measured(row, row)], "a0") == pytest.approx(whole.std(ddof=1))
    found = figures.gain(measured(row / 2), measured(row))
    assert found
    assert 2 < found.value < 8


@pytest.mark.parametrize("blocks", [0, 1, 2, 3])
def test_too_few_blocks_say_nothing(blocks):
    few = measured(np.arange(blocks) / 10)
    assert figures.gain(few, drawn(0.1, 9, 60, 1)) is None
    if blocks < 2:
        assert figures.effect([few], "a0") is None
        assert figures.deviation([few], "a0") is None
        assert figures.difference([few], [drawn(0.1, 9, 60, 1)], "a0") is None


def test_numbers_that_do_not_differ_at_all_have_no_precision():
    assert figures.gain(measured(np.zeros(9)), drawn(0.1, 9, 60, 1)) is None


def test_the_interval_holds_the_truth_as_often_as_it_says():
    """400 draws of 12 blocks with a true gain of 8: the coverage is 95 % +- 2.2 %."""
    found = [figures.gain(drawn(0.05, 12, 30, 2 * seed), drawn(0.1, 12, 60, 2 * seed + 1)) for seed in range(400)]
    assert 0.92 <= np.mean([one.low <= 8.0 <= one.high for one in found if one]) <= 0.98


def test_an_effect_is_students_interval_of_its_log():
    row = np.array([0.1, 0.2, 0.15, 0.05])
    found = figures.effect([measured(row)], "a0")
    low, high = stats.t.interval(0.95, 3, loc=row.mean(), scale=stats.sem(row))
    assert found == Estimate(
        pytest.approx(math.exp(row.mean())), pytest.approx(math.exp(low)), pytest.approx(math.exp(high))
    )


def test_two_schedules_are_compared_by_welchs_interval():
    ours, theirs = np.array([0.1, 0.2, 0.15, 0.05]), np.array([0.0, 0.02, 0.01, 0.03, -0.01])
    found = figures.difference([measured(ours)], [measured(theirs)], "a0")
    low, high = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.95)
    assert found
    assert math.log(found.low) == pytest.approx(low)
    assert math.log(found.high) == pytest.approx(high)


def test_differences_of_several_arms_hold_together():
    ours, theirs = np.array([[0.1, 0.2, 0.15, 0.05]] * 5), np.array([[0.0, 0.02, 0.01, 0.03]] * 5)
    found = figures.difference([measured(*ours)], [measured(*theirs)], "a3")
    low, high = stats.ttest_ind(ours[0], theirs[0], equal_var=False).confidence_interval(0.99)
    assert found
    assert (math.log(found.low), math.log(found.high)) == (pytest.approx(low), pytest.approx(high))


def test_blocks_of_several_parts_have_a_mean_each_and_one_variance():
    row = np.array([0.1, -0.2, 0.05, 0.3])
    parts = [measured(row), measured(row + 0.5), Measured(("other",), np.array([[9.0, 1.0]]), np.ones(2))]
    deviation = math.sqrt(2 * ((row - row.mean()) ** 2).sum() / 6)
    assert figures.deviation(parts, "a0") == pytest.approx(deviation)
    found = figures.effect(parts, "a0")
    assert found
    assert math.log(found.value) == pytest.approx(row.mean() + 0.25)
    assert math.log(found.high / found.value) == pytest.approx(stats.t.ppf(0.975, 6) * deviation / math.sqrt(8))
    assert figures.effect([measured([0.1]), measured([0.2])], "a0") is None, "one block a part has no spread"


def test_a_difference_of_schedules_is_that_within_parts_whatever_the_effect_is_there():
    ours, theirs = np.array([0.1, 0.2, 0.15, 0.05]), np.array([0.0, 0.02, 0.01])
    one = figures.difference([measured(ours)], [measured(theirs)], "a0")
    parts = [measured(ours), measured(ours + 0.4)], [measured(theirs), measured(theirs + 0.4)]
    both = figures.difference(*parts, "a0")
    assert one
    assert both
    assert both.value == pytest.approx(one.value)
    assert math.log(both.high / both.low) < 0.75 * math.log(one.high / one.low), "twice the blocks"
    assert figures.difference([*parts[0], measured(ours)], [*parts[1], measured([])], "a0") == both, "no pair there"


def test_the_interval_of_a_pooled_difference_holds_the_truth_as_often_as_it_says():
    """600 draws of three parts (8, 4, 2 against 3, 2, 1 blocks) with unequal noise: the coverage is 95 % +- 1.8 %."""
    chance, held = np.random.default_rng(3), []
    for _ in range(600):
        at = chance.normal(0, 0.3, 3)
        ours = [measured(chance.normal(mean + 0.02, 0.05, count)) for mean, count in zip(at, (8, 4, 2), strict=True)]
        theirs = [measured(chance.normal(mean, 0.02, count)) for mean, count in zip(at, (3, 2, 1), strict=True)]
        found = figures.difference(ours, theirs, "a0")
        held.append(found.low <= math.exp(0.02) <= found.high)
    assert 0.93 <= np.mean(held) <= 0.97


@pytest.mark.parametrize(
    ("found", "said"),
    [(Estimate(1.01, 0.99, 1.025), "agree"), (Estimate(1.05, 1.01, 1.09), "DISAGREE"),
     (Estimate(0.9, 0.85, 0.95), "DISAGREE"), (Estimate(1.02, 1.01, 1.05), "not decided"),
     (Estimate(1.05, 0.98, 1.12), "more than 3 % apart, not decided"), (None, "not known")],
)  # fmt: skip
def test_schedules_agree_within_3_percent_and_within_their_intervals(found, said):
    assert figures.agreement(found) == said


def test_a_spread_of_ten_percent_takes_a_hundred_blocks_for_two():
    row = np.array([0.1, -0.1, 0.1, -0.1]) * math.sqrt(3 / 4)
    assert figures.blocks_for([measured(row)], "a0", 0.02) == 98


def test_only_blocks_with_a_time_count_and_the_table_says_what_was_found(tmp_path, capsys):
    for way, noise in (("turns", 0.02), ("sequential", 0.1)):
        write_run(tmp_path / f"mine-{way}", make_plan(("baseline", "fast")), Machine({"fast": 1.2}, noise), 12)
        for block in range(11):
            append_line(
                tmp_path / "blocks.jsonl",
                f'{{"design": "mine", "way": "{way}", "block": {block}, "seconds": {2 if way == "turns" else 4}}}',
            )
    document = precision.written(SimpleNamespace(to=tmp_path))
    part = document["parts"][0]
    assert part["blocks"] == {"turns": 11, "sequential": 11}
    assert part["block_s"] == {"turns": 2.0, "sequential": 4.0}
    assert part["gain"]["copies"]["value"] > 4
    said = capsys.readouterr().out
    assert "fast:cnn@local" in said
    assert "mine: turns against sequential" in said
    assert (tmp_path / "precision.json").exists()


def test_every_arm_takes_turns_where_that_is_the_question(tmp_path):
    text = """
version: 1
factors: {malloc: {glibc: {}, other: {turns: false}}}
environments: {baseline: {}, other: {malloc: other}}
workloads: {w: {model: fashion-cnn}}
designs: {mine: {environments: [other], workloads: w, turn: 3}}
"""
    matrix = precision.every_arm_in_turns(parse(text, tmp_path / "matrix.yaml"))
    assert matrix.factors["malloc"].levels["other"].turns
    chosen = SimpleNamespace(design="copies,mine", environments="", turn=0)
    copies = precision.design_of(matrix, "copies", chosen, "turns")
    assert (copies.environments, copies.workloads, copies.turn, copies.schedule) == ((), ("w",), 3, "turns")
    assert precision.with_options(matrix, copies, {"steps": 99}).workloads["w"].options["steps"] == 99


def turns_of(within, process, blocks=400, arms=5, turns=4, steps=3):
    """Return step times of about 20 ms, equal within a turn; arms and moments also differ, as further components."""
    draw = np.random.default_rng(5)
    of_moments = 0.3 * draw.normal(size=(blocks, 1, turns)) + np.linspace(0, 1, arms)[None, :, None]
    of_turns = of_moments + within * draw.normal(size=(blocks, arms, turns))
    of_turns += process * draw.normal(size=(blocks, arms, 1))
    return np.repeat(2e7 * np.exp(of_turns)[..., None], steps, axis=-1)


@pytest.mark.parametrize(("within", "process"), [(0.1, 0.05), (0.1, 0.0), (0.02, 0.08)])
def test_what_varies_from_turn_to_turn_and_with_the_process_is_told_apart(within, process):
    found = precision_parts.parts(turns_of(within, process), 2)
    assert math.sqrt(found.within) == pytest.approx(within, rel=0.05)
    assert math.sqrt(found.process) == pytest.approx(process, rel=0.05, abs=0.01)


def test_shorter_turns_cost_their_steps_that_are_set_apart():
    steps = np.full((2, 3, 4, 5), 1e9)  # 3 arms of 4 turns of 5 + 2 steps of 1 s, of which 20 count
    assert precision_parts.block_s(steps, 5, 20, 100.0, 2) == pytest.approx(100.0)
    assert precision_parts.block_s(steps, 2, 20, 100.0, 2) == pytest.approx(100.0 - 3 * 4 * 7 + 3 * (20 + 10 * 2))


def test_of_turns_only_blocks_count_that_are_whole():
    whole = [(block, arm, [2, 2], [1, 2, 3, 4]) for block in (0, 2) for arm in ("a", "b")]
    found = precision_parts.stacked([*whole, (1, "a", [2, 2], [1, 2, 3, 4]), (1, "b", [2], [1, 2])])
    assert found is not None
    assert found.shape == (2, 2, 2, 2)
    assert found[0, 0].tolist() == [[1, 2], [3, 4]]
    assert precision_parts.stacked(whole[:2]) is None
    assert precision_parts.stacked([(0, "a", [3, 1], [1, 2, 3, 4]), *whole[:1]]) is None
    assert next(precision_parts.lines(turns_of(0.1, 0.05), 60.0, 1)).startswith("  steps of a turn")


def test_the_first_steps_of_turns_are_held_against_their_last_two():
    slow_first = np.tile([12.0, 10.0, 10.0, 10.0, 10.0], (7, 1))
    (told,) = precision_parts.places([slow_first, 2 * slow_first])
    assert told.endswith("2 processes: first 1.200 ±0.000, second 1.000 ±0.000, third 1.000 ±0.000")
    assert not list(precision_parts.places([slow_first[:, :3]] * 2))
