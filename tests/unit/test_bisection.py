"""`bench --bisect`: from one environment to another, one change at a time."""

from pathlib import Path

import pytest

from envmatrix.errors import InputError
from envmatrix.matrix.parse import parse
from envmatrix.plan.environment import resolve_environment
from envmatrix.trials.bisection import bisected, environments_from_first_to_last
from tests.shipped_levels import matrix


def changes(found, first, steps):
    """Return how many factors each step changes, and check that the last one is the goal."""
    levels, counts = resolve_environment(found, first, {}).levels, []
    for changed in steps.values():
        counts.append(sum(levels[factor] != level for factor, level in changed.items()))
        levels = changed
    assert levels == resolve_environment(found, list(steps)[-1], {}).levels
    return counts


def test_each_step_changes_one_factor_and_the_last_is_the_goal():
    steps = environments_from_first_to_last(matrix(), "baseline", "zendnn")
    assert list(steps)[-1] == "zendnn"
    assert set(changes(matrix(), "baseline", steps)) == {1}
    assert next(iter(steps)) == "intel-omp", "an environment that the matrix has keeps its name"


def test_a_change_that_requires_another_comes_after_it_or_with_it():
    steps = environments_from_first_to_last(matrix(), "cuda-2.13-cudnn-9.24", "cudnn-9.28")
    assert (list(steps), changes(matrix(), "cuda-2.13-cudnn-9.24", steps)) == (
        ["nccl-version-default", "cudnn-9.28"],
        [1, 2],
    )


def test_the_design_keeps_its_workloads_and_limits_and_compares_only_the_steps():
    text = """
version: 2
factors:
  a: {one: {}, two: {env: {A: "1"}}}
  b: {one: {}, two: {env: {B: "1"}}}
environments: {baseline: {}, other: {b: two}, goal: {a: two, b: two}}
workloads: {w: {command: [program], metric: {wall: true}}}
designs: {default: {environments: other, workloads: w, budget: 7m, seed: 5}}
"""
    found = bisected(parse(text, Path("matrix.yaml")), "default", "baseline", "goal").designs["default"]
    assert (found.baseline, found.environments, found.cumulative) == ("baseline", (), ("a-two", "goal"))
    assert (found.workloads, found.budget, found.seed) == (("w",), 420.0, 5)


@pytest.mark.parametrize(
    ("pair", "message"),
    [(("baseline", "baseline"), "no factor differs"), (("baseline", "bok"), "no environment 'bok'")],
)
def test_a_pair_without_a_path_is_refused(pair, message):
    with pytest.raises(InputError, match=message):
        environments_from_first_to_last(matrix(), *pair)
