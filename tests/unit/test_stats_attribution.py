"""Attribution, compared with statsmodels and with known effects."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from envmatrix.stats.attribution.contrasts import ContrastFamily, contrast_family, estimate_contrasts
from envmatrix.stats.attribution.main_effects import (
    Cells,
    attribute_gain,
    contrasts,
    cumulative_steps,
    find_cells,
    gains_over_reference,
)
from envmatrix.stats.effects import LEVEL
from envmatrix.stats.measurements import fold_trials
from envmatrix.stats.metrics import THROUGHPUT
from envmatrix.stats.pairing import Views
from tests.synthetic import Machine, make_plan, make_trials
from validation.simulation import attributed

FACTORS = ("openmp", "malloc", "thp")
LEVELS = (("gnu", "intel", "llvm"), ("glibc", "tcmalloc"), ("off", "on"))
TRUTH = {"intel": 0.02, "llvm": -0.04, "tcmalloc": 0.2, "on": 0.05}
TOGETHER = {("intel", "tcmalloc"): -0.06}


def made_cells(noise=0.02, blocks=8, seed=1, copies=0):
    chance = np.random.default_rng(seed)
    cells = tuple(itertools.product(*LEVELS))
    gains = [
        sum(TRUTH.get(level, 0) for level in cell)
        + sum(value for pair, value in TOGETHER.items() if set(pair) <= set(cell))
        for cell in cells
    ]
    weather = np.cumsum(chance.normal(0, 0.1, blocks))
    logs = np.array(gains)[:, None] + weather + chance.normal(0, noise, (len(cells), blocks))
    controls = weather + chance.normal(0, noise, (copies, blocks))
    return Cells(FACTORS, LEVELS, cells, tuple("+".join(cell) for cell in cells), logs, controls)


def least_squares(cells):
    """Return statsmodels' fit of log = cell + block + error to the existing trials."""
    api = pytest.importorskip("statsmodels.api")
    rows, blocks = cells.logs.shape
    logs = np.vstack([cells.logs, cells.copies])
    of_cell = np.repeat(np.vstack([np.eye(rows), *[np.eye(rows)[:1]] * len(cells.copies)]), blocks, axis=0)
    of_block = np.tile(np.eye(blocks)[:, 1:], (len(logs), 1))
    there = np.isfinite(logs).ravel()
    return api.OLS(logs.ravel()[there], np.hstack([of_cell, of_block])[there]).fit()


def weights_of(cells, chosen):
    weights = np.ones(len(cells.cells))
    for factor, options, column in zip(FACTORS, LEVELS, zip(*cells.cells, strict=True), strict=True):
        main = np.array([(level == chosen.get(factor)) - 1.0 * (level == options[0]) for level in column])
        weights *= main if factor in chosen else 1 / len(options)
    return weights


@pytest.mark.parametrize("copies", [0, 1, 2])
def test_main_effects_and_interactions_are_those_of_statsmodels(copies):
    cells = made_cells(copies=copies)
    blocks = cells.logs.shape[1]
    fit = least_squares(cells)
    found = contrasts(cells)
    assert len(found) == 4 + 5
    for contrast in found:
        test = fit.t_test(np.hstack([weights_of(cells, dict(contrast.levels)), np.zeros(blocks - 1)]))
        assert math.log(contrast.estimate.ratio) == pytest.approx(test.effect[0], abs=1e-9)


@pytest.mark.parametrize("copies", [0, 1])
def test_a_contrast_is_one_number_a_block_with_its_own_noise(copies):
    cells = made_cells(copies=copies)
    found = contrasts(cells)
    widths = []
    for contrast in found:
        each = weights_of(cells, dict(contrast.levels)) @ cells.gains.with_all_trials
        low, high = np.log([contrast.estimate.low, contrast.estimate.high])
        widths.append((high - low) / 2 / stats.sem(each))
        assert (low + high) / 2 == pytest.approx(each.mean())
        assert (contrast.p < 0.05) == (not low <= 0 <= high)
    assert widths == pytest.approx([widths[0]] * len(found))
    blocks = cells.logs.shape[1]
    assert stats.t.ppf(1 - (1 - LEVEL) / 2, blocks - 1) < widths[0]
    assert widths[0] <= stats.t.ppf(1 - (1 - LEVEL) / 2 / len(found), blocks - 1) * (1 + 1e-12)


def test_a_noisy_level_widens_its_own_effects_alone():
    calm, noisy = made_cells(), made_cells()
    marked = [index for index, cell in enumerate(noisy.cells) if "llvm" in cell]
    noisy.logs[marked] += np.random.default_rng(3).normal(0, 0.2, (len(marked), 8))
    assert len(noisy.gains.every) == 1, "no trial is taken for a slow one, which would widen what it is in as well"
    for before, after in zip(contrasts(calm), contrasts(noisy), strict=True):
        first, second = (math.log(item.estimate.high / item.estimate.low) for item in (before, after))
        if before.levels == (("openmp", "intel"),):
            assert second == pytest.approx(first)
        if "llvm" in before.name:
            assert second > 2 * first


@pytest.mark.parametrize("noisy", [0.0, 0.137])
def test_of_identical_cells_no_share_and_no_effect_is_found_in_19_of_20_runs(noisy):
    for figure in attributed("quiet", noisy, 10, 600, np.random.default_rng(1)):
        assert figure.value < 0.06, figure.line()


