"""The average over machines, the spread between them, and the prediction for another machine."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import t as student

from envmatrix.stats.meta_analysis.random_effects import combine_runs, random_effects


def made_up(chance, machines, spread, noise):
    """Return log ratios and variances of machines with a true average of log 1.1, and the truth for another machine."""
    variances = noise**2 * chance.uniform(0.5, 2.0, machines)
    truths = chance.normal(math.log(1.1), spread, machines + 1)
    return chance.normal(truths[:-1], np.sqrt(variances)), variances, truths[-1]


@pytest.mark.parametrize("machines", [2, 5, 12])
@pytest.mark.parametrize("spread", [0.0, 0.03, 0.1])
def test_average_and_spread_are_those_of_statsmodels(machines, spread):
    meta = pytest.importorskip("statsmodels.stats.meta_analysis")
    logs, variances, _ = made_up(np.random.default_rng(machines), machines, spread, 0.03)
    theirs = meta.combine_effects(logs, variances, method_re="iterated", use_t=True)
    ours = random_effects(logs, variances)
    assert ours.spread**2 == pytest.approx(max(0.0, theirs.tau2), rel=2e-3, abs=1e-8)
    assert math.log(ours.ratio) == pytest.approx(theirs.mean_effect_re, abs=2e-4)
    error = max(theirs.sd_eff_w_re_hksj, theirs.sd_eff_w_re)
    reach = student.ppf(0.975, machines - 1) * error
    assert math.log(ours.high / ours.low) / 2 == pytest.approx(reach, rel=2e-3)


def test_without_noise_the_prediction_is_students():
    logs = np.array([0.05, 0.08, 0.02, 0.11, 0.07])
    low, high = np.log(random_effects(logs, [1e-10] * 5).prediction)
    reach = student.ppf(0.975, 4) * logs.std(ddof=1) * math.sqrt(1 + 1 / 5)
    assert (low, high) == pytest.approx((logs.mean() - reach, logs.mean() + reach), rel=0.02)


@pytest.mark.parametrize(("machines", "spread", "noise"), [(3, 0.05, 0.02), (4, 0.02, 0.03), (12, 0.05, 0.02)])
def test_the_prediction_holds_another_machine_in_95_of_100_cases_and_says_so_itself(machines, spread, noise):
    chance, cases, hits, covered = np.random.default_rng(machines), 300, 0, 0
    for _ in range(cases):
        logs, variances, other = made_up(chance, machines, spread, noise)
        found = random_effects(logs, variances)
        hits += found.prediction[0] <= math.exp(other) <= found.prediction[1]
        covered += found.covered or 0
    assert hits / cases >= 0.912, "three standard errors below 0.95"
    if machines > 3:
        assert 0.912 <= covered / (cases * machines) <= 0.995


def test_runs_that_disagree_make_the_combined_one_less_certain():
    assert combine_runs([0.1, 0.1], [4e-4, 4e-4]) == pytest.approx((0.1, 2e-4))
    mean, variance = combine_runs([0.05, 0.15], [4e-4, 4e-4])
    assert (mean, variance) == pytest.approx((0.1, 2.5e-3)), "(0.1 / 2) ** 2: what the two runs differ by"
