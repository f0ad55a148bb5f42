"""A run that is read, resumed and read again has no more errors than one that is read once."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

import envmatrix
from envmatrix.api.run_results import figure, write_report
from envmatrix.errors import InputError
from envmatrix.report.formats.markdown import to_markdown
from envmatrix.report.formats.terminal import print_summary
from envmatrix.report.report_data import summarise
from envmatrix.results import RunFolder
from envmatrix.runner.running_estimate import RunningEstimate
from envmatrix.stats.comparisons.replication import compare_effects
from envmatrix.stats.effect_estimation import between, estimate
from envmatrix.stats.effects import ALL_ANALYSES_LEVEL, FIRST_ANALYSIS_SHARE, LEVEL
from envmatrix.stats.inference.maxt import critical_value
from envmatrix.stats.measurements import fold_trials
from envmatrix.stats.stopping import alpha_spending
from envmatrix.stats.stopping.alpha_spending import confidence_level, interim_analysis_blocks
from envmatrix.trials.experiment_setup import Experiment
from envmatrix.trials.resume_overrides import apply_resume_changes
from tests.synthetic import Machine, make_plan, make_trials, write_run
from validation.simulated import absolute_t, over_two_copies, trials_of
from validation.simulated_looks import decided

PLAN = make_plan(("a", "b", "c"))


def read_after(*blocks, plan=PLAN):
    return replace(plan, looked=blocks)


@pytest.mark.parametrize("environments", [1, 3])
def test_resuming_until_something_is_decided_errs_in_at_most_5_of_100_runs(environments):
    logs = trials_of("drifting", environments + 2, 40, 4000, np.random.default_rng(3))
    at = range(6, 41, 2)
    assert decided(over_two_copies(logs), at).mean() < 0.045
    assert decided(over_two_copies(logs), at, ALL_ANALYSES_LEVEL).mean() > 0.12, "what it would be were nothing spent"


def test_the_first_look_has_most_of_the_error_and_a_run_read_again_at_once_is_still_at_its_first():
    assert pytest.approx(1 - 0.036 * 0.8) == LEVEL
    assert confidence_level(PLAN, 12) == LEVEL
    assert confidence_level(read_after(12), 12) == LEVEL
    assert confidence_level(read_after(3, 5), 12) == LEVEL, "nothing is said below 6 blocks"


def test_the_only_look_of_a_run_that_is_read_once_has_all_of_the_error():
    plan = replace(PLAN, read_once=True)
    assert confidence_level(plan, 12) == ALL_ANALYSES_LEVEL < LEVEL


def test_a_run_that_is_read_once_is_not_read_while_it_runs_nor_resumed_once_it_can_be_read(tmp_path):
    plan = make_plan(("a",), read_once=True)
    folder = write_run(tmp_path / "run", plan, Machine({"a": 1.1}), 8)
    assert summarise(folder).analysis.level == ALL_ANALYSES_LEVEL
    folder.lock()
    with pytest.raises(InputError, match="read only at its end") as refused:
        write_report(folder.path)
    assert "start a new run" in refused.value.remedy
    folder.unlock()
    with pytest.raises(InputError, match="8 blocks of it can be read already"):
        apply_resume_changes(opened(folder.path, tmp_path), budget=900)
    assert RunFolder(folder.path).load().history == ()


def test_a_run_that_is_read_once_is_resumed_while_it_has_no_interval(tmp_path):
    folder = write_run(tmp_path / "run", make_plan(("a",), read_once=True), Machine({"a": 1.1}), 5)
    apply_resume_changes(opened(folder.path, tmp_path), budget=900).folder.unlock()
    assert folder.load().plan.budget_s == 900


def test_each_look_costs_and_the_sooner_it_comes_the_less_it_may_err():
    second, third = confidence_level(read_after(10), 20), confidence_level(read_after(10, 20), 40)
    assert LEVEL < second < third < 1
    assert confidence_level(read_after(10, 15), 20) > second
    assert confidence_level(read_after(20, 10, 10), 40) == third, "in whatever order they were written down"
    assert interim_analysis_blocks(read_after(20, 10), 40) == (10, 20, 40)


def test_a_hundred_looks_still_leave_an_interval():
    level = confidence_level(read_after(*range(6, 100), plan=make_plan(("a",))), 100)
    assert 0.999 < level < 1


def test_there_may_be_thousands_of_looks(monkeypatch):
    monkeypatch.setattr(alpha_spending, "_DRAWS", 1000)
    monkeypatch.setattr(alpha_spending, "_simulation_cache", {})
    looks = tuple(range(6, 5007))
    assert 0.99 < confidence_level(read_after(*looks, plan=make_plan(("a",))), 5006) < 1
    assert alpha_spending._simulate_analyses(looks, 1, 2).quiet.mean() > 1 - 2 * (1 - ALL_ANALYSES_LEVEL), (
        "nor do they spend more than there is"
    )


def test_a_look_at_blocks_that_were_set_aside_since_is_paid_for_too():
    assert interim_analysis_blocks(read_after(40), 30) == (22, 30), (
        "two looks at 30 and 40 are as alike as two at 22 and 30"
    )
    assert confidence_level(read_after(40), 30) == confidence_level(read_after(22), 30) > LEVEL
    assert interim_analysis_blocks(read_after(40, 5), 7) == (6, 7), "and never as one before min_blocks"
    assert interim_analysis_blocks(read_after(30), 30) == (30,)


def test_what_two_looks_spend_is_what_their_joint_chance_says():
    # Two analyses of one comparison, simulated as trials: only errors at the second without one at the first count.
    chance, draws = np.random.default_rng(8), 60_000
    logs = chance.standard_normal((draws, 20))
    plan = make_plan(("a",))
    from scipy import stats

    def beyond(blocks, level):
        part = logs[:, :blocks]
        t = np.abs(part.mean(1)) / (part.std(1, ddof=1) / math.sqrt(blocks))
        return t > stats.t.ppf((1 + level) / 2, blocks - 1)

    first = beyond(10, LEVEL)
    second = beyond(20, confidence_level(read_after(10, plan=plan), 20)) & ~first
    spent = (1 - ALL_ANALYSES_LEVEL) * (1 - (1 - FIRST_ANALYSIS_SHARE) / 4 - FIRST_ANALYSIS_SHARE)
    assert second.mean() == pytest.approx(spent, rel=0.12)


def test_what_two_looks_at_a_family_spend_is_what_their_joint_chance_says():
    logs = np.random.default_rng(8).standard_normal((40_000, 10, 12))
    differences, plan = over_two_copies(logs), make_plan(tuple("abcdefgh"))

    def beyond(blocks, level):
        return (absolute_t(differences[:, :, :blocks]) > critical_value(blocks, 8, 2, level=level)).any(axis=1)

    second = beyond(12, confidence_level(read_after(6, plan=plan), 12)) & ~beyond(6, LEVEL)
    spent = (1 - ALL_ANALYSES_LEVEL) * (1 - (1 - FIRST_ANALYSIS_SHARE) / 4 - FIRST_ANALYSIS_SHARE)
    assert second.mean() == pytest.approx(spent, rel=0.2)


def opened(path, tmp_path):
    folder = RunFolder(path)
    return Experiment(folder.load(), folder, {}, {}, tmp_path, tmp_path)


@pytest.fixture
def again(tmp_path):
    """Return a run that was resumed after 8 blocks and now has 16."""
    plan = make_plan(("a", "b"))
    trials = list(make_trials(plan, Machine({"a": 1.1}), 16))
    folder = write_run(tmp_path / "run", plan, Machine({"a": 1.1}), 8)
    apply_resume_changes(opened(folder.path, tmp_path), command=("resume",)).folder.unlock()
    for trial in trials[8 * len(plan.arms) :]:
        folder.append(trial)
    return folder


def test_resuming_notes_how_much_could_be_read_even_if_it_changes_nothing_else(again, tmp_path):
    found = again.load()
    assert ([change.looked for change in found.history], found.plan.looked) == ([8], (8,))
    assert "after 8 blocks" in found.history[0].text()
    apply_resume_changes(opened(again.path, tmp_path)).folder.unlock()
    apply_resume_changes(opened(again.path, tmp_path)).folder.unlock()
    assert again.load().plan.looked == (8, 16), "once for each number of blocks"


def test_what_was_only_read_is_not_said_to_be_resumed(again, tmp_path):
    apply_resume_changes(opened(again.path, tmp_path), budget=900).folder.unlock()
    found = summarise(again)
    assert [change.what for change in found.run.history] == ["read", "resumed"]
    at, later = (change.at for change in found.run.history)
    assert f"| read | {at}: after 8 blocks" in to_markdown(found)
    assert f"| resumed | {later}: after 16 blocks, budget " in to_markdown(found)
    out = io.StringIO()
    print_summary(found, Console(file=out, width=200))
    assert f"\nread: {at}" in out.getvalue()
    assert f"\nresumed: {later}" in out.getvalue()


def test_a_later_look_widens_every_interval_of_the_run_and_says_so(again):
    summary = summarise(again)
    once = estimate(replace(summary.plan, looked=()), summary.measured, metrics=())
    twice = summary.analysis
    assert (twice.looks, twice.level) == ((8, 16), confidence_level(summary.plan, 16))
    for effect in twice.primary_effects():
        other = once.find(effect.arm)
        assert effect.high / effect.low > other.high / other.low
    assert "after 8 blocks" in summary.looks_sentence
    assert "all 2 analyses together are wrong in 5 % of runs at most" in summary.looks_sentence
    assert summary.looks_sentence in to_markdown(summary)


def test_compare_and_reproduce_use_the_level_of_the_look(again):
    summary = summarise(again)
    arms = {arm.environment: arm for arm in summary.plan.arms}
    once = estimate(replace(summary.plan, looked=()), summary.measured, metrics=())
    widths = [
        math.log(found.high / found.low)
        for found in (between(one, summary.measured, arms["a"], arms["b"]) for one in (once, summary.analysis))
    ]
    assert widths[1] > widths[0] * 1.1
    first, second = (compare_effects(once, one)[0] for one in (once, summary.analysis))
    assert math.log(second.high / second.low) > math.log(first.high / first.low) * 1.1


@pytest.mark.parametrize(
    "read",
    [
        write_report,
        envmatrix.load,
        envmatrix.effects,
        lambda run: envmatrix.compare(run, environments=("baseline", "a")),
        lambda run: figure("forest", run),
    ],
)
def test_what_is_read_while_the_run_goes_on_counts(tmp_path, read):
    folder = write_run(tmp_path / "run", make_plan(("a",)), Machine({}), 9)
    write_report(folder.path)
    assert folder.load().history == (), "it had ended"
    folder.lock()
    for _ in range(2):
        read(folder.path)
    folder.unlock()
    assert folder.load().plan.looked == (9,)


def test_while_a_run_goes_on_no_interval_and_no_verdict_is_shown():
    plan = make_plan(("fast",))
    running = RunningEstimate(plan, {})
    for trial in make_trials(plan, Machine({"fast": 1.5}, noise=0.001), 9):
        running.add(trial)
    assert running.headline() == "ahead so far: fast (no verdict before the end)"


def test_of_two_workloads_the_headline_names_one():
    plan = make_plan(("fast",), workloads=("one", "two"))
    running = RunningEstimate(plan, {})
    for trial in make_trials(plan, Machine({"fast": 1.5}, noise=0.001), 1):
        running.add(trial)
    assert running.headline().startswith("ahead so far: fast:")


def test_a_race_goes_on_with_what_its_early_verdicts_left():
    plan = make_plan(("a", "b"), race=True)
    measured = fold_trials(plan, make_trials(plan, Machine({}, noise=0.05), 12))
    once, twice = (estimate(one, measured, metrics=()) for one in (plan, read_after(6, plan=plan)))
    left = [1 - found.race.levels["a:cnn@local"] for found in (once, twice)]
    assert left == pytest.approx([(1 - found.level) * 0.8 for found in (once, twice)])