def test_with_trials_missing_true_effects_are_inside_their_intervals_and_these_are_no_wider_than_needed():
    errors, widths, missed = [], [], 0
    truth = TRUTH["tcmalloc"] + TOGETHER["intel", "tcmalloc"] / 3
    for seed in range(200):
        cells = made_cells(seed=seed, copies=1)
        cells.logs[[1, 1, 6], [1, 2, 5]] = np.nan
        cells.copies[0, [0, 3, 4]] = np.nan
        found = next(item for item in contrasts(cells) if item.levels == (("malloc", "tcmalloc"),)).estimate
        missed += not math.log(found.low) < truth < math.log(found.high)
        errors.append(math.log(found.ratio) - truth)
        widths.append(math.log(found.high / found.low) / 2)
    weights = np.array([weights_of(cells, dict(item.levels)) for item in contrasts(cells)])
    said = np.sqrt(np.mean(np.square(widths))) / contrast_family(weights, 2).critical(6)
    assert missed <= 4
    assert said == pytest.approx(np.std(errors), rel=0.2)


def test_where_too_many_contrasts_are_to_be_drawn_bonferroni_is_used():
    family = ContrastFamily(400)
    assert family.critical(10) == pytest.approx(stats.t.ppf(1 - (1 - LEVEL) / 2 / 400, 9))
    assert family.p(3.0, 10) == 1.0


def test_a_control_makes_effects_more_exact():
    alone, both = contrasts(made_cells()), contrasts(made_cells(copies=1))
    width = [math.log(found[0].estimate.high / found[0].estimate.low) for found in (alone, both)]
    assert width[1] < width[0]


@pytest.mark.parametrize("copies", [0, 1])
def test_shares_multiply_up_to_the_whole_gain_of_the_best(copies):
    found = attribute_gain(made_cells(copies=copies), "cnn", "local")
    assert found.best == "gnu+tcmalloc+on"
    assert math.prod(share.gain.ratio for share in found.shares) == pytest.approx(found.total.ratio)
    assert sum(share.part for share in found.shares) == pytest.approx(1.0)
    assert [share.factor for share in found.shares] == ["malloc", "thp"]


def test_an_interaction_is_split_evenly_between_the_two_that_make_it():
    cells = Cells(("a", "b"), (("0", "1"), ("0", "1")), (("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")),
                  ("base", "b", "a", "both"), np.log([[1.0] * 4, [1.1] * 4, [1.2] * 4, [2.0] * 4]))  # fmt: skip
    extra = math.log(2.0 / (1.1 * 1.2))
    shares = {share.factor: math.log(share.gain.ratio) for share in attribute_gain(cells, "", "").shares}
    assert shares == pytest.approx({"a": math.log(1.2) + extra / 2, "b": math.log(1.1) + extra / 2})


def test_true_effects_are_inside_their_intervals_in_19_of_20_runs():
    missed = 0
    for seed in range(200):
        for found in contrasts(made_cells(seed=seed)):
            if found.levels == (("malloc", "tcmalloc"),):
                truth = TRUTH["tcmalloc"] + TOGETHER["intel", "tcmalloc"] / 3
                missed += not math.log(found.estimate.low) < truth < math.log(found.estimate.high)
    assert missed <= 10


def test_contrasts_of_few_blocks_cover_together():
    chance = np.random.default_rng(3)
    steps = np.array([[0.0, 1, 0, 0], [0, -1, 1, 0], [0, 0, -1, 1]])
    family, missed = contrast_family(steps, 1), 0
    for _ in range(400):
        noise = chance.normal(0, 0.03, (4, 7))
        found = estimate_contrasts(Views((noise - noise[0],)), steps, family, 2)
        missed += any(not one.low <= 1 <= one.high for one in found)
    assert missed / 400 < 0.06


def test_only_a_full_factorial_is_one():
    names = ("tc", "intel", "both")
    plan = make_plan(names)
    chosen = (("glibc", "gnu"), ("tc", "gnu"), ("glibc", "intel"), ("tc", "intel"))
    levels = {
        name: {"malloc": malloc, "openmp": openmp, "torch": "2.13"}
        for name, (malloc, openmp) in zip(("baseline", *names), chosen, strict=True)
    }
    measured = fold_trials(plan, make_trials(plan, Machine({"tc": 1.2, "both": 1.3}), 6))
    cells = find_cells(plan.arms, levels, measured, THROUGHPUT)
    assert (cells.factors, cells.logs.shape) == (("malloc", "openmp"), (4, 6))
    assert attribute_gain(cells, "cnn", "local").best == "both"
    assert find_cells(plan.arms[:-1], levels, measured, THROUGHPUT) is None
    assert find_cells(plan.arms, {}, measured, THROUGHPUT) is None
    other = {**levels, "baseline": {"allocator": "glibc", "openmp": "gnu", "torch": "2.13"}}
    two = [arm for arm in plan.arms if arm.environment in ("baseline", "both")]
    assert find_cells(two, other, measured, THROUGHPUT) is None, "two matrices may call their factors differently"


def test_the_steps_of_a_cumulative_design_multiply_up_to_the_whole():
    chance = np.random.default_rng(1)
    logs = np.log([[1.0], [1.1], [1.32], [1.3]]) + chance.normal(0, 0.01, (4, 9))
    logs[2, 4] = np.nan
    steps = cumulative_steps(("baseline", "a", "b", "c"), gains_over_reference(logs, chance.normal(0, 0.01, (1, 9))))
    assert math.prod(step.added.ratio for step in steps) == pytest.approx(steps[-1].so_far.ratio)
    assert [step.before for step in steps] == ["baseline", "a", "b"]
    assert cumulative_steps(("baseline", "a"), Views((np.full((2, 3), np.nan),))) == ()
