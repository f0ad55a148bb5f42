"""The page covered.md is generated from the library's levels, and the state of each row is right."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS))

import covered  # noqa: E402


def test_the_committed_page_is_the_one_that_the_library_makes() -> None:
    assert (DOCS / "covered.md").read_text() == covered.page(), "run `python docs/covered.py`"


@pytest.mark.parametrize(
    ("row", "state"),
    [
        ({"by": ["openmp=intel"]}, "verified"),
        ({"by": ["openmp=intel", "cuda-connections=1"]}, "not verified"),
        ({"by": ["vllm-cpu"]}, "verified"),
        ({"by": ["megatron"]}, "not verified"),
        ({"by": ["engine docker"]}, "ships"),
        ({"own": "gpus", "read": "cuda.devices.0.name"}, "yours"),
        ({"not": "because"}, "no"),
    ],
)
def test_the_state_of_advice_follows_from_what_its_levels_claim(row: dict[str, Any], state: str) -> None:
    assert covered.state_of(row, covered.whole_library())[0] == state


@pytest.mark.parametrize(
    "row", [{"by": ["openmp=absent"]}, {"by": ["absent"]}, {"own": "absent"}, {"by": ["engine x"]}]
)
def test_a_row_that_names_what_the_library_lacks_is_refused(row: dict[str, Any]) -> None:
    with pytest.raises(covered.CoverageError, match=r"absent|engine x"):
        covered.state_of(row, covered.whole_library())
