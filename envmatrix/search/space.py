"""The space of a search: every possible cell of levels, without duplicates, and the named recipes among them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from envmatrix.errors import InputError, suggestion
from envmatrix.matrix import Design, Matrix
from envmatrix.matrix.model import cell_name
from envmatrix.plan.environment import Environment, build_environment, resolve_environment

Codes = NDArray[np.int16]
#: Most cells that are enumerated; a search of minutes sees a few hundred.
MAX_CELLS = 60_000


@dataclass(frozen=True, eq=False)
class Space:
    """Cells as rows of level numbers, (cells, factors); row 0 is the baseline, and level 0 of a factor is its level.

    ``levels`` are those of each factor, ``named`` maps environments of the matrix to rows. ``equal`` counts the cells
    left out as duplicates, ``impossible`` those ruled out by ``requires`` or by two levels that set one variable.
    """

    factors: tuple[str, ...]
    levels: tuple[tuple[str, ...], ...]
    codes: Codes
    named: Mapping[str, int]
    equal: int = 0
    impossible: int = 0

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of levels of each factor."""
        return tuple(len(levels) for levels in self.levels)

    def levels_unlike_baseline(self, row: int) -> dict[str, str]:
        """Return factor -> level for every setting that differs from the baseline."""
        columns = zip(self.factors, self.levels, self.codes[row], strict=True)
        return {factor: levels[code] for factor, levels, code in columns if code}

    def all_levels(self, row: int) -> dict[str, str]:
        """Return factor -> level of every factor."""
        columns = zip(self.factors, self.levels, self.codes[row], strict=True)
        return {factor: levels[code] for factor, levels, code in columns}

    @cached_property
    def _row_by_cell(self) -> dict[bytes, int]:
        return {cell.tobytes(): row for row, cell in enumerate(self.codes)}

    def row_of(self, cell: Codes) -> int | None:
        """Return the row of a cell; None if it is impossible, or the duplicate of another."""
        return self._row_by_cell.get(cell.astype(self.codes.dtype).tobytes())

    def rows_without_one_setting(self, row: int) -> list[int]:
        """Return the rows that lack one setting of ``row``; 0, the baseline, if there is no such cell."""
        factors = np.flatnonzero(self.codes[row])
        cells = np.repeat(self.codes[[row]], len(factors), axis=0)
        cells[np.arange(len(factors)), factors] = 0
        return [self.row_of(cell) or 0 for cell in cells]

    def name(self, row: int) -> str:
        """Return the name of a cell: that of its named environment, otherwise its settings."""
        environment_name = next((name for name, named_row in self.named.items() if named_row == row), None)
        return environment_name or cell_name(self.levels_unlike_baseline(row))


def build_space(
    matrix: Matrix, factors: Mapping[str, Sequence[str]], named: Sequence[str], baseline: str, facts: Mapping[str, str]
) -> Space:
    """Return the space of the given levels; ``named`` environments inside it are candidates under their names.

    The baseline's level is added to each factor. Raises InputError for an empty or too large space.
    """
    baseline_levels = resolve_environment(matrix, baseline, facts).levels
    levels = {
        name: _check_levels(matrix, name, factor_levels, baseline_levels) for name, factor_levels in factors.items()
    }
    levels = {name: factor_levels for name, factor_levels in levels.items() if len(factor_levels) > 1}
    cells = int(np.prod([len(factor_levels) for factor_levels in levels.values()], dtype=np.int64)) if levels else 1
    if cells < 2:
        raise InputError(
            f"nothing to search: {_missing_text(factors)} second level",
            remedy="a search uses the levels of the design's `factors` or `environments`: add some there",
        )
    if cells > MAX_CELLS:
        raise InputError(
            f"{cells} configurations are too many to search (at most {MAX_CELLS})",
            remedy="leave out factors or levels: --factors A,B",
        )
    possible = _possible_cells(matrix, levels, baseline_levels, facts)
    codes, cell_keys, equal = _drop_duplicates(possible, len(levels))
    if len(codes) < 2:
        raise InputError(
            "nothing to search: no configuration of these levels is possible except the baseline",
            remedy="check `requires` of the levels",
        )
    rows = {key: row for row, key in enumerate(cell_keys)}
    named_rows: dict[str, int] = {}
    for name in named:
        row = rows.get(_process_key(resolve_environment(matrix, name, facts)))
        if row and row not in named_rows.values():
            named_rows[name] = row
    return Space(tuple(levels), tuple(levels.values()), codes, named_rows, equal, cells - len(possible))


