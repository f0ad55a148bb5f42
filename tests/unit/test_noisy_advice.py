"""Advice about noise: what it allows, what reduces it, and never a command that runs for days."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from envmatrix.api.result import Result
from envmatrix.cli import progress_and_result
from envmatrix.durations_and_sizes import LONGEST_S, MOST_BLOCKS
from envmatrix.report.headline import control_doubt
from envmatrix.report.report_data import summarise_measurements
from envmatrix.results import trial_of
from envmatrix.runner.first_block_warnings import FirstBlockCheck, budget_too_short_text
from envmatrix.runner.running_estimate import total_blocks_for_width
from envmatrix.stats.comparisons.result import ArmComparison
from envmatrix.stats.effects import Effect
from envmatrix.stats.measurements import fold_trials
from envmatrix.stats.quality.slow_trials import SlowTrials
from tests.synthetic import Machine, make_plan, make_run, make_trials, write_run
from tests.unit.test_contention import BUSY, waited

NOISY = Machine({"b": 1.1}, noise=0.9, stand_in=False)


def told(tmp_path, machine, blocks=6, **more):
    return progress_and_result.undecided_advice(
        Result(write_run(tmp_path / "run", make_plan(("a", "b"), **more), machine, blocks).path)
    )


def test_a_hopeless_noise_is_told_with_how_long_it_would_take_and_no_command(tmp_path):
    """Guards against "as much time again" for a control between 0.57 and 4.92."""
    said = told(tmp_path, NOISY, min_blocks=6)
    found = re.fullmatch(
        r"undecided: a, b; with this noise, 3% would take about (\d+) (hours|days): make the machine quiet first "
        r"\(`envmatrix doctor`\)", said,
    )  # fmt: skip
    assert found, said
    result = Result(tmp_path / "run")
    wanted = max(total_blocks_for_width(one, 0.03) or 0 for one in result.effects if not one.is_control)
    took_s = progress_and_result._elapsed_and_blocks(result)[0]
    hours = int(found[1]) * (24 if found[2] == "days" else 1)
    assert hours == pytest.approx(took_s * wanted / 6 / 3600, rel=0.05), "as long as trials took so far"


def test_a_noise_that_more_blocks_narrow_is_told_with_the_command_as_ever(tmp_path):
    said = told(tmp_path, Machine({"b": 1.1}, noise=0.1, stand_in=False))
    assert re.search(r"; to run longer: envmatrix resume run --budget \d+m", said)


def test_more_blocks_of_a_busy_machine_are_not_asked_for(tmp_path):
    folder = write_run(tmp_path / "run", make_plan(("pytorch-ci",)), NOISY, 0)
    plan = folder.load().plan
    for trial in make_trials(plan, Machine({"pytorch-ci": 4.3}, noise=0.02, stand_in=False), 8):
        folder.append(waited(trial, BUSY[trial.environment]))
    said = progress_and_result.undecided_advice(Result(folder.path))
    assert said.startswith("undecided: pytorch-ci; more blocks do not help on a busy machine: make the machine quiet")
    assert "--budget" not in said


def test_a_gate_never_ends_with_a_command_of_days(tmp_path):
    """Guards against advice such as `--budget 250h3m --max-blocks 16762`."""
    result = Result(write_run(tmp_path / "run", make_plan(("a",)), NOISY, 8).path)
    (effect,) = (one for one in result.effects if not one.is_control)
    item = ArmComparison(
        "w@local",
        "baseline",
        "a",
        "m",
        1.0,
        0.3,
        3.3,
        1.0,
        "undecided",
        (8, 8),
        0.03,
        "cannot say",
        smallest=1.5,
        wanted=16762,
    )
    said = progress_and_result.gate_advice(result, SimpleNamespace(items=[item]), 0.03, "envmatrix compare run")
    assert re.fullmatch(
        r"with this noise, a verdict would take about \d+ (hours|days): make the machine quiet first .*", said
    )
    assert "16,762" not in item.line()
    assert f"more than {MOST_BLOCKS:,} blocks would show it: make the machine quiet first" in item.line()
    assert effect.blocks == 8


@pytest.mark.parametrize(("trial_s", "command"), [(30.0, True), (3600.0, False)])
def test_a_budget_of_days_is_never_suggested_before_a_run_either(trial_s, command):
    said = budget_too_short_text(60.0, 6, trial_s, 10)
    assert ("--budget" in said) is command
    assert ("use about 66 hours, or fewer environments" in said) is not command
    assert budget_too_short_text(60.0, 6, LONGEST_S / 66 * 1.01, 10).count("--budget") == 0


def test_that_a_budget_is_too_short_is_said_once(tmp_path):
    plan = make_plan(("a", "b"), budget_s=10.0)
    run = make_run(plan)
    run = run.model_copy(
        update={"workloads": {name: one.model_copy(update={"options": {}}) for name, one in run.workloads.items()}}
    )
    first = FirstBlockCheck(SimpleNamespace(plan=plan, run=run), 1)
    line = first.startup_budget_warning(1, busy=4.0)
    assert "use --budget" in line
    slots = plan.block(0)
    assert [first._short_budget_lines(trial_of(slot, "ok", wall_s=20.0)) for slot in slots] == [[]] * len(slots)


def effect(environment, ratio, low, high):
    return Effect("w", environment, "local", "b", "m", ratio, low, high, 0.01, "faster", 10)


@pytest.mark.parametrize(
    ("control", "gain", "said"),
    [((0.98, 0.93, 1.04), 1.16, ""), ((1.7, 0.57, 4.92), 1.5, "may differ by as much (0.57 to 4.92)."),
     ((0.9, 0.8, 1.05), 1.2, "may differ by as much"), ((0.9, 0.85, 0.96), 1.5, "measured 0.90 (0.85 to 0.96): "),
     ((1.2, 1.1, 1.3), 1.5, "measured 1.20 (1.10 to 1.30): something other than the environments")],
)  # fmt: skip
def test_a_control_that_is_off_or_wider_than_the_claim_is_said(control, gain, said):
    found = control_doubt(effect("control", *control), effect("e", gain, 1.01, 2.0), gain, "baseline")
    assert said in found
    assert bool(said) is bool(found)


def test_the_headline_has_what_the_control_says():
    plan = make_plan(("fast",))

    def off(trial):
        trial.document["metrics"]["samples_per_s"] *= 1.5 if trial.environment == "control" else 1.0
        return trial

    trials = map(off, make_trials(plan, Machine({"fast": 3.0}, noise=0.01, stand_in=False), 10))
    (group,) = summarise_measurements(make_run(plan), fold_trials(plan, trials)).groups
    assert group.headline.startswith("fast is ")
    assert " But the control, a second copy of baseline, measured 1.5" in group.headline
    quiet = fold_trials(plan, make_trials(plan, Machine({}, noise=0.9, stand_in=False), 10))
    (group,) = summarise_measurements(make_run(plan), quiet).groups
    assert "With this much noise (control: " in group.headline


def test_trials_that_are_many_times_as_slow_are_not_told_in_thousands_of_percent():
    assert SlowTrials(1, 10, 64.58).slowdown_text == "65.6x slower"
    assert SlowTrials(1, 10, 0.25).slowdown_text == "25% slower"
