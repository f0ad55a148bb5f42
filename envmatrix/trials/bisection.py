"""The steps from one environment to another (`bench --bisect`): what differs between the two changes one by one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations
from pathlib import Path

from envmatrix.errors import InputError, suggestion
from envmatrix.matrix.additions import with_only_design
from envmatrix.matrix.model import MAX_NAME_LENGTH, Matrix
from envmatrix.matrix.yaml_positions import parse_yaml
from envmatrix.plan.environment import is_possible, resolve_environment
from envmatrix.trials.experiment_setup import find_design

#: Keys of a design that say what is compared, which the steps replace.
_COMPARED = ("environments", "factors", "cumulative", "application", "reference_values", "baseline", "race")


def bisected(matrix: Matrix, design: str, first: str, last: str) -> Matrix:
    """Return the matrix with a design that goes from one environment to another, and the environments between them.

    The workloads and limits are those of ``design``. Raises InputError for an unknown name, or if nothing differs.
    """
    find_design(matrix, design)
    steps = environments_from_first_to_last(matrix, first, last)
    designs = parse_yaml(matrix.text, Path(matrix.path)).mapping(()).get("designs")
    options = designs.get(design) if isinstance(designs, dict) else None
    kept = {key: value for key, value in options.items() if key not in _COMPARED} if isinstance(options, dict) else {}
    added = {name: levels for name, levels in steps.items() if name not in matrix.environments}
    return with_only_design(matrix, design, {**kept, "baseline": first, "cumulative": list(steps)}, added)


def environments_from_first_to_last(matrix: Matrix, first: str, last: str) -> dict[str, Mapping[str, str]]:
    """Return name -> levels of the environments after ``first``, up to ``last``.

    A step changes one factor, in the matrix's order; more only if no single one is possible (`requires`).
    """
    for name in (first, last):
        if name not in matrix.environments:
            raise InputError(f"no environment {name!r}", remedy=suggestion(name, matrix.environments))
    goal = resolve_environment(matrix, last, {}).levels
    levels = dict(resolve_environment(matrix, first, {}).levels)
    remaining = [factor for factor in goal if goal[factor] != levels[factor]]
    if not remaining:
        raise InputError(f"no factor differs between {first} and {last}", remedy="name two other environments")
    known_names = {
        tuple(resolve_environment(matrix, name, {}).levels.items()): name
        for name in reversed(tuple(matrix.environments))
    }
    steps: dict[str, Mapping[str, str]] = {}
    while remaining:
        changed = _possible_change(matrix, levels, goal, remaining)
        levels = {**levels, **{factor: goal[factor] for factor in changed}}
        remaining = [factor for factor in remaining if factor not in changed]
        name = known_names.get(tuple(levels.items())) or _step_name(changed, goal, matrix.environments)
        steps[name if remaining else last] = levels
    return steps


def _possible_change(
    matrix: Matrix, levels: Mapping[str, str], goal: Mapping[str, str], remaining: list[str]
) -> tuple[str, ...]:
    """Return the first of the smallest groups of factors that may change together."""
    groups = (group for size in range(1, len(remaining)) for group in combinations(remaining, size))
    changes = ((group, {**levels, **{factor: goal[factor] for factor in group}}) for group in groups)
    return next((group for group, changed in changes if is_possible(matrix, changed)), tuple(remaining))


def _step_name(changed: Iterable[str], goal: Mapping[str, str], taken: Iterable[str]) -> str:
    name = "_".join(f"{factor}-{goal[factor]}" for factor in changed)
    return f"then-{name}"[:MAX_NAME_LENGTH] if name in taken else name[:MAX_NAME_LENGTH]
