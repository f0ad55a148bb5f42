"""Contrasts: their error is that of one number per block, and a family always keeps its full size."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from envmatrix.stats.attribution.contrasts import ContrastFamily, contrast_family, estimate_contrasts
from envmatrix.stats.effects import LEVEL
from envmatrix.stats.inference.maxt import critical_value
from envmatrix.stats.pairing import Views

#: Three cells, each against the first.
AGAINST_THE_FIRST = np.hstack([-np.ones((3, 1)), np.eye(3)])
NOISE = np.random.default_rng(1).normal(0, 0.02, (4, 9))


def test_an_interval_is_the_critical_value_in_standard_errors_of_the_mean():
    family = contrast_family(AGAINST_THE_FIRST, 1)
    for found, each in zip(
        estimate_contrasts(Views((NOISE,)), AGAINST_THE_FIRST, family, 2), AGAINST_THE_FIRST @ NOISE, strict=True
    ):
        reach = math.log(found.high / found.low) / 2
        assert reach == pytest.approx(family.critical(9) * stats.sem(each))
        assert found.p == family.p(each.mean() / stats.sem(each), 9)


@pytest.mark.parametrize("copies", [1, 4])
def test_cells_against_the_first_are_the_family_of_the_table(copies):
    family = contrast_family(AGAINST_THE_FIRST, copies)
    assert np.array(family.loads) @ np.array(family.loads).T == pytest.approx(np.eye(3) + 1 / copies)
    assert family.critical(8) == pytest.approx(critical_value(8, 3, copies, level=LEVEL, own=True), rel=0.02)


def test_contrasts_that_are_not_told_count_too():
    family = contrast_family(AGAINST_THE_FIRST, 1, members=40)
    assert family.critical(10) == pytest.approx(stats.t.ppf(1 - (1 - LEVEL) / 80, 9))


def test_many_blocks_are_not_drawn():
    drawn, many = contrast_family(AGAINST_THE_FIRST, 1), 400
    assert drawn.critical(many) == ContrastFamily(3).critical(many)
    assert drawn.critical(10) < ContrastFamily(3).critical(10)


def test_no_p_is_nothing():
    assert 0 < contrast_family(AGAINST_THE_FIRST, 1).p(1e9, 10) < 0.001


def test_without_noise_and_without_a_difference_nothing_is_claimed():
    (same, *_) = estimate_contrasts(
        Views((np.zeros((4, 9)),)), AGAINST_THE_FIRST, contrast_family(AGAINST_THE_FIRST, 1), 2
    )
    assert (same.ratio, same.low, same.high) == (1.0, 1.0, 1.0)
    assert same.p > 0.05


def test_a_row_that_lacks_pairs_takes_the_interval_of_its_own_contrasts_alone():
    gains = NOISE.copy()
    gains[3, 2:] = np.nan
    found = estimate_contrasts(Views((gains,)), AGAINST_THE_FIRST, contrast_family(AGAINST_THE_FIRST, 1), 6)
    assert [item.low is None for item in found] == [False, False, True]
    assert found[2].ratio == pytest.approx(math.exp(gains[3, :2].mean() - gains[0].mean()))
