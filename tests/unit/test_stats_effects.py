"""Effects compared with known values; their invariances and coverage."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from envmatrix.matrix.model import Workload
from envmatrix.plan import Arm
from envmatrix.results import Trial
from envmatrix.stats.effect_estimation import estimate
from envmatrix.stats.effects import LEVEL, Flag, draw_conclusion, level_of_one_sided_bounds, verdict_of
from envmatrix.stats.inference.maxt import adjusted_p, critical_value, moderated_errors, null_maxima
from envmatrix.stats.measurements import fold_trials
from envmatrix.stats.metrics import MEMORY, THROUGHPUT
from envmatrix.stats.pairing import log_ratios, summarise_pairs
from envmatrix.stats.primary_metric import primary_metric
from envmatrix.stats.stopping.precision import is_precise_enough, narrow_enough
from envmatrix.trials.user_program.invocation import metric_arguments
from tests.synthetic import Machine, make_plan, make_trials
from validation.simulated_limits import NOISE, Runs, resumed, stopped

RATES = st.lists(st.tuples(*[st.floats(1.0, 1e6)] * 2), min_size=6, max_size=12)


def trials_of(values: dict[str, list[float | None]], **metric: str) -> list[Trial]:
    name = metric.get("metric", "samples_per_s")
    return [
        Trial(f"b{block}", block, 0, environment, "cnn", "local", "ok" if value is not None else "failed",
              document={"metrics": {name: value}} if value is not None else None)
        for environment, column in values.items()
        for block, value in enumerate(column)
    ]  # fmt: skip


def analyse(values: dict[str, list[float | None]], metric: str = "samples_per_s", **plan):
    made = make_plan(tuple(name for name in values if name not in ("baseline", "control")), **plan)
    return estimate(made, fold_trials(made, trials_of(values, metric=metric)), metrics=(metric,))


def effect_of(values, environment="fast", metric="samples_per_s", **plan):
    found = analyse(values, metric, **plan).find(f"{environment}:cnn@local", metric)
    assert found is not None
    return found


@given(RATES)
@settings(max_examples=50, deadline=None)
def test_a_single_comparison_without_slow_trials_is_students_paired_t_interval_on_log_ratios(rates):
    base, fast = ([pair[i] for pair in rates] for i in (0, 1))
    effect = effect_of({"baseline": base, "fast": fast})
    difference = np.log(fast) - np.log(base)
    expected = scipy_stats.ttest_1samp(difference, 0.0)
    interval = expected.confidence_interval(LEVEL)
    assert effect.ratio == pytest.approx(math.exp(difference.mean()), rel=1e-9)
    if difference.std(ddof=1) > 1e-9 and effect.usual is None:
        assert effect.low == pytest.approx(math.exp(interval.low), rel=1e-6)
        assert effect.high == pytest.approx(math.exp(interval.high), rel=1e-6)
        assert effect.p == pytest.approx(min(1, expected.pvalue * 0.05 / (1 - LEVEL)), rel=1e-6, abs=1e-12)


@given(RATES)
@settings(max_examples=50, deadline=None)
def test_swapping_environment_and_baseline_inverts_ratio_and_interval(rates):
    one, other = ([pair[i] for pair in rates] for i in (0, 1))
    there = effect_of({"baseline": one, "fast": other})
    back = effect_of({"baseline": other, "fast": one})
    assert there.ratio == pytest.approx(1 / back.ratio)
    assert (there.low, there.high) == pytest.approx((1 / back.high, 1 / back.low))
    assert there.p == pytest.approx(back.p)


@given(RATES, st.floats(1e-3, 1e3))
@settings(max_examples=30, deadline=None)
def test_the_unit_of_the_metric_does_not_matter(rates, factor):
    one, other = ([pair[i] for pair in rates] for i in (0, 1))
    plain = effect_of({"baseline": one, "fast": other})
    scaled = effect_of({"baseline": [v * factor for v in one], "fast": [v * factor for v in other]})
    assert (scaled.ratio, scaled.low, scaled.high) == pytest.approx((plain.ratio, plain.low, plain.high))


@given(RATES, st.randoms())
@settings(max_examples=30, deadline=None)
def test_the_order_of_blocks_does_not_matter(rates, chance):
    shuffled = chance.sample(rates, len(rates))
    effects = [
        effect_of({"baseline": [r[0] for r in rows], "fast": [r[1] for r in rows]}) for rows in (rates, shuffled)
    ]
    assert (effects[0].low, effects[0].high) == pytest.approx((effects[1].low, effects[1].high))


def test_the_control_is_a_second_copy_of_the_reference_and_its_own_comparison_is_with_the_first_alone():
    values = {"baseline": [100.0] * 6, "control": [121.0] * 6, "fast": [121.0] * 6}
    analysis = analyse(values)
    assert analysis.find("fast:cnn@local").ratio == pytest.approx(1.1)
    assert analysis.find("control:cnn@local").ratio == pytest.approx(1.21)


def test_a_block_whose_control_failed_is_compared_with_the_baseline_alone():
    values = {"baseline": [100.0] * 6, "control": [None] * 6, "fast": [121.0] * 6}
    effect = analyse(values).find("fast:cnn@local")
    assert (effect.ratio, effect.blocks, effect.incomplete) == (pytest.approx(1.21), 6, 0)


def test_an_arm_that_was_not_tried_in_later_blocks_has_no_incomplete_ones():
    effect = effect_of({"baseline": [100.0] * 9, "fast": [121.0] * 6})
    assert (effect.blocks, effect.incomplete) == (6, 0)


def test_a_factor_that_a_whole_block_shares_cancels():
    chance = np.random.default_rng(3)
    base, fast = chance.uniform(90, 110, 8), chance.uniform(100, 120, 8)
    weather = chance.uniform(0.2, 5.0, 8)
    plain = effect_of({"baseline": list(base), "fast": list(fast)})
    rough = effect_of({"baseline": list(base * weather), "fast": list(fast * weather)})
    assert (rough.low, rough.high) == pytest.approx((plain.low, plain.high))


def test_less_memory_is_a_ratio_above_one():
    values = {"baseline": [200.0, 201, 202, 200, 201, 203], "fast": [100.0, 101, 100, 102, 100, 101]}
    assert effect_of(values, metric=MEMORY.name).ratio == pytest.approx(2.0, rel=0.02)


def test_memory_is_not_judged_as_the_primary_metric_of_the_benchmark():
    analysis = analyse({"baseline": [100.0] * 6, "fast": [120.0] * 6}, metric="peak_rss_bytes")
    assert {effect.metric for effect in analysis.primary_effects()} == {"samples_per_s"}
    assert all(effect.ratio is None for effect in analysis.primary_effects())


def test_interval_and_p_of_a_family_are_by_moderated_errors_and_the_own_error_is_what_is_told():
    chance = np.random.default_rng(5)
    numbers = {name: chance.lognormal(5.0, 0.05, 8).tolist() for name in ("baseline", "control", "a", "b", "c")}
    effects = [effect for effect in analyse(numbers).primary_effects() if not effect.is_control]
    shared, _ = moderated_errors(np.array([effect.error for effect in effects]), np.array([8, 8, 8]), 3)
    for effect, error in zip(effects, shared, strict=True):
        reach, mean = critical_value(8, 3, 2, level=LEVEL) * error, math.log(effect.ratio)
        assert (effect.low, effect.high) == pytest.approx((math.exp(mean - reach), math.exp(mean + reach)))
        assert effect.p == pytest.approx(min(1.0, adjusted_p(mean / error, 8, 3, 2) * 0.05 / (1 - LEVEL)))
        assert effect.error != pytest.approx(error)


@pytest.mark.parametrize(("blocks", "comparisons", "copies"), [(6, 3, 1), (10, 12, 2)])
def test_critical_values_are_those_of_simulated_experiments(blocks, comparisons, copies):
    chance = np.random.default_rng(7)
    errors = chance.standard_normal((40_000, comparisons + copies, blocks))
    difference = errors[:, copies:] - errors[:, :copies].mean(1, keepdims=True)
    t = np.abs(difference.mean(-1)) / (difference.std(-1, ddof=1) / math.sqrt(blocks))
    alarms = (t.max(1) > critical_value(blocks, comparisons, copies, own=True)).mean()
    assert alarms == pytest.approx(0.05, abs=0.005)


def test_more_comparisons_never_narrow_an_interval():
    values = [critical_value(8, comparisons) for comparisons in (2, 3, 8, 30)]
    assert values == sorted(values)
    assert values[-1] < scipy_stats.t.ppf(1 - 0.025 / 30, 7), "max-t is narrower than Bonferroni"


@given(st.floats(0, 50), st.integers(1, 6), st.integers(2, 12))
@settings(max_examples=60, deadline=None)
def test_interval_and_p_value_agree(t, comparisons, blocks):
    beyond = t > critical_value(blocks, comparisons)
    assert beyond == (adjusted_p(t, blocks, comparisons) < 0.05)


def test_the_same_question_always_gets_the_same_answer():
    first = critical_value(9, 4)
    null_maxima.cache_clear()
    assert critical_value(9, 4) == first


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.05, 1.2, "faster"), (0.7, 0.9, "slower"), (0.98, 1.02, "same"), (0.9, 1.1, "undecided"),
        (1.005, 1.02, "same"), (1.005, 1.2, "faster"), (1.0, 1.2, "undecided"), (1 / 1.03, 1.03, "same"),
    ],
)  # fmt: skip
def test_verdicts_follow_interval_and_margin(low, high, verdict):
    assert verdict_of(low, high, 0.03) == verdict


def test_an_arm_is_the_same_by_two_one_sided_tests():
    reach, near = (critical_value(8, 3, 2, level=level) for level in (LEVEL, level_of_one_sided_bounds(LEVEL)))
    error = math.log1p(0.03) / math.sqrt(reach * near)
    found = draw_conclusion(0.0, error, 8, 3, 2, LEVEL, 0.03)
    assert (found.low < 1 / 1.03 < found.one_sided[0], found.verdict) == (True, "same")
    assert found.one_sided == pytest.approx((math.exp(-near * error), math.exp(near * error)))
    assert draw_conclusion(0.0, error * 1.1, 8, 3, 2, LEVEL, 0.03).verdict == "undecided"


@pytest.mark.parametrize("noise", ["normal", "heavy tails", "skewed"])
@pytest.mark.parametrize("environments", [1, 4])
def test_answers_at_their_limits_err_in_at_most_5_percent(noise, environments):
    runs = Runs(NOISE[noise], environments, 40, 4000, np.random.default_rng(3))
    asked = [f"false {answer}" for answer in ("pass", "failure", "same")]
    for errs in (*(runs.errs(blocks) for blocks in (6, 16)), stopped(runs, 0.9), resumed(runs, 10)):
        assert max(errs[name].mean() for name in asked) < 0.05
        assert errs["false pass by the interval"].mean() < errs["false pass"].mean()


def test_below_the_minimum_there_is_a_ratio_but_no_claim_and_it_says_what_is_missing():
    effect = effect_of({"baseline": [100.0, 101, 99], "fast": [200.0, 201, 202]}, min_blocks=6)
    assert effect.ratio == pytest.approx(2.0, rel=0.02)
    assert (effect.low, effect.high, effect.p, effect.verdict) == (None, None, None, "undecided")
    assert (effect.missing, Flag.TOO_FEW_BLOCKS in effect.flags) == (3, True)


def test_a_block_that_lacks_one_of_the_two_is_left_out_for_that_pair_only():
    values = {
        "baseline": [100.0, 100, 100, None, 100, 100, 101, 102],
        "fast": [110.0, 111, 112, 113, 114, None, 113, 112],
        "calm": [100.0, 101, 100, 99, 100, 101, 100, 102],
    }
    analysis = analyse(values)
    fast, calm = analysis.find("fast:cnn@local"), analysis.find("calm:cnn@local")
    assert (fast.blocks, fast.incomplete) == (6, 2)
    assert (calm.blocks, calm.incomplete) == (7, 1)
    assert {Flag.FAILED, Flag.INCOMPLETE} <= set(fast.flags)


def test_an_outlier_is_kept_and_widens_the_interval():
    chance = np.random.default_rng(1)
    base, fast = list(chance.normal(100, 1, 10)), list(chance.normal(105, 1, 10))
    narrow = effect_of({"baseline": base, "fast": fast})
    wide = effect_of({"baseline": base, "fast": [20.0, *fast[1:]]})
    assert wide.blocks == narrow.blocks
    assert wide.half_width > 5 * narrow.half_width


def test_identical_numbers_are_the_same_and_a_constant_factor_is_certain():
    same = effect_of({"baseline": [100.0] * 6, "fast": [100.0] * 6})
    sure = effect_of({"baseline": [100.0] * 6, "fast": [200.0] * 6})
    assert (same.ratio, same.low, same.high, same.p, same.verdict) == (1.0, 1.0, 1.0, 1.0, "same")
    assert (sure.verdict, sure.p < 0.001) == ("faster", True)


@pytest.mark.parametrize("value", [0.0, -5.0, float("nan"), float("inf"), True, "fast", None, 10**400, [1], {}])
def test_a_number_that_has_no_logarithm_is_no_number(value):
    effect = effect_of({"baseline": [100.0] * 7, "fast": [100.0, 101, 102, 100, 101, 100, value]})
    assert effect.blocks == 6


def test_nothing_measured_gives_effects_without_numbers():
    plan = make_plan(("fast",))
    effects = estimate(plan, fold_trials(plan, [])).effects
    assert {(e.ratio, e.low, e.p, e.verdict, e.blocks) for e in effects} == {(None, None, None, "undecided", 0)}


def test_a_plan_whose_reference_is_not_among_its_arms_has_no_effects():
    arm = Arm("a:cnn@local", "a", "a", "cnn", "local", "gone:cnn@local")
    plan = make_plan((), arms=(arm,))
    assert estimate(plan, fold_trials(plan, trials_of({"a": [1.0] * 8}))).effects == ()


@pytest.mark.parametrize(
    ("workload", "better"),
    [
        ({"command": ["a"], "metric": None}, "lower"),
        ({"command": ["a"], "metric": {"regex": "(.)", "better": "lower"}}, "lower"),
        ({"command": ["a"], "metric": {"regex": "(.)", "better": "higher"}}, "higher"),
        ({"command": ["a"], "metric": {"wall": True, "better": "higher"}}, "lower"),
        ({"options": {}}, "higher"),
    ],
)
def test_a_command_is_judged_in_the_direction_it_names(workload, better):
    workload = Workload.model_validate({"name": "w", **workload})
    metric = primary_metric(workload)
    assert metric.better == better
    assert metric.name == ("value" if workload.command else "samples_per_s")
    if workload.command:
        assert f"--better={better}" in metric_arguments(workload)


def test_steps_of_a_program_are_a_rate_and_shown_as_one():
    workload = Workload.model_validate({"name": "w", "command": ["a"], "metric": {"steps": "^step", "warmup": 2}})
    metric = primary_metric(workload)
    assert (metric.better, metric.unit, metric.show(1.913012)) == ("higher", "steps/s", "1.913")
    assert metric_arguments(workload) == ["--metric-steps=^step", "--metric-warmup=2", "--metric-name=value"]


def test_each_engine_has_its_own_reference_and_its_baseline_shows_the_engines_cost():
    plan = make_plan(("fast",), engines=("local", "docker"))
    measured = fold_trials(plan, make_trials(plan, Machine({"fast": 1.2}, noise=0.01), 8))
    analysis = estimate(plan, measured, metrics=())
    assert analysis.find("fast:cnn@docker").reference == "baseline:cnn@docker"
    assert analysis.find("baseline:cnn@docker").reference == "baseline:cnn@local"
    assert analysis.find("baseline:cnn@local") is None


def test_all_intervals_of_a_run_cover_the_truth_together_in_95_of_100_runs():
    truth = {"a": 1.1, "b": 0.95, "c": 1.0, "d": 1.3}
    plan = make_plan(tuple(truth))
    chance = np.random.default_rng(5)
    missed, controls, runs = 0, 0, 400
    logs = np.log([1.0, 1.0, *truth.values()])
    for _ in range(runs):
        drift = np.cumsum(chance.normal(0, 0.05, 8))
        table = np.exp(logs[:, None] + drift + chance.normal(0, 0.04, (6, 8)))
        values = dict(zip(("baseline", "control", *truth), table.tolist(), strict=True))
        effects = estimate(plan, fold_trials(plan, trials_of(values)), metrics=()).effects
        missed += any(not e.low <= truth[e.environment] <= e.high for e in effects if not e.is_control)
        controls += any(not e.low <= 1.0 <= e.high for e in effects if e.is_control)
    assert scipy_stats.binomtest(controls, runs, 1 - LEVEL).pvalue > 0.001
    assert scipy_stats.binomtest(missed, runs, 1 - LEVEL).pvalue > 0.001, f"{missed} of {runs} runs missed"


def test_narrow_enough_waits_for_the_widest_interval_and_not_for_arms_that_never_work():
    plan = make_plan(("good", "broken"))
    machine = Machine({}, noise=0.01, outcome={"broken": "failed"})
    few = estimate(plan, fold_trials(plan, make_trials(plan, machine, 3)), metrics=())
    many = estimate(plan, fold_trials(plan, make_trials(plan, machine, 12)), metrics=())
    assert not narrow_enough(few, 0.5)
    assert narrow_enough(many, 0.03)
    assert not narrow_enough(many, max(e.half_width for e in many.effects if e.low) * 0.99)
    assert not narrow_enough(replace(many, effects=()), 0.03)


def test_one_lucky_block_does_not_end_a_run():
    calm = [100.0, 101, 99, 100, 101, 99, 100, 101, 99, 100]
    values = {"baseline": calm, "control": calm, "fast": [100.0, 101, 99, 100, 101, 99, 100, 120, 99, 100]}
    plan = make_plan(("fast",))
    ends = [
        is_precise_enough(plan, fold_trials(plan, [t for t in trials_of(values) if t.block < blocks]), 0.03)
        for blocks in range(1, 11)
    ]
    assert ends == [False] * 10
    steady = {**values, "fast": calm}
    assert is_precise_enough(plan, fold_trials(plan, trials_of(steady)), 0.03)


def test_log_ratios_follow_the_direction_of_the_metric():
    arms, base = np.array([[2.0, 4.0]]), np.array([1.0, 2.0])
    assert log_ratios(arms, base, THROUGHPUT) == pytest.approx(np.log([[2, 2]]))
    assert log_ratios(arms, base, MEMORY) == pytest.approx(-np.log([[2, 2]]))
    assert np.isnan(summarise_pairs(np.full((1, 4), np.nan)).mean).all()
