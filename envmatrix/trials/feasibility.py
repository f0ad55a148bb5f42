"""What of a design can be known to fail before anything is built or fetched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path, PurePath

from envmatrix.engines.base import Engine, Prepared
from envmatrix.errors import InputError
from envmatrix.matrix.model import Workload
from envmatrix.matrix.program import of_python
from envmatrix.plan import Arm
from envmatrix.plan.environment import Environment
from envmatrix.system import bench_options

#: Options of `uv run` with which it leaves the project's environment as it is.
_SYNCS_NOT = frozenset({"--no-sync", "--no-project", "--isolated"})
_FOLDER = "`files:` names the folder that a program lies in; on the command line: cd there first"


def check_shares(
    arms: Iterable[Arm], environments: Mapping[str, Environment], workloads: Mapping[str, Workload]
) -> None:
    """Raise InputError for a batch that the processes of one of its environments cannot share."""
    for arm in arms:
        workload, variables = workloads[arm.workload], environments[arm.runs].variables
        given = {name: value for name, value in variables.items() if value is not None and "{" not in value}
        try:
            if not workload.command:
                bench_options.check_shares(workload.options, given)
        except bench_options.WrongValueError as error:
            raise InputError(
                f"workload {arm.workload!r} in environment {arm.runs!r}: {error.message}", remedy=error.remedy
            ) from error


def lacking_torch(
    arms: Iterable[Arm],
    environments: Mapping[str, Environment],
    workloads: Mapping[str, Workload],
    ready: Mapping[tuple[str, str], Prepared],
) -> dict[str, str]:
    """Return arm name -> why its Python cannot run the built-in benchmark; a program of one's own may need no torch."""
    found = {arm: ready.get((environments[arm.runs].image_key, arm.engine)) for arm in arms}
    return {
        arm.name: prepared.without_torch
        for arm, prepared in found.items()
        if prepared and prepared.without_torch and not workloads[arm.workload].command
    }


def lacking_quota(arms: Iterable[Arm], environments: Mapping[str, Environment], launcher: str) -> dict[str, str]:
    """Return arm name -> why a ``launcher`` that starts trials elsewhere ('': there is none) cannot limit CPU time."""
    if not launcher:
        return {}
    reason = f"`cpu_quota` cannot be had with launcher {launcher}: no control group may be made in its jobs"
    return {arm.name: reason for arm in arms if environments[arm.runs].cpu_quota is not None}


def check_homes(workloads: Mapping[str, Workload], engines: Mapping[str, Engine]) -> None:
    """Raise InputError for a program that wants its user's home where containers have none of it."""
    for name, workload in workloads.items():
        closed = next((engine.name for engine in engines.values() if not engine.shares_files), None)
        if workload.home == "real" and closed:
            raise InputError(
                f"workload {name!r}: `home: real` cannot be had with engine {closed}: it shows no home of this machine",
                remedy="name the folders that the program reads with `mounts:`",
            )


def placed_workload(workload: Workload, home: Path) -> Workload:
    """Return a workload with the absolute path of its program's folder (by default, that of matrix.yaml).

    Raises InputError for a folder or a program that is not there.
    """
    if not workload.command:
        return workload
    folder = (home / (workload.files or ".")).resolve()
    if not folder.is_dir():
        raise InputError(
            f"workload {workload.name!r}: files: there is no folder {folder}",
            remedy="name the folder that holds the program, relative to matrix.yaml",
        )
    check_program(workload, folder)
    absent = next((path for path in workload.mounts if not Path(path).is_dir()), None)
    if absent:
        raise InputError(f"workload {workload.name!r}: mounts: there is no folder {absent}", remedy="name one that is")
    return workload.model_copy(update={"files": str(folder)})


def check_program(workload: Workload, folder: Path) -> None:
    """Raise InputError for a script that a command names by a relative path and that is not in its folder.

    And for `uv run`, which installs a trial's copy of the project into the user's own environment.
    """
    program, *rest = workload.command
    if program == "uv" and rest[:1] == ["run"] and not _SYNCS_NOT & set(rest):
        raise InputError(
            f"workload {workload.name!r}: `uv run` installs what it finds in a trial's folder into your own .venv",
            remedy="name its Python: a factor's level `{interpreter: .venv/bin/python}`, and `command: [python, ...]`",
        )
    _, given = of_python(rest) if PurePath(program).name.startswith("python") else ("", "")
    script = given if given.endswith(".py") else program if "/" in program else ""
    if PurePath(script).parts[:1] == ("..",):
        raise InputError(
            f"workload {workload.name!r}: {script} lies outside of {folder}, which a trial has nothing beside",
            remedy=_FOLDER,
        )
    if not script or (folder / script).is_file():
        return
    if PurePath(script).is_absolute() and script == program:  # an image may have it
        return
    near = get_close_matches(PurePath(script).name, [path.name for path in folder.iterdir()], n=1)
    raise InputError(
        f"workload {workload.name!r}: there is no {script} in {folder}",
        remedy=f"did you mean {near[0]}?" if near else _FOLDER,
    )
