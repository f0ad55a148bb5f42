"""Moderated variances: one more degree of freedom, and narrower intervals that still cover for unequal noise."""

import numpy as np
import pytest

from envmatrix.stats.effects import LEVEL
from envmatrix.stats.inference.maxt import LEAST_UNITS, critical_value, is_moderated, moderated, moderated_errors
from validation.simulated import absolute_t, over_two_copies

RUNS = 20_000


def largest(spreads, blocks, seed=1):
    """Return max |t| of runs without any difference; ``spreads`` are noise levels relative to the reference's."""
    noise = np.random.default_rng(seed).standard_normal((RUNS, len(spreads) + 2, blocks))
    noise[:, 2:] *= np.array(spreads)[None, :, None]
    return absolute_t(over_two_copies(noise)).max(axis=1)


@pytest.mark.parametrize(("blocks", "comparisons"), [(6, 2), (7, 8), (12, 3)])
def test_critical_values_are_those_of_simulated_experiments(blocks, comparisons):
    errs = (largest([1.0] * comparisons, blocks) > critical_value(blocks, comparisons, 2)).mean()
    assert errs == pytest.approx(0.05, abs=0.005)


@pytest.mark.parametrize("blocks", [6, 7, 10])
@pytest.mark.parametrize(
    "spreads",
    [(10,), (10, 1, 1, 1, 1, 1, 1, 1), (10,) * 4 + (1,) * 4, (3,) * 6 + (1,) * 6, (0.1,) * 8, (10,) * 11 + (1,)],
)
def test_however_unequal_the_noises_no_more_is_called_different_than_is_kept_back_for(blocks, spreads):
    assert (largest(spreads, blocks) > critical_value(blocks, len(spreads), 2, level=LEVEL)).mean() < 0.036


def test_a_comparison_on_its_own_or_of_few_blocks_borrows_nothing():
    assert not is_moderated(40, 1)
    assert not is_moderated(LEAST_UNITS - 1, 8)
    assert critical_value(5, 8, 2) == critical_value(5, 8, 2, own=True)
    assert critical_value(7, 1, 2) == critical_value(7, 1, 2, own=True)


def test_intervals_of_few_blocks_are_as_much_narrower_as_the_docs_say():
    reach = {
        (blocks, own): critical_value(blocks, 8, 2, level=LEVEL, own=own)
        for blocks in (6, 7, 8, 12, 40)
        for own in (True, False)
    }
    narrower = {blocks: 1 - reach[blocks, False] / reach[blocks, True] for blocks, _ in reach}
    assert narrower[6] == pytest.approx(0.20, abs=0.01)
    assert narrower[7] == pytest.approx(0.15, abs=0.01)
    assert narrower[8] == pytest.approx(0.11, abs=0.01)
    assert narrower[12] == pytest.approx(0.04, abs=0.01)
    assert narrower[40] == pytest.approx(0.0, abs=0.01)


def test_one_environment_whose_processes_differ_tenfold_widens_nobody_elses_interval():
    variances = np.array([100.0] + [1.0] * 7)
    assert moderated(variances, 7)[0] == pytest.approx((4 + 600) / 7)
    reach = np.sqrt(moderated(variances, 7)[1:]) * critical_value(7, 8, 2, level=LEVEL)
    assert reach == pytest.approx(critical_value(7, 8, 2, level=LEVEL, own=True), rel=0.03)


def test_nothing_is_borrowed_where_a_comparison_is_missing_or_has_too_few_blocks():
    error, units = np.array([0.01, 0.02, np.nan]), np.array([7, 7, 1])
    found, own = moderated_errors(error, units, 2)
    assert found[:2] == pytest.approx(np.sqrt((0.00025 * 7 + 6 * 7 * error[:2] ** 2) / 7 / 7))
    assert (np.isnan(found[2]), own.tolist()) == (True, [False, False, True])
    found, own = moderated_errors(error, units, 3)
    assert (found[:2].tolist(), own.all()) == ([0.01, 0.02], True)


def test_one_with_few_independent_blocks_lends_and_does_not_borrow():
    error = np.array([0.01, 0.02])
    found, own = moderated_errors(error, np.array([7, 5]), 2)
    assert own.tolist() == [False, True]
    assert found[0] == pytest.approx(np.sqrt(((7 * 0.01**2 + 5 * 0.02**2) / 2 + 6 * 7 * 0.01**2) / 7 / 7))
    assert found[1] == 0.02
