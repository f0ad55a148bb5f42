"""Check that every word that names something in another section, or another file, is there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from envmatrix.errors import suggestion
from envmatrix.matrix.model import Design, Matrix, cells
from envmatrix.matrix.yaml_positions import Key

_KINDS = {
    "environments": "environment",
    "cumulative": "environment",
    "workloads": "workload",
    "application": "workload",
}
RESERVED = {"control": "the second copy of the baseline has this name"}


class Wrong(Protocol):
    """Notes a mistake at a path of the matrix."""

    def __call__(self, path: Key, message: str, remedy: str = "", *, key: bool = False) -> None:
        """With ``key`` the place is that of the key."""


def check_names(wrong: Wrong, matrix: Matrix, *, begun: bool = False) -> None:
    """Check that every word that names something in another section is there.

    ``begun``: the matrix is that of a run, whose names were good when it began, as its other designs' are no matter.
    """
    _check_levels(wrong, matrix)
    for name, entry in matrix.environments.items():
        for factor, level in entry.levels.items():
            _check_level_word(wrong, matrix, ("environments", name), factor, level)
    for design in matrix.designs.values():
        _check_design(wrong, matrix, design)
    if not begun:
        _check_baselines(wrong, matrix)


def _check_baselines(wrong: Wrong, matrix: Matrix) -> None:
    """Refuse a factorial design whose first cell has the name of something else: a name means one environment."""
    named = {name: _all_levels(matrix, entry.levels) for name, entry in matrix.environments.items()}
    for design in matrix.designs.values():
        if not design.factors or not all(design.factors.values()):
            continue
        first = {factor: levels[0] for factor, levels in design.factors.items()}
        levels = _all_levels(matrix, first)
        if named.setdefault(design.baseline, levels) != levels:
            said = ", ".join(f"{factor}={level}" for factor, level in first.items())
            wrong(
                ("designs", design.name, "baseline"),
                f"the first cell of this design ({said}) would be called {design.baseline!r}, which is another "
                "environment",
                "give it a name of its own with `baseline: NAME`, or begin each factor with that environment's level",
            )


def _all_levels(matrix: Matrix, chosen: Mapping[str, str]) -> dict[str, str]:
    return {factor.name: chosen.get(factor.name, factor.reference) for factor in matrix.factors.values()}


def _check_design(wrong: Wrong, matrix: Matrix, design: Design) -> None:
    path = ("designs", design.name)
    for key, kind in _KINDS.items():
        known = matrix.environments if kind == "environment" else matrix.workloads
        for index, word in enumerate(getattr(design, key)):
            if word not in known:
                wrong((*path, key, index), f"no {kind} {word!r}", suggestion(word, known))
    for index, word in enumerate(design.application):
        if word in design.workloads or word in matrix.environments:
            remedy = "give the workload another name"
            wrong((*path, "application", index), f"{word!r} already names a row of the table", remedy)
    _check_reference_values(wrong, matrix, design)
    if not design.factors and design.baseline not in matrix.environments:
        remedy = "add `baseline: {}` under environments"
        wrong((*path, "baseline"), f"no environment {design.baseline!r} to compare with", remedy)
    for factor, levels in design.factors.items():
        for index, level in enumerate(levels):
            _check_level_word(wrong, matrix, (*path, "factors"), factor, level, index)


def _check_reference_values(wrong: Wrong, matrix: Matrix, design: Design) -> None:
    known = {*matrix.environments, *matrix.workloads, *RESERVED}
    unknown = [name for name in design.reference_values if name not in known]
    of_cells = cells(design) if unknown else {}
    for name in unknown:
        if name not in of_cells:
            path = ("designs", design.name, "reference_values", name)
            wrong(path, f"no environment or workload {name!r}", suggestion(name, {*known, *of_cells}), key=True)


def _check_levels(wrong: Wrong, matrix: Matrix) -> None:
    for factor in matrix.factors.values():
        for level_name, level in factor.levels.items():
            path = ("factors", factor.name, level_name, "requires")
            for other, allowed in level.requires.items():
                for index, word in enumerate(allowed):
                    _check_level_word(wrong, matrix, path, other, word, index)


def _check_level_word(
    wrong: Wrong, matrix: Matrix, path: Key, factor: str, level: str, index: int | None = None
) -> None:
    inner = (*path, factor)
    if factor not in matrix.factors:
        wrong(inner, f"no factor {factor!r}", suggestion(factor, matrix.factors), key=True)
    elif level not in matrix.factors[factor].levels:
        place = inner if index is None else (*inner, index)
        wrong(
            place,
            f"factor {factor!r} has no level {level!r}",
            suggestion(level, matrix.factors[factor].levels),
        )
