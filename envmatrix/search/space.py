"""The space of a search: every cell of levels that can be, each once, and the named recipes among them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envmatrix.errors import InputError, suggestion
from envmatrix.matrix import Matrix
from envmatrix.matrix.model import cell_name
from envmatrix.plan.environment import Environment, build, resolve

Codes = NDArray[np.int16]
#: More cells than this are not written out: a search of minutes sees a few hundred.
MOST_CELLS = 60_000


@dataclass(frozen=True, eq=False)
class Space:
    """Cells as rows of level numbers, (cells, factors); row 0 is the baseline, level 0 of every factor is its level.

    ``levels`` are each factor's, ``named`` the matrix' environments by their rows, ``equal`` how many cells were left
    out because their settings are those of another, ``impossible`` how many cannot be (``requires``, two levels that
    set one variable).
    """

    factors: tuple[str, ...]
    levels: tuple[tuple[str, ...], ...]
    codes: Codes
    named: Mapping[str, int]
    equal: int = 0
    impossible: int = 0

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many levels each factor has."""
        return tuple(len(levels) for levels in self.levels)

    def settings(self, row: int) -> dict[str, str]:
        """Return factor -> level of what differs from the baseline."""
        chosen = zip(self.factors, self.levels, self.codes[row], strict=True)
        return {factor: levels[code] for factor, levels, code in chosen if code}

    def chosen(self, row: int) -> dict[str, str]:
        """Return factor -> level of every factor."""
        chosen = zip(self.factors, self.levels, self.codes[row], strict=True)
        return {factor: levels[code] for factor, levels, code in chosen}

    def name(self, row: int) -> str:
        """Return what a cell is called: the environment of that name, else its settings."""
        known = next((name for name, at in self.named.items() if at == row), None)
        return known or cell_name(self.settings(row))


def space_of(
    matrix: Matrix, factors: Mapping[str, Sequence[str]], named: Sequence[str], baseline: str, facts: Mapping[str, str]
) -> Space:
    """Return the space of the levels given; ``named`` environments that lie in it are candidates by their names.

    The baseline's level of a factor is always among its levels. Raises InputError for an empty or too large space.
    """
    home = resolve(matrix, baseline, facts).levels
    levels = {name: _levels(matrix, name, chosen, home) for name, chosen in factors.items()}
    levels = {name: chosen for name, chosen in levels.items() if len(chosen) > 1}
    cells = int(np.prod([len(chosen) for chosen in levels.values()], dtype=np.int64)) if levels else 1
    if cells < 2:
        raise InputError(
            f"there is nothing to search: {_lacking(factors)} second level",
            remedy="a search has the levels of the design's `factors`, or of its `environments`: name some there",
        )
    if cells > MOST_CELLS:
        raise InputError(
            f"{cells} cells are too many to search ({MOST_CELLS} at most)", remedy="leave levels out: --factors A,B"
        )
    possible = _possible(matrix, levels, home, facts)
    codes, kept, equal = _each_once(possible, len(levels))
    if len(codes) < 2:
        raise InputError(
            "there is nothing to search: beside the baseline no cell of these levels is possible",
            remedy="look at `requires` of the levels",
        )
    rows = {key: row for row, key in enumerate(kept)}
    found: dict[str, int] = {}
    for name in named:
        row = rows.get(_key(resolve(matrix, name, facts)))
        if row and row not in found.values():
            found[name] = row
    return Space(tuple(levels), tuple(levels.values()), codes, found, equal, cells - len(possible))


def _lacking(factors: Mapping[str, Sequence[str]]) -> str:
    return f"of {', '.join(factors)} there is no" if factors else "no factor has a"


def _levels(matrix: Matrix, name: str, chosen: Sequence[str], home: Mapping[str, str]) -> tuple[str, ...]:
    if name not in matrix.factors:
        raise InputError(f"no factor {name!r}", remedy=suggestion(name, matrix.factors))
    known = matrix.factors[name].levels
    for level in chosen:
        if level not in known:
            raise InputError(f"{name} has no level {level!r}", remedy=suggestion(level, known))
    return tuple(dict.fromkeys((home[name], *chosen)))


def _possible(
    matrix: Matrix, levels: Mapping[str, Sequence[str]], home: Mapping[str, str], facts: Mapping[str, str]
) -> dict[tuple[int, ...], Environment]:
    """Return the cells that can be built, the baseline first, those with fewer settings before those with more."""
    found: dict[tuple[int, ...], Environment] = {}
    codes = itertools.product(*(range(len(chosen)) for chosen in levels.values()))
    for code in sorted(codes, key=lambda cell: (sum(map(bool, cell)), cell)):
        cell = {name: chosen[at] for (name, chosen), at in zip(levels.items(), code, strict=True)}
        complete = {**home, **cell}
        if _is_required(matrix, complete):
            try:
                found[code] = build(matrix, "a cell", complete, facts)
            except InputError:  # two of its levels set the same variable
                continue
    return found


def _is_required(matrix: Matrix, levels: Mapping[str, str]) -> bool:
    wanted = (matrix.factors[factor].levels[level].requires for factor, level in levels.items())
    return all(levels[other] in allowed for requires in wanted for other, allowed in requires.items())


def _each_once(possible: Mapping[tuple[int, ...], Environment], factors: int) -> tuple[Codes, list[object], int]:
    """Return the codes and keys of cells whose settings differ: of equal ones that with the fewest levels named."""
    first: dict[object, tuple[int, ...]] = {}
    for code, environment in possible.items():
        first.setdefault(_key(environment), code)
    codes = np.array(list(first.values()), dtype=np.int16).reshape(len(first), factors)
    return codes, list(first), len(possible) - len(first)


def _key(environment: Environment) -> object:
    """Return all that a process is given by an environment."""
    variables = frozenset((name, value) for name, value in environment.variables.items() if value is not None)
    placed = (environment.cpus, environment.memory_nodes, environment.cpu_quota)
    return environment.image.name, variables, environment.preload, placed
