"""What the command line asks for, laid over the design of matrix.yaml."""

from __future__ import annotations

import argparse
from typing import Any

from pydantic import ValidationError

from envmatrix.engines.catalog import ENGINES, choose_engine
from envmatrix.errors import InputError, suggestion
from envmatrix.matrix import Design, Matrix
from envmatrix.matrix.model import too_many_blocks
from envmatrix.say import Say
from envmatrix.trials.experiment import find_design

_OVERRIDES = ("seed", "budget", "target", "min_blocks", "max_blocks", "workloads", "environments")


def requested_design(matrix: Matrix, arguments: argparse.Namespace) -> Design:
    """Return the design named on the command line with its overrides laid over it."""
    design = find_design(matrix, arguments.design)
    given: dict[str, Any] = {key: value for key in _OVERRIDES if (value := getattr(arguments, key, None)) is not None}
    if not given:
        return design
    if "environments" in given:
        _known("environment", given["environments"], matrix.environments)
        given |= {"factors": {}, "ladder": ()}
    if "workloads" in given:
        _known("workload", given["workloads"], matrix.workloads)
    try:
        asked = Design.model_validate({**design.model_dump(), **given})
    except ValidationError as error:
        problem = error.errors()[0]
        option = str(problem["loc"][0]).replace("_", "-")
        raise InputError(f"--{option}: {problem['msg'].removeprefix('Value error, ')}") from error
    if "min_blocks" in given and (said := too_many_blocks(asked)):  # --max-blocks alone: a short look
        raise InputError(f"--min-blocks: {said}", remedy="lower --min-blocks, or raise --max-blocks")
    return asked


def _known(kind: str, words: list[str], known: Any) -> None:
    for word in words:
        if word not in known:
            raise InputError(f"no {kind} {word!r}", remedy=suggestion(word, known))


def requested_engines(design: Design, arguments: argparse.Namespace, say: Say) -> tuple[str, ...]:
    """Return the names of the engines to use: those named, else the design's."""
    named = tuple(arguments.engine or design.engines)
    found = tuple(choose_engine(say) if name == "auto" else name for name in named)
    _known("engine", list(found), ENGINES)
    return tuple(dict.fromkeys(found))
