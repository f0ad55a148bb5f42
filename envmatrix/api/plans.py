"""What a matrix holds and a design would run, without running it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from envmatrix.api.places import PathLike, load_matrix
from envmatrix.engines.catalog import check_engine
from envmatrix.host import this_host
from envmatrix.matrix import Matrix
from envmatrix.matrix.parse import place_in
from envmatrix.plan import Plan, plan_of
from envmatrix.plan.environment import resolve
from envmatrix.say import Say, silent
from envmatrix.trials.experiment import arms_of, confined, design_environments
from envmatrix.trials.requested import Overrides, requested_design, requested_engines


def make_plan(
    design: str, overrides: Overrides, engines: Sequence[str] = (), matrix: PathLike | None = None, say: Say = silent
) -> Plan:
    """Return the plan of a design on this machine: its arms, and each block's order. Raises InputError."""
    whole = load_matrix(matrix)
    chosen = requested_design(whole, design, overrides)
    host = this_host()
    names = tuple(design_environments(whole, chosen, host.facts(confined(chosen, host))))
    return plan_of(chosen, arms_of(chosen, names, requested_engines(chosen, engines, say)))


def check_matrix(named: PathLike | None = None) -> Matrix:
    """Load a matrix and resolve everything in it, as a run would. Raises MatrixError and InputError."""
    matrix, host = load_matrix(named), this_host()
    for name in matrix.environments:
        resolve(matrix, name, host.facts())
    for design in matrix.designs.values():
        for index, engine in enumerate(design.engines):
            key = ("designs", design.name, "engines", index)
            check_engine(engine, partial(place_in, Path(matrix.path), key))
        design_environments(matrix, design, host.facts(confined(design, host)))
    return matrix
