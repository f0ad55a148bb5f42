"""What a matrix holds and a design would run, without running it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from envmatrix.api.places import PathLike, load_matrix
from envmatrix.engines.base import Engine
from envmatrix.engines.catalog import check_engine, find_engine
from envmatrix.errors import EnvmatrixError, InputError
from envmatrix.matrix import Matrix
from envmatrix.matrix.include import is_packaged
from envmatrix.matrix.parse import of_user, place_in
from envmatrix.matrix.yaml_positions import Key
from envmatrix.plan import Plan, plan_of
from envmatrix.plan.environment import ClashError, resolve
from envmatrix.system.host import this_host
from envmatrix.system.progress import ProgressCallback, silent
from envmatrix.trials.experiment import PLACEMENTS, arms_of, check_placement, confined, design_environments
from envmatrix.trials.feasibility import placed_workload
from envmatrix.trials.interleaving_eligibility import with_schedule
from envmatrix.trials.overrides import Overrides, requested_design, requested_engines


def make_plan(
    design: str,
    overrides: Overrides,
    engines: Sequence[str] = (),
    matrix: PathLike | None = None,
    progress: ProgressCallback = silent,
) -> Plan:
    """Return the plan of a design on this machine: its arms, and each block's order. Raises InputError."""
    whole = load_matrix(matrix, progress)
    chosen = requested_design(whole, design, overrides)
    host = this_host()
    environments = design_environments(whole, chosen, host.facts(confined(chosen, host)))
    kinds = {name: _engine(name) for name in requested_engines(chosen, engines, progress)}
    arms = arms_of(chosen, tuple(environments), tuple(kinds))
    return plan_of(*with_schedule(chosen, arms, environments, whole.workloads, kinds))


def _engine(name: str) -> Engine | None:
    """Return an engine, None for one that is broken here: a plan is shown all the same."""
    try:
        return find_engine(name)
    except EnvmatrixError:
        return None


def check_matrix(named: PathLike | None = None) -> Matrix:
    """Load a matrix and resolve everything in it, as a run would. Raises MatrixError and InputError."""
    matrix, host = load_matrix(named), this_host()
    for name in matrix.environments:
        with _placed(matrix, ("environments", name)):
            environment = resolve(matrix, name, host.facts())
        for kind in PLACEMENTS:
            with _placed(matrix, _of_placement(matrix, environment.levels, kind)):
                check_placement([environment], host, [kind])
    for workload in matrix.workloads.values() if Path(matrix.path).is_file() else ():  # beside a pipe lies nothing
        with _placed(matrix, ("workloads", workload.name, "command")):
            placed_workload(workload, Path(matrix.path).resolve().parent)
    for design in matrix.designs.values():
        for index, engine in enumerate(design.engines):
            key = ("designs", design.name, "engines", index)
            check_engine(engine, partial(place_in, Path(matrix.path), key))
        with _placed(matrix, ("designs", design.name, "cpus")):
            cpus = confined(design, host)
        with _placed(matrix, ("designs", design.name)):
            design_environments(matrix, design, host.facts(cpus))
    return matrix


def _of_placement(matrix: Matrix, levels: Mapping[str, str], kind: str) -> Key:
    """Return where the CPUs or memory nodes of an environment stand: in the last of its levels that has any."""
    having = [pair for pair in levels.items() if getattr(matrix.factors[pair[0]].levels[pair[1]], kind) is not None]
    return ("factors", *having[-1], kind) if having else ()


@contextmanager
def _placed(matrix: Matrix, key: Key) -> Iterator[None]:
    """Give an error that has no place the one of ``key``."""
    path = Path(matrix.path)
    try:
        yield
    except ClashError as error:
        setting = [("factors", factor.name, level, "env", error.variable)
                   for factor in matrix.factors.values() for level, body in factor.levels.items()
                   if error.variable in body.env]  # fmt: skip
        places = [place_in(path, one, key=True) for one in setting]
        error.where = next((place for place in places if not is_packaged(place.file)), place_in(path, key))
        raise of_user(path, error) from error
    except InputError as error:
        error.where = error.where or place_in(path, key)
        raise of_user(path, error) from error
