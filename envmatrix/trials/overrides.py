"""Values from the command line that override a design of matrix.yaml."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from envmatrix.engines.catalog import AUTO, ENGINES, check_engine, choose_engine
from envmatrix.errors import InputError, suggestion
from envmatrix.matrix import Design, Matrix
from envmatrix.matrix.model import unreachable_verdict_reason
from envmatrix.system.progress import ProgressCallback
from envmatrix.system.validation_messages import validation_message
from envmatrix.trials.experiment_setup import find_design

#: A design, or a part of one.
Part = TypeVar("Part", bound=BaseModel)


@dataclass(frozen=True)
class Overrides:
    """Overrides of a design: texts as in matrix.yaml ('10m', '2%') or values; None: the design's."""

    seed: int | None = None
    budget: float | str | None = None
    target: float | str | None = None
    min_blocks: int | None = None
    max_blocks: int | None = None
    workloads: Sequence[str] | None = None
    environments: Sequence[str] | None = None


def apply_overrides(matrix: Matrix, name: str, overrides: Overrides) -> Design:
    """Return the design called ``name`` with overrides applied. Raises InputError for invalid ones."""
    design = find_design(matrix, name)
    changes = {key: value for key, value in asdict(overrides).items() if value is not None}
    if not changes:
        return design
    if overrides.budget is not None:
        changes["claims_first"] = False  # an explicit budget is a strict limit
    if overrides.environments is not None:
        _check_known("environment", overrides.environments, matrix.environments)
        changes |= {"factors": {}, "cumulative": ()}
    if overrides.workloads is not None:
        _check_known("workload", overrides.workloads, matrix.workloads)
    changed_design = with_changed_values(design, changes)
    if "min_blocks" in changes and (
        message := unreachable_verdict_reason(changed_design)
    ):  # only max_blocks: a deliberately short run
        raise InputError(f"--min-blocks: {message}", remedy="lower --min-blocks, or raise --max-blocks")
    return changed_design


def with_changed_values(part: Part, changes: Mapping[str, object]) -> Part:
    """Return a part with changed values (None: unchanged). Raises InputError with the option of an invalid one."""
    changes = {name: value for name, value in changes.items() if value is not None}
    try:
        return type(part).model_validate({**part.model_dump(), **changes})
    except ValidationError as error:
        problem = error.errors()[0]
        option = str(problem["loc"][0]).replace("_", "-")
        raise InputError(f"--{option}: {validation_message(problem)}") from error


def _check_known(kind: str, words: Iterable[str], known_names: Iterable[str]) -> None:
    for word in words:
        if word not in known_names:
            raise InputError(f"no {kind} {word!r}", remedy=suggestion(word, known_names))


def resolve_engine_names(design: Design, named: Sequence[str] | None, progress: ProgressCallback) -> tuple[str, ...]:
    """Return the names of the engines to use: ``named``, otherwise the design's; 'auto' is the first one available."""
    engine_names = tuple(choose_engine(progress) if name == AUTO else name for name in (named or design.engines))
    for name in engine_names:
        if name not in ENGINES.built_in:
            check_engine(name)
    return tuple(dict.fromkeys(engine_names))
