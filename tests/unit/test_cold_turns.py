"""Interleaved turns that begin cold: what a process measures, and when a report warns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bench.early_and_late_steps import first_half_extra_s, first_to_last_step_ratio
from envmatrix.report.report_data import summarise_measurements
from envmatrix.report.warning import WarningKind
from envmatrix.stats.measurements import TURN_START, fold_trials
from envmatrix.stats.quality.cold_turns import cold_turns_by_workload
from tests.synthetic import Machine, make_plan, make_run, make_trials

PLAN = make_plan(("fast",))


@pytest.mark.parametrize(
    ("turns", "found"),
    [
        ([([], [11, 9, 10]), ([], [12, 9, 8]), ([], [14, 9, 10])], 1.2),
        ([([20], [12, 9, 10]), ([20], [7]), ([20], [12, 10])], 1.2),
        ([([20, 13], [14, 10]), ([20, 11], [14, 10])], 1.2),
        ([([20, 10], [14, 10]), ([20, 10], [14, 10])], 1.0),
        ([([], [10, 10])], None),
        ([([9], [10]), ([9], [11]), ([9], [12])], None),
        ([([], [10, 0]), ([], [10, 0])], None),
        ([], None),
    ],
)
def test_a_process_says_how_its_turns_begin_unless_the_last_step_set_apart_was_warm(turns, found):
    assert first_to_last_step_ratio(turns) == found


def measured(center, spread=0.05, blocks=6):
    """Return measurements with such cold turn starts; their logs differ by ``spread``."""
    plain = fold_trials(PLAN, make_trials(PLAN, Machine({}), blocks))
    shape = plain.table[TURN_START].shape
    assert np.isnan(plain.table[TURN_START]).all(), "these took no turns"
    logs = np.log(center) + spread * np.resize([1.0, -1.0], shape)
    return replace(plain, table={**plain.table, TURN_START: np.exp(logs)})


@pytest.mark.parametrize(
    ("center", "spread", "told"),
    [(1.1, 0.05, True), (1.1, 0.5, False), (1.01, 0.001, False), (0.9, 0.01, False), (1.03, 0.005, True)],
)
def test_a_report_warns_of_cold_turns_where_a_slower_first_step_is_sure(center, spread, told):
    run = make_run(PLAN, design={"schedule": "turns", "turn_apart": 2})
    found = [
        one
        for one in summarise_measurements(run, measured(center, spread)).cautions
        if one.kind == WarningKind.COLD_TURNS
    ]
    assert len(found) == told
    for one in found:
        assert one.subject == "cnn"
        assert f"takes {center:.2f} (" in one.text
        assert "`turn_apart: 4`" in one.remedy


def test_nothing_is_said_of_fewer_than_six_trials_nor_where_no_turns_were_taken():
    few = measured(1.5)
    values = np.full(few.table[TURN_START].shape, np.nan)
    assert cold_turns_by_workload(PLAN, replace(few, table={**few.table, TURN_START: values})) == {}
    values.flat[:5] = [1.5, 1.49, 1.51, 1.5, 1.52]
    assert cold_turns_by_workload(PLAN, replace(few, table={**few.table, TURN_START: values})) == {}
    values.flat[5] = 1.5
    [cold] = cold_turns_by_workload(PLAN, replace(few, table={**few.table, TURN_START: values})).values()
    assert cold.low < 1.5 < cold.high


@pytest.mark.parametrize(
    ("steps_ms", "extra_s"),
    [
        ([10] * 8, 0.0),
        ([30, 20, 10, 10, 10, 10, 10, 10], 0.03),
        ([10, 10, 10, 10, 12, 12, 12, 12, 12], -0.008),
        ([30, 20, 10, 10, 10, 10, 10], None),  # too few
    ],
)
def test_the_first_half_of_a_trial_is_compared_with_the_second(steps_ms, extra_s):
    found = first_half_extra_s([round(1e6 * ms) for ms in steps_ms])
    assert found == (None if extra_s is None else pytest.approx(extra_s))
