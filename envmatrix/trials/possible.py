"""What of a design can be known to fail before anything is built or fetched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from envmatrix import benchmark
from envmatrix.errors import InputError
from envmatrix.matrix.model import Workload
from envmatrix.plan import Arm
from envmatrix.plan.environment import Environment


def check_shares(
    arms: Iterable[Arm], environments: Mapping[str, Environment], workloads: Mapping[str, Workload]
) -> None:
    """Raise InputError for a batch that the processes of one of its environments cannot share."""
    for arm in arms:
        workload, variables = workloads[arm.workload], environments[arm.runs].variables
        given = {name: value for name, value in variables.items() if value is not None and "{" not in value}
        try:
            if not workload.command:
                benchmark.check_shares(workload.options, given)
        except benchmark.WrongValueError as error:
            raise InputError(
                f"workload {arm.workload!r} in environment {arm.runs!r}: {error.message}", remedy=error.remedy
            ) from error


def placed_workload(workload: Workload, home: Path) -> Workload:
    """Return a workload with the absolute path of its program's folder (by default, that of matrix.yaml)."""
    if not workload.command:
        return workload
    folder = (home / (workload.files or ".")).resolve()
    if not folder.is_dir():
        raise InputError(
            f"workload {workload.name!r}: files: there is no folder {folder}",
            remedy="name the folder that holds the program, relative to matrix.yaml",
        )
    return workload.model_copy(update={"files": str(folder)})
