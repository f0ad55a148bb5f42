"""The index of faults names tests that are there."""

from pathlib import Path

import pytest

from tests.faults.index import INDEX


@pytest.mark.parametrize("row", INDEX, ids=lambda row: f"{row.fault}-{row.launcher}")
def test_every_fault_of_the_index_has_its_test(row):
    file, name = row.test.split("::")
    assert f"def {name}(" in (Path(__file__).parents[1] / file).read_text()
