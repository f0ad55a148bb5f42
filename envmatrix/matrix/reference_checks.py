"""Check that every reference in a matrix names an existing factor, level, environment or workload."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

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


class Mistake(NamedTuple):
    """A mistake at a path of the matrix; ``key``: its location is that of the key, not of the value."""

    path: Key
    message: str
    remedy: str = ""
    key: bool = False


def reference_mistakes(matrix: Matrix) -> Iterator[Mistake]:
    """Yield a mistake for every reference to another section that names no existing entry."""
    for factor in matrix.factors.values():
        for level_name, level in factor.levels.items():
            for other_factor, allowed in level.requires.items():
                for index, word in enumerate(allowed):
                    path = ("factors", factor.name, level_name, "requires", other_factor)
                    yield from _level_mistakes(matrix, path, word, index)
    for name, entry in matrix.environments.items():
        for factor_name, level_name in entry.levels.items():
            yield from _level_mistakes(matrix, ("environments", name, factor_name), level_name)
    for design in matrix.designs.values():
        yield from _design_mistakes(matrix, design)
    yield from _baseline_name_conflicts(matrix)


def _level_mistakes(matrix: Matrix, path: tuple[str, ...], level: str, *index: int) -> Iterator[Mistake]:
    """Yield the mistake of a factor, the last part of ``path``, or of its level (at ``index`` if it is in a list)."""
    factor = path[-1]
    if factor not in matrix.factors:
        yield Mistake(path, f"no factor {factor!r}", suggestion(factor, matrix.factors), key=True)
    elif level not in (known_levels := matrix.factors[factor].levels):
        yield Mistake((*path, *index), f"factor {factor!r} has no level {level!r}", suggestion(level, known_levels))


def _design_mistakes(matrix: Matrix, design: Design) -> Iterator[Mistake]:
    path = ("designs", design.name)
    for key, kind in _REFERENCE_KINDS.items():
        known_names = matrix.environments if kind == "environment" else matrix.workloads
        for index, word in enumerate(getattr(design, key)):
            if word not in known_names:
                yield Mistake((*path, key, index), f"no {kind} {word!r}", suggestion(word, known_names))
    for index, word in enumerate(design.application):
        if word in design.workloads or word in matrix.environments:
            message = f"{word!r} is already the name of a row of the table"
            yield Mistake((*path, "application", index), message, "rename the workload")
    yield from _reference_value_mistakes(matrix, design)
    if not design.factors and design.baseline not in matrix.environments:
        message = f"the baseline {design.baseline!r} is not an environment"
        yield Mistake((*path, "baseline"), message, "add `baseline: {}` under environments")
    for factor, levels in design.factors.items():
        for index, level in enumerate(levels):
            yield from _level_mistakes(matrix, (*path, "factors", factor), level, index)


def _reference_value_mistakes(matrix: Matrix, design: Design) -> Iterator[Mistake]:
    rows = {*matrix.environments, *matrix.workloads, *RESERVED}
    for name in design.reference_values:
        if name not in rows and name not in (cells := factorial_cells(design)):
            path, remedy = ("designs", design.name, "reference_values", name), suggestion(name, {*rows, *cells})
            yield Mistake(path, f"no environment or workload {name!r}", remedy, key=True)


def _baseline_name_conflicts(matrix: Matrix) -> Iterator[Mistake]:
    """Yield the factorial designs whose first cell has the name of a different environment."""
    levels_by_name = {name: _complete_levels(matrix, entry.levels) for name, entry in matrix.environments.items()}
    for design in matrix.designs.values():
        if not design.factors or not all(design.factors.values()):
            continue
        baseline_levels = {factor: levels[0] for factor, levels in design.factors.items()}
        levels = _complete_levels(matrix, baseline_levels)
        if levels_by_name.setdefault(design.baseline, levels) != levels:
            levels_text = ", ".join(f"{factor}={level}" for factor, level in baseline_levels.items())
            yield Mistake(
                ("designs", design.name, "baseline"),
                f"the first combination of this design ({levels_text}) would be named {design.baseline!r}, "
                "but that is another environment",
                "name it with `baseline: NAME`, or put that environment's level first in each factor",
            )


def _complete_levels(matrix: Matrix, levels: Mapping[str, str]) -> dict[str, str]:
    return {factor.name: levels.get(factor.name, factor.reference) for factor in matrix.factors.values()}
