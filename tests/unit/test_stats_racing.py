"""Racing: early verdicts on arms, and when they are made."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from envmatrix.stats.effects import LEVEL, level_of_one_sided_bounds
from envmatrix.stats.inference.maxt import critical_value, student_quantile
from envmatrix.stats.measurements import fold_trials
from envmatrix.stats.pairing import Views, families
from envmatrix.stats.stopping.racing import (
    BEST_SET_SHARE,
    _is_same_as_reference,
    decision_blocks,
    error_share,
    next_arms,
    surely_not_best,
)
from tests.synthetic import Machine, make_plan, make_trials

PLAN = make_plan(("best", "worst", "twin"), max_blocks=40)


def race_after(blocks, machine, plan=PLAN, seed=1):
    return next_arms(plan, fold_trials(plan, make_trials(plan, machine, blocks, seed)))


def test_the_hopeless_and_the_same_stop_while_references_and_the_leader_go_on():
    race = race_after(20, Machine({"best": 1.3, "worst": 0.8}, noise=0.01))
    assert (race.finished, race.leaders) == (True, ("best:cnn@local",))
    assert {(item.arm.partition(":")[0]) for item in race.stopped} == {"worst", "twin"}
    assert set(race.active) == {"baseline:cnn@local", "control:cnn@local", "best:cnn@local"}


@pytest.mark.parametrize("loses", [False, True])
def test_a_baseline_that_loses_trials_puts_nobody_out(loses):
    """Without its slow trials the baseline looks too fast."""
    plan = make_plan(("only",), max_blocks=40)
    trials = [
        replace(trial, outcome="timed_out", reason="took 60 s", document={})
        if loses and trial.environment == "baseline" and trial.block % 3 == 0
        else trial
        for trial in make_trials(plan, Machine({"only": 0.9}, noise=0.01), 20)
    ]
    assert bool(next_arms(plan, fold_trials(plan, trials)).stopped) is not loses


def test_everything_the_same_as_the_baseline_finishes_the_race():
    race = race_after(30, Machine({}, noise=0.01))
    assert race.finished
    assert {item.reason for item in race.stopped} == {"same as the reference"}


def test_an_early_verdict_is_by_own_errors_alone():
    """Eight arms within the margin by moderated critical values, but not by their own errors."""
    plan = make_plan(tuple("abcdefgh"))
    family, level = families(plan)[-1], 0.999
    reach = np.mean([critical_value(6, 8, 2, level=level, own=own) for own in (True, False)])
    numbers = np.tile([-1.0, 1.0], (8, 3)) * np.sqrt(5 / 6)  # mean 0, standard deviation 1
    for scale, same in ((1.0, False), (0.5, True)):
        differences = Views((numbers * scale * np.log1p(0.03) * np.sqrt(6) / reach,))
        assert _is_same_as_reference(differences, family, level, 0.03).tolist() == [same] * 8


@pytest.mark.parametrize("blocks", [6, 9, 13, 18, 25])
def test_what_an_early_look_can_end_is_what_the_docs_say(blocks):
    """For 8 arms with a log-ratio sd of 7 %: half-widths at the end, that of 'same' early, and a rival's lead."""
    share, sd = error_share(PLAN, blocks), 0.07 / blocks**0.5
    levels = (LEVEL, 1 - (1 - LEVEL) * 0.8, level_of_one_sided_bounds(1 - 0.01 * share))
    reaches = [critical_value(blocks, 8, 2, level=level, own=at == 2) for at, level in enumerate(levels)]
    reaches.append(student_quantile(blocks, 1 - 0.05 * (1 - BEST_SET_SHARE) * share / 8))
    row = " | ".join(f"{100 * np.expm1(reach * sd):.1f} %" for reach in reaches)
    docs = (Path(__file__).parents[2] / "docs" / "choosing.md").read_text()
    assert f"| {blocks} | {row} |" in docs


def test_nobody_stops_before_the_first_look():
    race = race_after(PLAN.min_blocks - 1, Machine({"best": 3.0}, noise=0.001))
    assert race.stopped == ()
    assert len(race.active) == len(PLAN.arms)


def test_what_was_decided_stays_decided_as_further_blocks_come():
    machine = Machine({"best": 1.2, "worst": 0.9}, noise=0.02)
    decided = [race_after(blocks, machine).stopped for blocks in range(5, 36)]
    assert all(later[: len(former)] == former for former, later in itertools.pairwise(decided))
    assert decided[-1]


@pytest.mark.parametrize("seed", range(4))
def test_a_block_that_is_half_on_disk_changes_nothing(seed):
    """Four arms per block; the interim analysis after block 6 waits until all of them have run in it."""
    plan = make_plan(("best", "worst"), race=True)
    trials = list(make_trials(plan, Machine({"best": 1.2}, noise=0.02), 6, seed))
    decided = [next_arms(plan, fold_trials(plan, trials[:count])) for count in range(20, 25)]
    assert [(race.stopped, race.finished) for race in decided[:4]] == [((), False)] * 4
    assert decided[4].stopped or decided[4].finished


def test_an_arm_that_did_other_work_stops_nobody():
    race = race_after(20, Machine({"best": 3.0, "worst": 1.2, "twin": 1.2}, noise=0.01, loss={"best": 5.0}))
    assert {item.arm for item in race.stopped if item.reason == "not the best"} <= {"best:cnn@local"}


def test_stopped_arms_are_given_at_the_level_that_all_looks_together_allow():
    race = race_after(20, Machine({"best": 1.3, "worst": 0.8}, noise=0.01))
    assert all(
        race.levels[item.arm] == pytest.approx(1 - 0.01 * error_share(PLAN, item.block)) for item in race.stopped
    )
    assert race.levels["best:cnn@local"] == pytest.approx(1 - (1 - LEVEL) * 0.8)


def test_looks_start_at_the_minimum_and_end_before_the_last_block():
    assert decision_blocks(PLAN) == (6, 9, 13, 18, 25, 34)
    assert decision_blocks(make_plan((), min_blocks=10, max_blocks=10)) == ()


def test_all_decisions_together_spend_no_more_than_the_error():
    plan = make_plan((), min_blocks=2, max_blocks=1000)
    shares = [error_share(plan, look) for look in decision_blocks(plan)]
    assert shares == sorted(shares, reverse=True)
    assert 0.9 < sum(shares) <= 1


def test_a_run_that_is_resumed_with_more_blocks_keeps_its_decisions():
    """Guards against trials of earlier blocks that are missing after `resume --max-blocks`."""
    machine = Machine({"best": 1.1, "worst": 0.85}, noise=0.03)
    short, resumed = (replace(PLAN, max_blocks=blocks) for blocks in (12, 400))
    decided = [[race_after(12, machine, plan, seed).stopped for seed in range(12)] for plan in (short, resumed)]
    assert decided[0] == decided[1]
    assert any(decided[0])


def test_an_equal_rival_is_hardly_ever_surely_better():
    chance = np.random.default_rng(1)
    drawn = [[Views((chance.normal(0, 0.03, (rows, 8)),)) for rows in (1, 5)] for _ in range(2000)]
    lost = [surely_not_best(one, rivals, 5)[0] for one, rivals in drawn]
    assert np.mean(lost) < 0.05
