"""A search with interleaved trials: how its steps run and how they are analysed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from envmatrix.matrix.parse import parse
from envmatrix.results import RunFolder
from envmatrix.search.loop import RunningSearch, _step_design
from envmatrix.search.next_trials import Proposal
from envmatrix.search.space import Space
from envmatrix.search.step_results import Step, read_step, spent_s
from envmatrix.search.study_folder import Study, StudyFolder, make_search
from envmatrix.system.progress import silent
from tests.synthetic import MATRIX_TEXT, Machine, make_plan, make_run, make_trials, mixed_plan, write_mixed, write_run
from tests.unit.test_continuations import continued_after_trials

MATRIX = """
version: 2
factors:
  size: {small: {}, lone: {env: {SIZE: "2"}, turns: false}, large: {env: {SIZE: "3"}}}
environments:
  baseline: {}
workloads:
  cnn: {model: fashion-cnn, steps: 2}
designs:
  default: {factors: {size: [small, lone, large]}, workloads: cnn, schedule: SCHEDULE, steady: true}
"""


def test_trials_that_ran_together_took_their_time_once():
    together = Step(None, {}, (), ((0.0, 9.0), (0.1, 9.5), (0.2, 8.0), (10.0, 12.0)), None)
    assert spent_s([together]) == pytest.approx(12.0)


def test_what_took_no_turns_is_read_as_a_gain_over_the_copy_of_the_baseline_that_took_none(tmp_path):
    names = ("baseline", "a", "b", "c")
    folder = write_mixed(
        tmp_path / "screen", Machine({"a": 1.2, "b": 1.5}, noise=0.001), 2, mixed_plan(design="screen")
    )
    step = read_step(folder, Space(("malloc",), (names,), np.arange(4)[:, None], {}))
    assert step.batch.rows == (1, 2, 3)
    gains = step.batch.scores[2:] - step.batch.scores[0]
    assert np.exp(gains.mean(axis=1)) == pytest.approx([1.2, 1.5, 1.0], rel=0.01)
    assert not step.batch.broken.any()
    peaks = [trial.record.metrics["peak_rss_bytes"] for trial in folder.trials(folder.load().plan)]
    assert step.peaks == {"cnn": int(max(peaks))}


def test_a_configuration_that_did_other_work_is_out_however_fast_it_was(tmp_path):
    machine = Machine({"a": 1.5}, noise=0.001, loss={"a": 0.1})
    folder = write_run(tmp_path / "screen", make_plan(("a", "b"), design="screen"), machine, 2)
    step = read_step(folder, Space(("malloc",), (("baseline", "a", "b"),), np.arange(3)[:, None], {}))
    assert list(step.reasons) == [1]
    assert step.reasons[1].startswith("other work: final loss 0.")
    assert np.isnan(step.batch.scores[2]).all()
    assert np.isfinite(step.batch.scores[3]).all()


def test_of_blocks_side_by_side_those_alone_have_the_lone_copy_of_the_baseline_that_compare_with_it():
    dealt = replace(mixed_plan(), parts=3)
    lone, *others = [{arm.environment for arm in dealt.arms_of(block)} for block in range(3)]
    copy = next(arm.environment for arm in dealt.arms if arm.is_uninterrupted_copy)
    assert lone == {"baseline", "control", "a", copy}
    assert others == [{"baseline", "control", "b"}, {"baseline", "control", "c"}]


@pytest.mark.parametrize(
    ("asked", "phase", "level", "schedule"),
    [("turns", "screen", "lone", "turns"), ("turns", "confirm", "lone", "sequential"),
     ("turns", "confirm", "large", "turns"), ("sequential", "screen", "large", "sequential"),
     ("auto", "screen", "lone", "auto"), ("auto", "confirm", "lone", "sequential")],
)  # fmt: skip
def test_steps_run_as_the_design_does_but_what_takes_no_turns_is_confirmed_beside_two_copies(
    tmp_path, asked, phase, level, schedule
):
    matrix = parse(MATRIX.replace("SCHEDULE", asked), tmp_path / "matrix.yaml")
    design = matrix.designs["default"]
    study = Study(name="s", created="now", envmatrix="0", design=design, budget=600.0, factors=design.factors)
    tuning = RunningSearch(StudyFolder(tmp_path), study, matrix, make_search(matrix, study), silent)
    made = _step_design(tuning, Proposal(phase, (1,), 6), 3, {"one": {"size": level}})
    assert made.get("schedule", "auto") == schedule
    assert made.get("steady", False) is (phase == "confirm" and schedule != "sequential"), "of the recipe alone"


def test_the_confirmed_recipe_has_its_effect_in_later_steps(tmp_path):
    plan, folder = make_plan(("a",), design="confirm"), RunFolder(tmp_path / "confirm")
    folder.create(make_run(plan), MATRIX_TEXT)
    for trial in make_trials(plan, Machine({"a": 1.2}, noise=0.01), 8):
        change = 0.7 if trial.environment == "a" else 1.0
        folder.append(replace(continued_after_trials(trial, 9, change), later_s=20.0) if trial.block > 4 else trial)
    found = read_step(folder, Space(("malloc",), (("baseline", "a"),), np.arange(2)[:, None], {})).confirmation
    assert found.steady.ratio == pytest.approx(1.2 * 0.7, rel=0.03)
    assert (found.steady.verdict, found.trial, found.effect.verdict) == ("slower", "first steps", "faster")
