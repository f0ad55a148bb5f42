"""What a trial's record must show before the trial counts."""

import pytest

from bench.evidence import before_torch
from envmatrix.trial import contradicting_variables


def test_a_variable_must_be_in_the_process_as_the_environment_sets_it():
    seen = {"variables": {"A": "1", "C": "3"}}
    assert contradicting_variables({"A": "1", "B": None}, seen) == []
    assert contradicting_variables({"A": "2", "B": "2", "C": None}, seen) == [
        "A should be '2', but the process saw '1'",
        "B should be '2', but the process saw None",
        "C should be None, but the process saw '3'",
    ]


def test_a_variable_that_the_record_hides_is_no_contradiction(monkeypatch):
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    seen = before_torch()
    assert seen["variables"]["TOKENIZERS_PARALLELISM"] == "(hidden)"
    assert contradicting_variables({"TOKENIZERS_PARALLELISM": "false"}, seen) == []
    assert contradicting_variables({"TOKENIZERS_PARALLELISM": None}, seen)
    assert contradicting_variables({"MY_TOKEN": "x"}, {"variables": {}})


@pytest.mark.parametrize(("source", "wrong"), [("outside", 0), ("probe", 1)])
def test_a_program_that_nobody_could_look_at_contradicts_nothing(source, wrong):
    assert len(contradicting_variables({"A": "1"}, {"source": source, "variables": None})) == wrong
