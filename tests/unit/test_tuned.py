"""How `nox -s selfbench -- --tune` judges a try."""

import pytest

from tests.tuned import judged, line_of, summary_of


@pytest.mark.parametrize(
    ("claimed", "low", "high", "faster", "good"),
    [((1.1, 1.3), 1.15, 1.25, True, True), ((1.1, 1.3), 0.99, 1.25, False, False),
     ((1.4, 1.6), 1.1, 1.3, True, False), ((1.1, 1.3), None, None, False, False)],
)  # fmt: skip
def test_a_try_is_good_where_another_run_shows_the_gain_that_was_claimed(claimed, low, high, faster, good):
    found = judged(claimed, low, high)
    assert (found["faster"], found["good"]) == (faster, good)


def test_nine_of_ten_are_wanted_and_fewer_tries_decide_nothing():
    good, beaten, none = {"good": True, "beaten_by": []}, {"good": True, "beaten_by": ["tcmalloc"]}, {"good": None}
    tries = {f"try-{number}": good for number in range(9)}
    assert summary_of(tries)["verdict"].startswith("not decided")
    assert summary_of({**tries, "last": beaten}) == {"tries": 10, "good": 9, "verdict": "MET"}
    assert summary_of({**tries, "a": none, "b": beaten})["verdict"] == "MISSED"


def test_a_try_is_told_in_a_line():
    about = {"recipe": {"malloc": "tcmalloc"}, "spent_s": 1190.0, "budget_s": 1200.0, "good": True, "beaten_by": []}
    one = {**about, "claimed": 1.2, "interval": (1.1, 1.3), "ratio": 1.21, "low": 1.17, "high": 1.25, "blocks": 40}
    said = "malloc=tcmalloc claimed 1.200 (1.100 to 1.300), found 1.210 (1.170 to 1.250, 40 blocks); 1190 s of 1200 s"
    assert line_of("try-01", one).strip() == f"try-01: {said}"
    assert "nothing was recommended" in line_of("try-01", {**about, "good": None})
