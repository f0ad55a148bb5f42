"""Check a matrix and show the plan of a design, without running anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from envmatrix.api.matrix_and_run_lookup import PathLike, load_matrix
from envmatrix.engines.base import Engine
from envmatrix.engines.catalog import check_engine, find_engine
from envmatrix.errors import EnvmatrixError, InputError
from envmatrix.matrix import Matrix
from envmatrix.matrix.include import is_packaged
from envmatrix.matrix.parse import locate_in_user_matrix, locate_key
from envmatrix.matrix.yaml_positions import Key
from envmatrix.plan import Plan, plan_of
from envmatrix.plan.environment import VariableConflictError, resolve_environment
from envmatrix.system.host import this_host
from envmatrix.system.progress import ProgressCallback, silent
from envmatrix.trials.bisection import bisected
from envmatrix.trials.experiment_setup import (
    PLACEMENT_NAMES,
    check_placement,
    confined_cpus,
    design_environments,
    make_design_arms,
)
from envmatrix.trials.feasibility import resolve_program_folder
from envmatrix.trials.interleaving_eligibility import decide_schedule
from envmatrix.trials.overrides import Overrides, apply_overrides, resolve_engine_names


def make_plan(
    design: str,
    overrides: Overrides,
    engines: Sequence[str] = (),
    matrix: PathLike | None = None,
    progress: ProgressCallback = silent,
) -> Plan:
    """Return a design's plan on this machine: its arms and the order in each block. Raises InputError."""
    whole = load_matrix(matrix, progress)
    selected_design = apply_overrides(whole, design, overrides)
    host = this_host()
    environments = design_environments(whole, selected_design, host.facts(confined_cpus(selected_design, host)))
    kinds = {name: _find_usable_engine(name) for name in resolve_engine_names(selected_design, engines, progress)}
    arms = make_design_arms(selected_design, tuple(environments), tuple(kinds))
    return plan_of(*decide_schedule(selected_design, arms, environments, whole.workloads, kinds))


def bisected_matrix(
    design: str, first: str, last: str, matrix: PathLike | None = None, progress: ProgressCallback = silent
) -> Matrix:
    """Return a matrix whose ``design`` goes from one environment to another, one change at a time.

    Raises InputError for an unknown name, or if the two are the same.
    """
    changed = bisected(load_matrix(matrix, progress), design, first, last)
    steps = changed.designs[design].cumulative
    progress(f"from {first} to {last}, one change at a time: {', '.join(steps)}")
    return changed


def _find_usable_engine(name: str) -> Engine | None:
    """Return an engine, or None if it does not work here, so that a plan is shown anyway."""
    try:
        return find_engine(name)
    except EnvmatrixError:
        return None


def check_matrix(named: PathLike | None = None) -> Matrix:
    """Load a matrix and resolve everything in it. What needs a GPU is valid without one; a run of it is refused.

    Raises MatrixError and InputError.
    """
    matrix, host = load_matrix(named), this_host()
    for name in matrix.environments:
        with _locate_errors(matrix, ("environments", name)):
            environment = resolve_environment(matrix, name, host.facts_with_stand_ins())
        for kind in PLACEMENT_NAMES:
            with _locate_errors(matrix, _placement_key(matrix, environment.levels, kind)):
                check_placement([environment], host, [kind])
    for workload in matrix.workloads.values() if Path(matrix.path).is_file() else ():  # a pipe has no folder
        with _locate_errors(matrix, ("workloads", workload.name, "command")):
            resolve_program_folder(workload, Path(matrix.path).resolve().parent)
    for design in matrix.designs.values():
        for index, engine in enumerate(design.engines):
            key = ("designs", design.name, "engines", index)
            check_engine(engine, partial(locate_key, Path(matrix.path), key))
        with _locate_errors(matrix, ("designs", design.name, "cpus")):
            cpus = confined_cpus(design, host)
        with _locate_errors(matrix, ("designs", design.name)):
            design_environments(matrix, design, host.facts_with_stand_ins(cpus))
    return matrix


def _placement_key(matrix: Matrix, levels: Mapping[str, str], kind: str) -> Key:
    """Return the key of an environment's CPUs or memory nodes: in the last of its levels that has them."""
    placed_levels = [
        pair for pair in levels.items() if getattr(matrix.factors[pair[0]].levels[pair[1]], kind) is not None
    ]
    return ("factors", *placed_levels[-1], kind) if placed_levels else ()


@contextmanager
def _locate_errors(matrix: Matrix, key: Key) -> Iterator[None]:
    """Add the location of ``key`` to an error without one."""
    path = Path(matrix.path)
    try:
        yield
    except VariableConflictError as error:
        setting = [
            ("factors", factor.name, level, "env", error.variable)
            for factor in matrix.factors.values()
            for level, body in factor.levels.items()
            if error.variable in body.env
        ]
        places = [locate_key(path, setting_key, key=True) for setting_key in setting]
        error.where = next((place for place in places if not is_packaged(place.file)), locate_key(path, key))
        raise locate_in_user_matrix(path, error) from error
    except InputError as error:
        error.where = error.where or locate_key(path, key)
        raise locate_in_user_matrix(path, error) from error
