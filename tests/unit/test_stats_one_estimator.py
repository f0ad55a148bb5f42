"""Table, compare, reproduce, history, live progress and figures agree about one run."""

from __future__ import annotations

import html
import itertools
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import t as student

from envmatrix.errors import InputError
from envmatrix.report.figures.forest import forest
from envmatrix.report.figures.heat_map import heat_map
from envmatrix.report.formatting import format_bounds, format_interval, format_ratio
from envmatrix.report.report_data import summarise
from envmatrix.report.write import write_reports
from envmatrix.results import RunFolder
from envmatrix.runner.running_estimate import RunningEstimate
from envmatrix.stats.comparisons.environment_pairs import compare_environments
from envmatrix.stats.comparisons.replication import compare_effects
from envmatrix.stats.effect_estimation import between, estimate
from envmatrix.stats.history import read_history
from envmatrix.stats.measurements import first_blocks
from tests.synthetic import MATRIX_TEXT, Machine, make_plan, write_mixed, write_run
from validation.simulated_pairs import arms_of as arms_of_run
from validation.simulated_pairs import picked
from validation.simulated_table import plan_of

RESULTS = Path(__file__).parents[2] / "results"
REFERENCES = sorted(file.parent.name for file in RESULTS.glob("reference-*/run.json"))


@pytest.fixture(scope="module", params=[*REFERENCES, "raced", "alone"])
def folder(request, tmp_path_factory):
    """Return each committed reference run, a simulated run that raced, and one with some separate trials."""
    if request.param == "alone":
        return write_mixed(tmp_path_factory.mktemp("runs") / "alone", Machine({"a": 1.2, "b": 1.4}), 12)
    if request.param != "raced":
        return RunFolder(RESULTS / request.param)
    plan = make_plan(("best", "worst", "twin"), race=True)
    machine = Machine({"best": 1.3, "worst": 0.8}, noise=0.01)
    return write_run(tmp_path_factory.mktemp("runs") / "raced", plan, machine, 20)


@pytest.fixture(scope="module")
def whole(folder):
    return summarise(folder)


def said(item):
    return (item.ratio, item.low, item.high, item.p, item.verdict)


def arms_of(summary):
    return {arm.name: arm for arm in summary.plan.arms}


def test_compare_says_of_every_pair_what_the_table_says(whole):
    arms = arms_of(whole)
    for effect in whole.analysis.primary_effects():
        found = compare_environments(whole.run, whole.measured, effect.reference, effect.arm)
        assert [said(item) for item in found.items] == [said(effect)]
        old, new = arms[effect.reference].environment, effect.environment
        if old != new:
            items = compare_environments(whole.run, whole.measured, old, new).items
            assert said(effect) in [said(item) for item in items]


def test_compare_turned_round_is_the_tables_effect_turned_round(whole):
    opposite = {"faster": "slower", "slower": "faster"}
    for effect in whole.analysis.primary_effects():
        item = compare_environments(whole.run, whole.measured, effect.arm, effect.reference).items[0]
        assert (item.ratio, item.low, item.high) == pytest.approx((1 / effect.ratio, 1 / effect.high, 1 / effect.low))
        assert (item.p, item.verdict) == (effect.p, opposite.get(effect.verdict, effect.verdict))


def test_two_environments_are_as_far_apart_as_their_effects_in_the_table(whole):
    """For complete blocks, the ratio of two arms is the quotient of their ratios to the shared reference."""
    for group in whole.groups:
        rows = [row for row in group.rows if row.effect and row.effect.blocks == len(whole.measured.blocks)]
        for one, other in itertools.permutations(rows, 2):
            if one.effect.reference == other.effect.reference:
                found = between(whole.analysis, whole.measured, one.arm, other.arm)
                assert found.ratio == pytest.approx(other.effect.ratio / one.effect.ratio)
                assert found.low <= found.ratio <= found.high


def test_reproduce_compares_the_tables_effects(whole):
    run = whole.run
    analysis = estimate(run.plan, whole.measured, workloads=run.workloads, environments=run.environments, metrics=())
    for item in compare_effects(analysis, analysis):
        assert item.first == item.second == whole.analysis.find(item.arm)


def test_the_estimate_while_a_run_is_going_is_the_tables(folder, whole):
    live = RunningEstimate(whole.plan, whole.run.workloads)
    for trial in folder.readings(whole.plan):
        live.add(trial)
    for effect in live.analysis.primary_effects():
        assert said(effect) == said(whole.analysis.find(effect.arm))


def test_history_shows_the_tables_effects(whole, tmp_path):
    folder = RunFolder(tmp_path / "copy")
    folder.create(whole.run, MATRIX_TEXT)
    write_reports(folder, whole)
    points = {(s.workload, s.engine, s.environment): s.points[-1] for s in read_history(tmp_path).series}
    for group in whole.groups:
        for row in group.all_rows:
            if row.effect:
                point = points[group.workload, group.engine, row.arm.environment]
                assert (point.ratio, point.low, point.high) == (row.effect.ratio, row.effect.low, row.effect.high)


