"""Check that every reference in a matrix names an existing factor, level, environment or workload."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from envmatrix.errors import suggestion
from envmatrix.matrix.model import Design, Matrix, factorial_cells
from envmatrix.matrix.yaml_positions import Key

_REFERENCE_KINDS = {
    "environments": "environment",
    "cumulative": "environment",
    "workloads": "workload",
    "application": "workload",
}
RESERVED = {"control": "this name is reserved for the second copy of the baseline"}


class MistakeReporter(Protocol):
    """Records a mistake at a path of the matrix."""

    def __call__(self, path: Key, message: str, remedy: str = "", *, key: bool = False) -> None:
        """With ``key``, the location is that of the key."""


def check_references(add_mistake: MistakeReporter, matrix: Matrix) -> None:
    """Check that every reference to another section names an existing entry."""
    _check_levels(add_mistake, matrix)
    for name, entry in matrix.environments.items():
        for factor, level in entry.levels.items():
            _check_level_word(add_mistake, matrix, ("environments", name), factor, level)
    for design in matrix.designs.values():
        _check_design(add_mistake, matrix, design)
    _check_baselines(add_mistake, matrix)


def _check_baselines(add_mistake: MistakeReporter, matrix: Matrix) -> None:
    """Reject a factorial design whose first cell has the name of a different environment."""
    levels_by_name = {name: _complete_levels(matrix, entry.levels) for name, entry in matrix.environments.items()}
    for design in matrix.designs.values():
        if not design.factors or not all(design.factors.values()):
            continue
        baseline_levels = {factor: levels[0] for factor, levels in design.factors.items()}
        levels = _complete_levels(matrix, baseline_levels)
        if levels_by_name.setdefault(design.baseline, levels) != levels:
            levels_text = ", ".join(f"{factor}={level}" for factor, level in baseline_levels.items())
            add_mistake(
                ("designs", design.name, "baseline"),
                f"the first combination of this design ({levels_text}) would be named {design.baseline!r}, "
                "but that is another environment",
                "name it with `baseline: NAME`, or put that environment's level first in each factor",
            )


def _complete_levels(matrix: Matrix, levels: Mapping[str, str]) -> dict[str, str]:
    return {factor.name: levels.get(factor.name, factor.reference) for factor in matrix.factors.values()}


def _check_design(add_mistake: MistakeReporter, matrix: Matrix, design: Design) -> None:
    path = ("designs", design.name)
    for key, kind in _REFERENCE_KINDS.items():
        known_names = matrix.environments if kind == "environment" else matrix.workloads
        for index, word in enumerate(getattr(design, key)):
            if word not in known_names:
                add_mistake((*path, key, index), f"no {kind} {word!r}", suggestion(word, known_names))
    for index, word in enumerate(design.application):
        if word in design.workloads or word in matrix.environments:
            remedy = "rename the workload"
            add_mistake((*path, "application", index), f"{word!r} is already the name of a row of the table", remedy)
    _check_reference_values(add_mistake, matrix, design)
    if not design.factors and design.baseline not in matrix.environments:
        remedy = "add `baseline: {}` under environments"
        add_mistake((*path, "baseline"), f"the baseline {design.baseline!r} is not an environment", remedy)
    for factor, levels in design.factors.items():
        for index, level in enumerate(levels):
            _check_level_word(add_mistake, matrix, (*path, "factors"), factor, level, index)


def _check_reference_values(add_mistake: MistakeReporter, matrix: Matrix, design: Design) -> None:
    known_names = {*matrix.environments, *matrix.workloads, *RESERVED}
    unknown = [name for name in design.reference_values if name not in known_names]
    of_cells = factorial_cells(design) if unknown else {}
    for name in unknown:
        if name not in of_cells:
            path = ("designs", design.name, "reference_values", name)
            add_mistake(
                path,
                f"no environment or workload {name!r}",
                suggestion(name, {*known_names, *of_cells}),
                key=True,
            )


def _check_levels(add_mistake: MistakeReporter, matrix: Matrix) -> None:
    for factor in matrix.factors.values():
        for level_name, level in factor.levels.items():
            path = ("factors", factor.name, level_name, "requires")
            for other_factor, allowed in level.requires.items():
                for index, word in enumerate(allowed):
                    _check_level_word(add_mistake, matrix, path, other_factor, word, index)


def _check_level_word(
    add_mistake: MistakeReporter, matrix: Matrix, path: Key, factor: str, level: str, index: int | None = None
) -> None:
    factor_path = (*path, factor)
    if factor not in matrix.factors:
        add_mistake(factor_path, f"no factor {factor!r}", suggestion(factor, matrix.factors), key=True)
    elif level not in matrix.factors[factor].levels:
        word_path = factor_path if index is None else (*factor_path, index)
        add_mistake(
            word_path,
            f"factor {factor!r} has no level {level!r}",
            suggestion(level, matrix.factors[factor].levels),
        )