def _missing_text(factors: Mapping[str, Sequence[str]]) -> str:
    return f"{', '.join(factors)} has no" if factors else "no factor has a"


def _check_levels(
    matrix: Matrix, name: str, requested: Sequence[str], baseline_levels: Mapping[str, str]
) -> tuple[str, ...]:
    if name not in matrix.factors:
        raise InputError(f"no factor {name!r}", remedy=suggestion(name, matrix.factors))
    known_levels = matrix.factors[name].levels
    for level in requested:
        if level not in known_levels:
            raise InputError(f"{name} has no level {level!r}", remedy=suggestion(level, known_levels))
    return tuple(dict.fromkeys((baseline_levels[name], *requested)))


def _possible_cells(
    matrix: Matrix, levels: Mapping[str, Sequence[str]], baseline_levels: Mapping[str, str], facts: Mapping[str, str]
) -> dict[tuple[int, ...], Environment]:
    """Return the cells that can be built: the baseline first, then by number of settings."""
    environments: dict[tuple[int, ...], Environment] = {}
    codes = itertools.product(*(range(len(factor_levels)) for factor_levels in levels.values()))
    for code in sorted(codes, key=lambda cell: (sum(map(bool, cell)), cell)):
        cell = {name: factor_levels[index] for (name, factor_levels), index in zip(levels.items(), code, strict=True)}
        complete = {**baseline_levels, **cell}
        if _meets_requirements(matrix, complete):
            try:
                environments[code] = build_environment(matrix, "a cell", complete, facts)
            except InputError:  # two of its levels set the same variable
                continue
    return environments


def _meets_requirements(matrix: Matrix, levels: Mapping[str, str]) -> bool:
    requirements = (matrix.factors[factor].levels[level].requires for factor, level in levels.items())
    return all(
        levels[required_factor] in allowed_levels
        for requires in requirements
        for required_factor, allowed_levels in requires.items()
    )


def _drop_duplicates(possible: Mapping[tuple[int, ...], Environment], factors: int) -> tuple[Codes, list[object], int]:
    """Return the codes and keys of distinct cells (of duplicates the simplest), and the number of duplicates."""
    code_by_key: dict[object, tuple[int, ...]] = {}
    for code, environment in possible.items():
        code_by_key.setdefault(_process_key(environment), code)
    codes = np.array(list(code_by_key.values()), dtype=np.int16).reshape(len(code_by_key), factors)
    return codes, list(code_by_key), len(possible) - len(code_by_key)


def _process_key(environment: Environment) -> object:
    """Return everything that an environment gives its processes, as a key for comparison."""
    variables = frozenset((name, value) for name, value in environment.variables.items() if value is not None)
    placement = (environment.cpus, environment.memory_nodes, environment.cpu_quota)
    return environment.image.name, variables, environment.preload, placement


def design_levels(matrix: Matrix, design: Design) -> dict[str, tuple[str, ...]]:
    """Return the levels that a design crosses, otherwise those of its environments, without image factors."""
    if design.factors:
        return {name: tuple(levels) for name, levels in design.factors.items()}
    levels_by_factor: dict[str, dict[str, None]] = {}
    for name in (*design.environments, *design.cumulative):
        for factor, level in resolve_environment(matrix, name, {}).levels.items():
            levels_by_factor.setdefault(factor, {})[level] = None
    return {
        name: tuple(levels)
        for name, levels in levels_by_factor.items()
        if not matrix.factors[name].changes_installed_software
    }


def select_factors(levels: Mapping[str, tuple[str, ...]], factors: Sequence[str] | None) -> dict[str, tuple[str, ...]]:
    """Return the levels of the requested ``factors`` (None: all); raise an InputError for an unknown one."""
    for name in factors or ():
        if name not in levels:
            raise InputError(f"--factors: no factor {name!r} to search", remedy=suggestion(name, levels))
    return {name: factor_levels for name, factor_levels in levels.items() if not factors or name in factors}
