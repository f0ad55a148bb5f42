"""An Optuna sampler proposes candidates for screening; racing and confirmation are unchanged."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from envmatrix.api.tuning import search
from envmatrix.errors import InputError
from envmatrix.search.next_trials import Batch, Budget, Search
from envmatrix.search.optuna_sampler import SAMPLERS, propose_rows
from tests.unit.test_tune_loop import Machine, begun, machine, watch  # noqa: F401 - a fixture
from validation import simulated_tuning

optuna = pytest.importorskip("optuna")


@pytest.fixture(scope="module")
def read():
    """Return a world and the results of 60 of its cells, the eleventh of which failed."""
    there = simulated_tuning.world(3, 0.03, (4, 3, 3, 2))
    rows = np.random.default_rng(1).permutation(np.arange(1, len(there.space.codes)))[:60]
    scores = np.concatenate([[0.0, 0.0], there.gains[rows]])[:, None]
    broken = np.zeros(scores.shape, np.int64)
    scores[12], broken[12] = np.nan, 1
    return there, Batch("screen", tuple(rows.tolist()), scores, broken)


def test_a_trial_gives_its_row_and_its_gain_over_the_references_of_its_block_and_a_failed_one_no_number():
    scores = np.array([[0.0, 0.2], [0.0, 0.0], [0.1, 0.3], [np.nan, np.nan], [np.nan, 0.4]])
    broken = np.zeros(scores.shape, np.int64)
    broken[3, 0] = 1
    found = list(Batch("screen", (4, 7, 9), scores, broken).gains_by_trial())
    assert [row for row, _ in found] == [4, 7, 4, 9]  # the others did not run
    assert [gain for _, gain in found] == pytest.approx([0.1, np.nan, 0.2, 0.3], nan_ok=True)


@pytest.mark.parametrize("name", SAMPLERS)
def test_it_proposes_cells_that_may_be_and_the_same_ones_for_the_same_readings(read, name):
    there, batch = read
    allowed = np.ones(len(there.space.codes), dtype=bool)
    allowed[::2] = False
    found = propose_rows(there.space, list(batch.gains_by_trial()), allowed, 5, name, (1, 2))
    assert len(set(found)) == 5
    assert all(row % 2 == 1 for row in found)
    assert propose_rows(there.space, list(batch.gains_by_trial()), allowed, 5, name, (1, 2)) == found


def test_what_tpe_proposes_is_better_than_what_chance_does(read):
    there, batch = read
    allowed, row_gains = np.arange(len(there.space.codes)) > 0, list(batch.gains_by_trial())
    gains = {name: np.mean([there.gains[list(propose_rows(there.space, row_gains, allowed, 8, name, (seed,)))].mean()
                            for seed in range(4)]) for name in ("tpe", "random")}  # fmt: skip
    assert gains["tpe"] > gains["random"]


def test_a_search_with_it_asks_it_alone_once_the_space_was_seen_and_confirms_as_ever(read, monkeypatch):
    asked = []
    monkeypatch.setattr("envmatrix.search.optuna_sampler.propose_rows", lambda *known: asked.append(known) or (1, 2, 3))
    there, batch = read
    step = Search(there.space, sampler="tpe").next_step([batch], Budget(200, 120))
    assert (step.phase, step.rows) == ("screen", (1, 2, 3))
    assert asked[0][4] == "tpe"


def test_a_search_on_disk_keeps_its_sampler(machine):  # noqa: F811
    result = search.finish_search(begun(sampler="tpe"), watch)
    assert result.settings == {"size": "large", "place": "there"}
    assert search.resume_study(result.folder, None, lambda _: None).search.sampler == "tpe"


def test_an_unknown_sampler_and_a_missing_optuna_are_told_before_anything_is_written(machine, monkeypatch, tmp_path):  # noqa: F811
    with pytest.raises(InputError, match="unknown sampler 'tpee'") as caught:
        begun(sampler="tpee")
    assert "tpe" in caught.value.remedy
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InputError, match="--sampler needs Optuna") as caught:
        begun(sampler="tpe")
    assert "pip install optuna" in caught.value.remedy
    assert not (tmp_path / "results" / "mine").exists()


def test_tpe_in_a_made_up_world_has_all_of_its_trials_though_it_proposes_what_cannot_be():
    there = simulated_tuning.world(3, 0.03, (4, 3, 3, 2), trials=40)
    assert len(there.space.codes) < 4 * 3 * 3 * 2
    simulated_tuning.tpe(there)
    assert there.ran == 40
