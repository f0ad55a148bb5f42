"""`compare` of later steps: within one run, and of stored runs; what lacks them is compared by its first steps."""

import json
import random
from dataclasses import replace

import pytest

import envmatrix
from envmatrix.errors import ExitCode
from envmatrix.plan import steady_state_block_share
from envmatrix.plan.steady_state_block_share import seconds_of_steps
from envmatrix.results import RunFolder
from envmatrix.stats.comparisons.between_runs import compare_runs
from envmatrix.stats.comparisons.environment_pairs import compare_environments
from envmatrix.stats.measurements import read_measurements
from tests.synthetic import MATRIX_TEXT, Machine, make_plan, make_run, make_trials
from tests.unit.test_continuations import continued_after_trials
from validation.measured_continuations import going_on_for, lines_of

PLAN = make_plan(("baseline", "fast", "slow"))
SPEED = {"fast": 1.25, "slow": 0.8}


def stored(tmp_path, name, change, seed=1, seconds=9, blocks=(5, 6, 7), speed=None):
    """Write a run of 8 blocks, in which environments ``change`` in the processes that went on."""
    folder, chance = RunFolder(tmp_path / name), random.Random(seed)
    folder.create(make_run(PLAN, name=name, created=f"2026-01-0{seed}T00:00:00+00:00"), MATRIX_TEXT)
    for trial in make_trials(PLAN, Machine(SPEED if speed is None else speed, noise=0.01), 8, seed):
        if trial.block in blocks and trial.environment in change:
            noise = chance.gauss(0, 0.003)
            trial = replace(continued_after_trials(trial, seconds, change[trial.environment], noise), later_s=30.0)
        folder.append(trial)
    return folder


def within(folder, old, new, allowed=0.03):
    run = folder.load()
    return compare_environments(run, read_measurements(folder, run.plan), old, new, allowed)


ALL = {"baseline": 1.0, "control": 1.0, "fast": 0.7, "slow": 1.0}


def test_later_steps_come_first_and_decide(tmp_path):
    found = within(stored(tmp_path, "run", ALL), "baseline", "fast")
    (item,) = found.items
    assert (item.verdict, item.steady.verdict, item.status, found.exit_code) == (
        "faster", "slower", "slower", ExitCode.SLOWER
    )  # fmt: skip
    assert item.steady.ratio == pytest.approx(1.25 * 0.7, rel=0.02)
    assert item.one_sided is None, "first and later steps share what a gate may err"
    assert item.line().startswith("cnn@local: fast is 0.8")
    assert " times as fast as baseline in seconds 5 to " in item.line()
    assert ", slower); first steps 1.2" in item.line()
    assert item.line().endswith(", faster): slower by more than 3.0%")
    document = json.loads(json.dumps(found.to_json(), allow_nan=False))["comparisons"][0]
    assert document["steady"]["low"] < document["steady"]["ratio"] < document["steady"]["high"] < 1


def test_a_result_in_python_has_its_steady_effects(tmp_path):
    result = envmatrix.load(stored(tmp_path, "run", ALL).path)
    steady = result.steady_effects["fast:cnn@local"]
    assert isinstance(steady, envmatrix.SteadyEffect)
    assert (steady.verdict, steady.until_s) == ("slower", pytest.approx(10, abs=1))
    assert set(result.steady_effects) == {effect.arm for effect in result.effects}
    assert result.best is None, "the only one that is faster at first is slower later"
    assert "slower in seconds 5 to" in result._repr_markdown_()
    assert envmatrix.load(stored(tmp_path, "first", {}).path).steady_effects == {}


def test_two_other_environments_and_the_opposite_direction_agree(tmp_path):
    folder = stored(tmp_path, "run", ALL)
    (there,), (back,) = (within(folder, *names).items for names in (("baseline", "fast"), ("fast", "baseline")))
    assert (back.steady.ratio, back.steady.low) == pytest.approx((1 / there.steady.ratio, 1 / there.steady.high))
    assert back.steady.verdict == "faster"
    (both,) = within(folder, "slow", "fast").items
    assert both.steady.ratio == pytest.approx(1.25 * 0.7 / 0.8, rel=0.02)
    assert both.steady.low < both.steady.ratio < both.steady.high


def test_if_only_one_went_on_first_steps_are_compared_and_that_is_said(tmp_path):
    folder = stored(tmp_path, "run", {name: 1.0 for name in ALL if name != "fast"})
    found = within(folder, "baseline", "fast")
    assert (found.items[0].steady, found.items[0].status) == (None, "not slower")
    assert found.items[0].one_sided
    assert "only baseline:cnn@local has later steps: first steps are compared" in " ".join(found.cautions)
    assert "later steps" not in " ".join(within(stored(tmp_path, "none", {}), "baseline", "fast").lines())


def test_stored_runs_compare_their_later_steps_with_the_variation_between_runs(tmp_path):
    olds = [stored(tmp_path, f"old{seed}", ALL, seed) for seed in range(1, 5)]
    new = stored(tmp_path, "new", ALL | {"fast": 0.5}, 7)
    found = {item.new: item for item in compare_runs(olds[0], new, environments=["fast"], allowed=0.03).items}
    (item,) = found.values()
    assert (item.verdict, item.steady.verdict, item.status) == ("same", "slower", "slower")
    assert item.steady.ratio == pytest.approx(0.5 / 0.7, rel=0.05)
    assert "in seconds 5 to " in item.line()


def test_two_stored_runs_alone_have_both_ratios_and_no_interval(tmp_path):
    old, new = stored(tmp_path, "old", ALL), stored(tmp_path, "new", ALL | {"fast": 0.5}, 7)
    (item,) = compare_runs(old, new, environments=["fast"]).items
    assert (item.low, item.steady.low, item.status) == (None, None, "cannot say")
    assert f"({item.steady.ratio:.3f} in seconds 5 to " in item.line()


@pytest.mark.parametrize(
    ("more", "caution"),
    [
        ({"change": {}}, "only old has a steady effect of fast"),
        ({"change": ALL, "seconds": 4}, "went on for 5 to "),
    ],
)
def test_runs_of_which_only_one_has_later_steps_compare_first_steps(tmp_path, more, caution):
    old, new = stored(tmp_path, "old", ALL), stored(tmp_path, "new", seed=7, **more)
    found = compare_runs(old, new, environments=["fast"])
    assert found.items[0].steady is None
    assert any(caution in text and text.endswith("first steps are compared") for text in found.cautions)


def test_effects_of_a_minute_are_compared_with_those_of_seconds(tmp_path):
    short, alike = (envmatrix.load(stored(tmp_path, f"run{seed}", ALL, seed).path) for seed in (1, 2))
    differs = envmatrix.load(stored(tmp_path, "long", ALL | {"fast": 0.5}, 3).path)
    lines = {line.split(":")[0]: line for line in lines_of(short, alike)}
    assert lines["fast"].endswith(" agree")
    assert "[" in lines["fast"]
    assert {line.split(":")[0]: line for line in lines_of(short, differs)}["fast"].endswith(" DISAGREE")
    usual = steady_state_block_share.FULL_S
    with going_on_for(60.0):
        assert seconds_of_steps(1e6, 1, 2) == 60.0
    assert seconds_of_steps(1e6, 1, 2) == usual
