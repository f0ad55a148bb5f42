"""A search: its space, its model, its proposals, and simulated worlds for evaluating it."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from envmatrix.errors import InputError
from envmatrix.matrix.additions import with_only_design
from envmatrix.matrix.model import MAX_NAME_LENGTH
from envmatrix.matrix.parse import parse
from envmatrix.search import answer, candidate_selection
from envmatrix.search.bayesian_regression import Terms, fit
from envmatrix.search.candidate_selection import CellStatus
from envmatrix.search.next_trials import Batch, Budget, Proposal, Search
from envmatrix.search.space import Space, build_space
from envmatrix.system.resource_paths import bundled_matrix_file
from validation import simulated_tuning
from validation.selfbench import long_search

MATRIX = """
version: 2
factors:
  runtime:
    gnu: {}
    intel: {env: {RUNTIME: intel}}
  threads:
    default: {}
    two: {env: {OMP_NUM_THREADS: "2"}}
    both: {env: {OMP_NUM_THREADS: "{logical_cpus}"}}
  affinity:
    none: {}
    compact: {env: {KMP_AFFINITY: compact}, requires: {runtime: intel}}
  clash:
    none: {}
    two: {env: {OMP_NUM_THREADS: "3"}}
environments:
  baseline: {}
  recipe: {runtime: intel, affinity: compact}
  same: {threads: both}
workloads:
  own: {command: [python, x.py]}
designs:
  default: {environments: [recipe], workloads: own}
