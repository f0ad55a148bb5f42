"""The index of faults: its tests exist, and every fault, engine and launcher has a row or a reason."""

from pathlib import Path

import pytest

from tests.faults.index import FAULTS, INDEX, REASONS


@pytest.mark.parametrize("row", INDEX, ids=lambda row: f"{row.fault}-{row.launcher}")
def test_every_fault_of_the_index_has_its_test(row):
    file, name = row.test.split("::")
    assert f"def {name}(" in (Path(__file__).parents[1] / file).read_text()


@pytest.mark.parametrize("launcher", ["here", "slurm"])
@pytest.mark.parametrize("engine", ["local", "docker", "apptainer"])
@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_has_a_row_or_a_reason_with_every_engine_and_launcher(fault, engine, launcher):
    asked = [row for row in INDEX if row.fault in FAULTS[fault]]
    rows = [row.test for row in asked if engine in row.engines and launcher == row.launcher]
    why = [
        reason.why
        for reason in REASONS
        if reason.faults in ("", fault) and engine in reason.engines and launcher in reason.launcher
    ]
    assert rows or why


def test_every_row_of_a_fault_that_all_are_asked_about_is_in_the_index():
    assert {name for names in FAULTS.values() for name in names} <= {row.fault for row in INDEX}