def test_the_figures_numbers_are_the_tables(whole):
    for group in whole.groups:
        drawn = html.unescape(forest(group))
        for row in group.all_rows:
            if row.effect and row is not group.baseline:
                assert f"{format_ratio(row.effect.ratio)} ({format_interval(row.effect)})" in drawn
    heat = heat_map(whole)
    shown = [effect for _, effects in heat.rows for effect in effects if effect] if heat else []
    assert all(effect is whole.analysis.find(effect.arm) for effect in shown)
    for item in whole.attributions:
        total = item.total
        effect = whole.analysis.find(f"{item.best}:{item.workload}@{item.engine}")
        assert (format_ratio(total.ratio), format_bounds(total.low, total.high)) == (
            format_ratio(effect.ratio),
            format_interval(effect),
        )


PLAIN = make_plan(("a", "b", "c"))


def pair(plan, blocks, speed, seed, tmp_path):
    folder = write_run(tmp_path / f"run-{seed}", plan, Machine(speed, noise=0.03), blocks, seed)
    return summarise(folder)


def test_a_pair_without_the_reference_has_an_interval_that_holds_with_those_of_all_pairs(tmp_path):
    """a, b, c and the baseline form six pairs: Student's t of the paired differences, Bonferroni for six."""
    found = pair(PLAIN, 8, {"a": 1.1}, 3, tmp_path)
    arms, measured = arms_of(found), found.measured
    logs = np.log(measured.of("b:cnn@local", "samples_per_s") / measured.of("a:cnn@local", "samples_per_s"))
    error = logs.std(ddof=1) / np.sqrt(8)
    reach = student.ppf(1 - (1 - found.analysis.level) / 2 / 6, 7) * error
    effect = between(found.analysis, measured, arms["a:cnn@local"], arms["b:cnn@local"])
    assert np.log([effect.low, effect.high]) == pytest.approx([logs.mean() - reach, logs.mean() + reach])
    p = 6 * 2 * student.sf(abs(logs.mean() / error), 7) * 0.05 / (1 - found.analysis.level)
    assert effect.p == pytest.approx(min(1.0, p))


def test_a_pair_picked_after_looking_at_a_table_of_like_environments_is_falsely_different_in_5_percent_at_most():
    """Picking the two furthest apart, or the clearest pair, requires correction for all 45 pairs of ten arms."""
    plan, runs = plan_of(8, arms_of_run(9)), 400
    logs = np.random.default_rng(9054).normal(0.0, 0.04, (runs, len(plan.arms), 8))
    table, furthest, clearest = np.array([picked(one, plan) for one in logs]).mean(axis=0)
    most = 0.05 + 2 * np.sqrt(0.05 * 0.95 / runs)
    assert max(table, furthest, clearest) <= most


def test_a_pair_without_the_reference_turns_round(tmp_path):
    found = pair(PLAIN, 10, {"a": 1.3}, 4, tmp_path)
    arms = arms_of(found)
    one, other = arms["a:cnn@local"], arms["b:cnn@local"]
    there = between(found.analysis, found.measured, one, other)
    back = between(found.analysis, found.measured, other, one)
    assert (back.ratio, back.low, back.high) == pytest.approx((1 / there.ratio, 1 / there.high, 1 / there.low))
    assert (there.verdict, back.verdict) == ("slower", "faster")


def test_unequal_work_is_told_where_two_environments_are_compared(tmp_path):
    machine = Machine({"a": 2.0}, noise=0.01, loss={"a": 5.0})
    found = summarise(write_run(tmp_path / "run", PLAIN, machine, 8))
    for old in ("baseline", "b"):
        assert any(
            "did other work than" in text for text in compare_environments(found.run, found.measured, old, "a").cautions
        )


def test_environments_that_meet_nowhere_are_an_error_and_no_empty_answer(tmp_path):
    found = pair(make_plan(("a",), engines=("local", "docker")), 8, {}, 5, tmp_path)
    arms = tuple(arm for arm in found.plan.arms if (arm.environment, arm.engine) != ("a", "local"))
    arms = tuple(arm for arm in arms if (arm.environment, arm.engine) != ("baseline", "docker"))
    run = found.run.model_copy(update={"arms": arms})
    with pytest.raises(InputError, match="have no workload in common on the same engine"):
        compare_environments(run, found.measured, "baseline", "a")


def test_a_run_is_precise_enough_by_the_intervals_of_its_table(tmp_path):
    """A run never ends as precise enough if its table has an interval wider than the target."""
    from envmatrix.stats.stopping.precision import is_precise_enough

    plan = make_plan(("a", "b"), race=True, max_blocks=30)
    folder = write_run(tmp_path / "run", plan, Machine({"a": 1.2}, noise=0.03), 30, 6)
    measured = summarise(folder).measured
    ends = [n for n in range(6, 31) if is_precise_enough(plan, first_blocks(measured, n), 0.04)]
    assert ends
    for count in ends:
        effects = estimate(plan, first_blocks(measured, count), metrics=()).primary_effects()
        assert max(effect.half_width for effect in effects) <= 0.04
        assert np.isfinite([effect.high for effect in effects]).all()