"""
LEVELS = {"runtime": ("gnu", "intel"), "threads": ("default", "two", "both"), "affinity": ("none", "compact")}


def space(levels=None, named=("recipe",)):
    facts = {"logical_cpus": "2"}
    return build_space(parse(MATRIX, Path("matrix.yaml")), levels or LEVELS, named, "baseline", facts)


def made_up(sizes, impossible=()):
    """Return a space of all cells with these numbers of levels, except those with an impossible pair."""
    codes = np.array(np.meshgrid(*map(np.arange, sizes), indexing="ij")).reshape(len(sizes), -1).T.astype(np.int16)
    for a, one, b, other in impossible:
        codes = codes[~((codes[:, a] == one) & (codes[:, b] == other))]
    return Space(
        tuple(f"f{at}" for at in range(len(sizes))), tuple(tuple(map(str, range(size))) for size in sizes), codes, {}
    )


class TestTheSpace:
    def test_holds_what_requires_allows_and_equal_cells_once_the_baseline_first(self):
        found = space()
        cells = [found.levels_unlike_baseline(row) for row in range(len(found.codes))]
        assert cells[0] == {}
        assert {"affinity": "compact"} not in cells
        assert {"runtime": "intel", "affinity": "compact"} in cells
        assert not any("both" in cell.values() for cell in cells)  # with two CPUs it equals `two`
        assert (len(cells), found.equal, found.impossible) == (6, 3, 3)

    def test_names_recipes_and_calls_other_cells_by_their_settings(self):
        found = space()
        row = found.named["recipe"]
        assert found.levels_unlike_baseline(row) == {"runtime": "intel", "affinity": "compact"}
        assert found.name(row) == "recipe"
        assert "runtime-intel+threads-two" in {found.name(row) for row in range(len(found.codes))}

    def test_every_cell_of_the_usual_space_has_a_name_of_its_own_that_can_stand_in_a_matrix(self):
        text = "version: 2\ninclude: [envmatrix:recipes, envmatrix:hugepages]\nenvironments: {baseline: {}}\n"
        text += "workloads: {own: {command: [python, x.py]}}\n"
        matrix = parse(text, bundled_matrix_file())
        levels = {one.name: tuple(one.levels) for one in matrix.factors.values() if not one.changes_installed_software}
        found = build_space(matrix, levels, (), "baseline", {"logical_cpus": "2", "physical_cores": "2"})
        names = {found.name(row): found.all_levels(row) for row in range(1, len(found.codes))}
        assert len(names) == len(found.codes) - 1 > 3000
        longest = {name: chosen for name, chosen in names.items() if len(name) >= MAX_NAME_LENGTH}
        assert len(longest) > 100
        made = with_only_design(matrix, "screen", {"environments": list(longest), "workloads": "own"}, longest)
        assert made.designs["screen"].environments == tuple(longest)

    def test_cells_whose_levels_set_one_variable_to_two_things_are_impossible(self):
        found = space({"threads": ("default", "two"), "clash": ("none", "two")})
        assert len(found.codes) == 3

    @pytest.mark.parametrize(
        ("levels", "said"),
        [
            ({"runtime": ("gnu",)}, "runtime has no second level"),
            ({"affinity": ("none", "compact")}, "no configuration of these levels is possible"),
            ({"runtimes": ("gnu",)}, "no factor 'runtimes'"),
            ({"runtime": ("gnu", "inte")}, "runtime has no level 'inte'"),
        ],
    )
    def test_an_empty_or_contradictory_space_is_told(self, levels, said):
        with pytest.raises(InputError, match=said):
            space(levels)

    def test_a_space_that_is_too_large_is_told(self, monkeypatch):
        monkeypatch.setattr("envmatrix.search.space.MAX_CELLS", 5)
        with pytest.raises(InputError, match="12 configurations are too many"):
            space()


class TestTheModel:
    def learned(self, noise, readings=600, blocks_of=10):
        there = made_up((3, 3, 2))
        terms = Terms(there.sizes)
        columns = terms.columns(there.codes)
        truth = 0.2 * (there.codes[:, 0] == 1) - 0.1 * (there.codes[:, 1] == 2)
        truth = truth + 0.15 * ((there.codes[:, 0] == 1) & (there.codes[:, 2] == 1))
        chance = np.random.default_rng(5)
        rows = chance.integers(0, len(there.codes), readings)
        blocks = np.arange(readings) // blocks_of
        values = truth[rows] + 3.0 * chance.normal(size=blocks.max() + 1)[blocks] + chance.normal(0, noise, readings)
        return truth, fit(terms, columns, rows, blocks, values), columns

    def test_finds_levels_and_pairs_whatever_blocks_have_in_common(self):
        truth, found, columns = self.learned(0.05)
        assert np.abs(found.gains(columns) - truth).max() < 0.04
        assert found.noise == pytest.approx(0.05, rel=0.15)

    def test_its_draws_spread_as_its_covariance_says(self):
        _, found, columns = self.learned(0.2, readings=60)
        draws = found.draws(columns, 3000, np.random.default_rng(1))
        mean, covariance = found.gain_distribution(range(1, len(columns)), columns[1:])
        assert np.abs(draws.mean(axis=0)[1:] - mean).max() < 0.02
        assert draws.std(axis=0)[1:] == pytest.approx(np.sqrt(np.diag(covariance)), rel=0.1)
        assert not draws[:, 0].any()  # the baseline gains nothing over itself

    def test_a_watched_cell_may_differ_from_what_its_levels_say(self):
        there = made_up((2, 2))
        terms = Terms(there.sizes)
        rows, blocks = np.tile([0, 1, 2, 3], 50), np.repeat(np.arange(50), 4)
        values = np.tile([0.0, 0.1, 0.1, 0.5], 50) + np.random.default_rng(2).normal(0, 0.01, 200)
        found = fit(terms, terms.columns(there.codes), rows, blocks, values, [3])
        mean, _ = found.gain_distribution([3], terms.columns(there.codes)[[3]])
        assert mean[0] == pytest.approx(0.5, abs=0.01)


class TestWhatFails:
    def known(self, good, bad, sizes=(3, 2, 2)):
        codes = made_up(sizes).codes
        index = {tuple(cell): row for row, cell in enumerate(codes.tolist())}
        counts = np.zeros((2, len(codes)), np.int64)
        for counted, cells in zip(counts, (good, bad), strict=True):
            for cell, times in cells.items():
                counted[index[cell]] = times
        return CellStatus(codes, sizes, *counts), index

    def test_a_level_whose_claim_is_not_met_is_out_everywhere(self):
        known, index = self.known({(0, 1, 0): 1}, {(1, 0, 0): 2})
        assert known.failing == ((0, 1),)
        assert not any(known.allowed[row] for cell, row in index.items() if cell[0] == 1)
        assert known.allowed[index[2, 1, 1]]

    def test_one_failure_takes_out_its_cell_alone(self):
        known, index = self.known({}, {(1, 0, 0): 1})
        assert known.failing == ()
        assert not known.allowed[index[1, 0, 0]]
        assert known.allowed[index[1, 1, 0]]

    def test_a_level_that_failed_beside_another_suspect_only_stays(self):
        known, _ = self.known({}, {(1, 1, 0): 2})
        assert known.failing == ()

    def test_two_levels_that_fail_together_are_out_together(self):
        good = {(1, 0, 0): 1, (0, 1, 0): 1, (0, 0, 1): 1, (1, 0, 1): 1, (0, 1, 1): 1}
        known, index = self.known(good, {(1, 1, 0): 1, (1, 1, 1): 1})
        assert known.failing == ()
        assert [cell for cell, row in index.items() if not known.allowed[row]] == [(1, 1, 0), (1, 1, 1)]


class TestTheChoice:
    def test_settings_that_bring_nothing_are_pruned(self):
        there = made_up((2, 2, 2))
        codes = there.codes
        gains = 0.2 * codes[:, 0] + 0.004 * codes[:, 1] + 0.004 * codes[:, 2]
        best = int(np.flatnonzero((codes == 1).all(axis=1))[0])
        assert codes[candidate_selection.simplify_row(best, there, gains)].tolist() == [1, 0, 0]

    def test_what_is_pruned_is_never_a_cell_that_fails(self):
        there = made_up((2, 2))
        codes = there.codes
        gains = np.where(codes[:, 1] == 0, -np.inf, 0.2 * codes[:, 0])
        both = int(np.flatnonzero((codes == 1).all(axis=1))[0])
        assert candidate_selection.simplify_row(both, there, gains) == both

    def test_a_cell_without_one_setting_is_found_where_it_can_be(self):
        there = made_up((3, 2, 2), impossible=[(0, 2, 1, 0)])
        codes = there.codes
        rows = {tuple(cell): row for row, cell in enumerate(codes.tolist())}
        for row, cell in enumerate(codes.tolist()):
            fewer = [(*cell[:at], 0, *cell[at + 1 :]) for at in range(3) if cell[at]]
            assert there.rows_without_one_setting(row) == [rows.get(one, 0) for one in fewer]

    def test_of_equal_cells_the_one_with_the_fewest_settings_wins(self):
        codes = made_up((2, 2)).codes
        one, both = codes.tolist().index([1, 0]), codes.tolist().index([1, 1])
        assert candidate_selection.simplest_best_row([both, one], np.array([0.300, 0.298]), codes) == one
        assert candidate_selection.simplest_best_row([both, one], np.array([0.300, 0.200]), codes) == both

    def test_the_hopeless_leave_the_race(self):
        chance = np.random.default_rng(1)
        assert candidate_selection.surviving_rows(
            [5, 6, 7], np.array([0.1, 0.11, -0.5]), 0.01**2 * np.eye(3), chance
        ) == (5, 6)


SMALL = (3, 3, 2, 2, 2)


def searched(total=120, number=3):
    there = simulated_tuning.world(number, 0.03, SMALL)
    search, batches, steps = Search(there.space), [], []
    while step := search.next_step(batches, Budget(total, total - there.ran)):
        steps.append(step)
        batches.append(there.batch(step))
    return there, search, batches, steps


@pytest.fixture(scope="module")
def small():
    return searched()


class TestWhatIsProposed:
    def test_each_level_is_met_first_and_the_recipes(self):
        there = space()
        step = Search(there).next_step([], Budget(300, 300))
        assert step is not None
        assert step.phase == "evidence"
        met = {(factor, level) for row in step.rows for factor, level in there.levels_unlike_baseline(row).items()}
        assert met == {("runtime", "intel"), ("threads", "two"), ("affinity", "compact")}
        assert there.named["recipe"] in step.rows

    def test_a_search_goes_through_its_phases_within_its_budget_and_ends_with_fresh_blocks(self, small):
        there, _, batches, steps = small
        order = [step.phase for step in steps]
        assert sorted(set(order), key=order.index) == ["evidence", "screen", "race", "confirm"]
        assert there.ran <= 1.05 * 120
        assert steps[-1].blocks >= 6
        assert len(steps[-1].rows) == 1
        assert there.gains[steps[-1].rows[0]] > 0
        assert sum(batch.trials for batch in batches) == there.ran

    def test_what_is_proposed_follows_from_the_readings_alone(self, small):
        _, search, batches, steps = small
        again = Search(search.space)
        spent = np.cumsum([0, *(batch.trials for batch in batches)])
        found = [
            again.next_step(batches[:at], Budget(120, 120 - int(spent[at]))) for at in reversed(range(len(batches)))
        ]
        assert found == steps[::-1]

    def test_what_failed_is_not_proposed_again(self, small):
        _, _, batches, _ = small
        for at in range(1, len(batches)):
            failed = {
                row
                for batch in batches[:at]
                for row, bad in zip(batch.rows, batch.broken[2:], strict=True)
                if bad.any()
            }
            assert failed.isdisjoint(batches[at].rows)

    def test_nothing_is_confirmed_where_all_candidates_fail(self):
        search = Search(made_up((2, 2)))
        scores = np.full((5, 1), np.nan)
        scores[:2] = 0.0
        batch = Batch("evidence", (1, 2, 3), scores, np.array([[0], [0], [2], [2], [2]]))
        assert search.next_step([batch], Budget(200, 195)) is None

    def test_what_never_ran_is_raced_before_it_is_confirmed_and_not_confirmed_where_that_shows_that_it_cannot(self):
        """The model expects the most from an untried cell, because each of its settings gains separately."""
        there = made_up((2, 2))
        search = Search(there)
        both, *alone = sorted(range(1, 4), key=lambda row: -int((there.codes[row] > 0).sum()))
        seen = Batch(
            "screen", tuple(alone), np.repeat([[0.0], [0.0], [0.3], [0.2]], 3, axis=1), np.zeros((4, 3), np.int64)
        )
        raced = search.next_step([seen], Budget(100, 45))
        assert (raced.phase, both in raced.rows) == ("race", True)
        broken = np.array([[0], [0], *([2 * (row == both)] for row in raced.rows)])
        scores = np.array([[0.0], [0.0], *([np.nan if row == both else 0.25] for row in raced.rows)])
        found = search.next_step([seen, Batch("race", raced.rows, scores, broken)], Budget(100, 31))
        assert (found.phase, found.rows) == ("confirm", (alone[0],))
        without_time = search.next_step([seen], Budget(100, 30))
        assert (without_time.phase, without_time.rows) == ("confirm", (alone[0],))

    def test_a_small_budget_races_as_many_as_it_has_trials_for_so_that_what_was_not_screened_may_be_confirmed(self):
        """Guards against skipping the race and confirming a screened cell with a third setting that has no effect."""
        there = made_up((2, 2, 2))
        index = {tuple(cell): row for row, cell in enumerate(there.codes.tolist())}
        gains = {(1, 0, 0): 0.2, (0, 1, 0): 0.1, (0, 0, 1): 0.0, (1, 1, 1): 0.3, (1, 0, 1): 0.2, (0, 1, 1): 0.1}
        scores = np.array([0.0, 0.0, *gains.values()])
        seen = Batch("screen", tuple(index[cell] for cell in gains), np.repeat(scores[:, None], 3, axis=1),
                     np.zeros((8, 3), np.int64))  # fmt: skip
        raced = Search(there).next_step([seen], Budget(80, 29.5))
        assert (raced.phase, len(raced.rows), raced.rows[0]) == ("race", 3, index[1, 1, 0])
        for budget in Budget(80, 27.5), Budget(50, 20.5):  # none left for a race, none besides six blocks
            assert Search(there).next_step([seen], budget).phase == "confirm"

    def test_a_level_that_changes_nothing_is_never_tried_again(self):
        there = made_up((2, 3, 2))
        search = Search(there)
        first = search.next_step([], Budget(200, 200))
        batch = Batch(
            "evidence", first.rows, np.zeros((len(first.rows) + 2, 1)), np.zeros((len(first.rows) + 2, 1), np.int64)
        )
        step = search.next_step([batch], Budget(200, 190), dropped=[(1, 2)])
        assert step.rows
        assert not (there.codes[list(step.rows)][:, 1] == 2).any()

    def test_a_budget_is_told_that_is_enough_to_confirm(self):
        fewest = Search(simulated_tuning.world(3, 0.03, SMALL).space).fewest_trials()
        _, _, _, steps = searched(total=fewest)
        assert steps[-1].phase == "confirm"
        assert Proposal("evidence", steps[0].rows, 1) == steps[0]


def test_a_proposal_after_ten_thousand_trials_takes_less_than_two_seconds_of_cpu():
    search, batches = long_search(10_000, (4, 4, 3, 3, 3, 2, 2, 2))
    assert search.columns.size
    began = time.thread_time()  # BLAS has its own threads, which spin while other tests need the CPUs
    assert search.next_step(batches, Budget(20_000, 10_000)).phase == "screen"
    assert time.thread_time() - began < 2.0


def test_the_figures_of_a_world_are_told_beside_those_of_usual_methods():
    found = {name: simulated_tuning.searched(name, 0.03, 5, 1, SMALL) for name in simulated_tuning.METHODS}
    assert [figure.question for figure in found["envmatrix tune"]] == [
        "share of the best possible gain",
        "claimed minus true, points",
        "worse than the baseline",
        "settings that bring nothing",
        "the interval holds the truth",
        "the model's guess holds the truth",
    ]
    assert 0.6 < found["envmatrix tune"][0].value <= 1.0
    told = [figure for figures in found.values() for figure in figures if "guess" not in figure.question]
    assert all(figure.runs == 1 for figure in told)


def test_configurations_that_failed_for_one_reason_are_told_in_one_line(monkeypatch):
    found = space()
    rows = [row for row in range(1, len(found.codes)) if found.levels_unlike_baseline(row).get("runtime") == "intel"]
    others = [row for row in range(1, len(found.codes)) if row not in rows]
    steps = [SimpleNamespace(batch=None, reasons={**dict.fromkeys(rows, "it crashed"), others[0]: "too slow"})]
    monkeypatch.setattr(answer, "no_op_levels", lambda *_: {})
    search = SimpleNamespace(space=found, known=lambda _: SimpleNamespace(failing=()))
    assert answer._drop_reasons(search, steps) == {
        f"{len(rows)} configurations with runtime=intel": "it crashed",
        answer.settings_text(found.levels_unlike_baseline(others[0])): "too slow",
    }


def test_settings_count_as_idle_that_could_go_while_no_more_than_a_hundredth_of_the_gain_does():
    space_ = made_up((2, 2, 2, 2))
    codes = space_.codes
    gains = 0.2 * codes[:, 0] + 0.006 * codes[:, 1] + 0.006 * codes[:, 2]
    there = SimpleNamespace(space=space_, gains=gains, failing=np.zeros(len(codes), np.bool_))
    rows = {"".join(map(str, cell)): row for row, cell in enumerate(codes.tolist())}
    known = {cell: simulated_tuning.idle_settings(there, rows[cell]) for cell in ("1000", "1001", "1100", "1110")}
    assert known == {"1000": 0, "1001": 1, "1100": 1, "1110": 1}


def test_a_world_of_few_cells_and_trials_is_told_apart():
    found = simulated_tuning.searched("envmatrix tune", 0.03, 5, 1, simulated_tuning.FEW, trials=100)
    assert {figure.procedure for figure in found} == {"envmatrix tune, 100 trials"}
    assert simulated_tuning.world(5, 0.03, simulated_tuning.FEW, trials=100).trials == 100


def test_a_balanced_screen_shows_new_cells_first_and_a_factors_reference_as_often_as_its_levels():
    there = simulated_tuning.world(3, 0.03, (3, 7, 2, 2, 3))
    search, batches, total = Search(there.space), [], 300
    while (step := search.next_step(batches, Budget(total, total - there.ran))) and there.ran < 0.3 * total:
        batches.append(there.batch(step))
    screened = [row for batch in batches if batch.phase == "screen" for row in batch.rows]
    assert len(screened) > 40
    assert len(set(screened)) == len(screened)
    for factor, size in enumerate(there.space.sizes):
        shares = np.bincount(there.space.codes[screened, factor], minlength=size) / len(screened)
        assert shares.min() > 0.5 / size, f"f{factor}"
