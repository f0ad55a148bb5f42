"""What is asked for beside matrix.yaml, laid over one of its designs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from pydantic import ValidationError

from envmatrix.engines.catalog import AUTO, ENGINES, choose_engine
from envmatrix.errors import InputError, suggestion
from envmatrix.matrix import Design, Matrix
from envmatrix.matrix.model import too_many_blocks
from envmatrix.system.progress import ProgressCallback
from envmatrix.system.validation_messages import in_words
from envmatrix.trials.experiment import find_design


@dataclass(frozen=True)
class Overrides:
    """What lies over a design: texts as matrix.yaml has them ('10m', '2%') or values; None: as the design says."""

    seed: int | None = None
    budget: float | str | None = None
    target: float | str | None = None
    min_blocks: int | None = None
    max_blocks: int | None = None
    workloads: Sequence[str] | None = None
    environments: Sequence[str] | None = None


def requested_design(matrix: Matrix, name: str, asked: Overrides) -> Design:
    """Return the design called ``name`` with what was asked laid over it; an InputError names what cannot be."""
    design = find_design(matrix, name)
    given = {key: value for key, value in asdict(asked).items() if value is not None}
    if not given:
        return design
    if asked.budget is not None:
        given["claims_first"] = False  # who says when it ends means that
    if asked.environments is not None:
        _known("environment", asked.environments, matrix.environments)
        given |= {"factors": {}, "cumulative": ()}
    if asked.workloads is not None:
        _known("workload", asked.workloads, matrix.workloads)
    found = overridden(design, given)
    if "min_blocks" in given and (said := too_many_blocks(found)):  # max_blocks alone: a short look
        raise InputError(f"--min-blocks: {said}", remedy="lower --min-blocks, or raise --max-blocks")
    return found


def overridden(design: Design, given: Mapping[str, object]) -> Design:
    """Return a design with other values; an InputError names, as an option, the one that cannot be."""
    try:
        return Design.model_validate({**design.model_dump(), **given})
    except ValidationError as error:
        problem = error.errors()[0]
        option = str(problem["loc"][0]).replace("_", "-")
        raise InputError(f"--{option}: {in_words(problem)}") from error


def _known(kind: str, words: Iterable[str], known: Iterable[str]) -> None:
    for word in words:
        if word not in known:
            raise InputError(f"no {kind} {word!r}", remedy=suggestion(word, known))


def requested_engines(design: Design, named: Sequence[str] | None, progress: ProgressCallback) -> tuple[str, ...]:
    """Return the names of the engines to use: those ``named``, else the design's; 'auto' is the first one here."""
    found = tuple(choose_engine(progress) if name == AUTO else name for name in (named or design.engines))
    if not set(found) <= set(ENGINES.built_in):
        _known("engine", found, ENGINES.names())
    return tuple(dict.fromkeys(found))
