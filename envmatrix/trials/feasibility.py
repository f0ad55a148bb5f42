"""Checks of a design for certain failures, before anything is built or downloaded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path, PurePath

from envmatrix.engines.base import Engine, Prepared
from envmatrix.errors import InputError
from envmatrix.matrix.model import Workload
from envmatrix.plan import Arm
from envmatrix.plan.environment import Environment, Image
from envmatrix.system import bench_options
from envmatrix.system.cuda_driver import too_old
from envmatrix.trials.user_program.command_line_check import python_target

#: Options with which `uv run` leaves the project's environment unchanged.
_NO_SYNC_OPTIONS = frozenset({"--no-sync", "--no-project", "--isolated"})
#: Back ends of torch.compile (an option of workloads) that compile C++.
_CPP_COMPILES = ("inductor", "environment")
_FOLDER_REMEDY = "set `files:` to the folder of the program; on the command line, run envmatrix from that folder"


def check_batch_split(
    arms: Iterable[Arm], environments: Mapping[str, Environment], workloads: Mapping[str, Workload]
) -> None:
    """Raise InputError for a batch that the processes of one of its environments cannot share."""
    for arm in arms:
        workload, variables = workloads[arm.workload], environments[arm.runs].variables
        set_variables = {name: value for name, value in variables.items() if value is not None and "{" not in value}
        try:
            if not workload.command:
                bench_options.check_divisibility(workload.options, set_variables)
        except bench_options.WrongValueError as error:
            raise InputError(
                f"workload {arm.workload!r} in environment {arm.runs!r}: {error.message}", remedy=error.remedy
            ) from error


def arms_that_cannot_run(
    arms: Iterable[Arm],
    environments: Mapping[str, Environment],
    workloads: Mapping[str, Workload],
    prepared_images: Mapping[tuple[str, str], Prepared],
    launcher: str,
) -> dict[str, str]:
    """Return arm name -> why its trials would certainly fail; ``launcher`` ('': trials run on this machine)."""
    reasons: dict[str, str] = {}
    for arm in arms:
        environment, workload = environments[arm.runs], workloads[arm.workload]
        prepared = prepared_images.get((environment.image_key, arm.engine))
        reason = _launcher_reason(environment, launcher) or (
            prepared and _image_reason(environment, workload, prepared)
        )
        if reason:
            reasons[arm.name] = reason
    return reasons


def _launcher_reason(environment: Environment, launcher: str) -> str:
    """Return what of an environment a launcher cannot apply; otherwise ''."""
    if environment.srun and launcher != "slurm":
        return f"`srun: {' '.join(environment.srun)}` needs `--launcher slurm`"
    if environment.cpu_quota is not None and launcher:
        return f"launcher {launcher} does not support `cpu_quota`: its jobs may not create a control group"
    return ""


def _image_reason(environment: Environment, workload: Workload, prepared: Prepared) -> str:
    """Return what an image lacks for a workload; otherwise ''. A user's program may not need torch."""
    if workload.options.get("compile") in _CPP_COMPILES and not _can_compile(environment.image, prepared.facts):
        return (
            f"torch.compile needs a C++ compiler and Python's headers, which image {prepared.image} lacks\n"
            "  -> add `apt: [g++, libpython3-dev]` to its level of `torch` in matrix.yaml, or use `--engine local`"
        )
    return "" if workload.command else prepared.without_torch


def _can_compile(image: Image, facts: Mapping[str, str]) -> bool:
    """Return False if an image certainly lacks a compiler; torch 1 cannot compile with one either.

    Only images that envmatrix builds on its own base are checked, because all their packages are known.
    """
    torch = facts.get("package torch") or facts.get("system python3-torch", "")
    is_known = "base" in facts and not (image.base or image.ready) and torch >= "2"
    return not is_known or facts.keys() >= {"system g++", "system libpython3-dev"}


def environments_needing_newer_driver(
    environments: Mapping[str, Environment], gpus: Sequence[str], root: Path = Path("/")
) -> dict[str, str]:
    """Return environment name -> why this machine's driver cannot run its CUDA build, so that it is not downloaded.

    ``gpus`` are those of the design; without any, nothing is checked.
    """
    built_with = {
        name: str(claim.allowed[0])
        for name, environment in environments.items()
        for claim in environment.claims
        if gpus and claim.path == "cuda.built_with"
    }
    return {name: reason for name, cuda in built_with.items() if (reason := too_old(cuda, root))}


def check_home_access(workloads: Mapping[str, Workload], engines: Mapping[str, Engine]) -> None:
    """Raise InputError for a program that needs the user's home directory on an engine that does not show it."""
    for name, workload in workloads.items():
        isolated_engine = next((engine.name for engine in engines.values() if not engine.shares_files), None)
        if workload.home == "real" and isolated_engine:
            raise InputError(
                f"workload {name!r}: engine {isolated_engine} does not support `home: real`: it hides this "
                "machine's home",
                remedy="list the folders that your program reads under `mounts:`",
            )


def resolve_program_folder(workload: Workload, matrix_folder: Path) -> Workload:
    """Return a workload with the absolute path of its program's folder (by default, that of matrix.yaml).

    Raises InputError for a missing folder or program.
    """
    if not workload.command:
        return workload
    folder = (matrix_folder / (workload.files or ".")).resolve()
    if not folder.is_dir():
        raise InputError(
            f"workload {workload.name!r}: files: no such folder: {folder}",
            remedy="write the folder of your program, relative to matrix.yaml",
        )
    check_program_exists(workload, folder)
    missing_mount = next((path for path in workload.mounts if not Path(path).is_dir()), None)
    if missing_mount:
        raise InputError(
            f"workload {workload.name!r}: mounts: no such folder: {missing_mount}", remedy="write an existing folder"
        )
    return workload.model_copy(update={"files": str(folder)})


def check_program_exists(workload: Workload, folder: Path) -> None:
    """Raise InputError for a script with a relative path that is not in the program's folder.

    Also for `uv run`, which installs a trial's copy of the project into the user's own environment.
    """
    program, *arguments = workload.command
    if program == "uv" and arguments[:1] == ["run"] and not _NO_SYNC_OPTIONS & set(arguments):
        raise InputError(
            f"workload {workload.name!r}: `uv run` would install packages of a trial's folder into your own .venv",
            remedy="use its Python directly: a level `{interpreter: .venv/bin/python}`, and `command: [python, ...]`",
        )
    _, script_argument = python_target(arguments) if PurePath(program).name.startswith("python") else ("", "")
    script = script_argument if script_argument.endswith(".py") else program if "/" in program else ""
    if PurePath(script).parts[:1] == ("..",):
        raise InputError(
            f"workload {workload.name!r}: {script} is outside {folder}, the only folder that a trial gets",
            remedy=_FOLDER_REMEDY,
        )
    if not script or (folder / script).is_file():
        return
    if PurePath(script).is_absolute() and script == program:  # an image may have it
        return
    similar_names = get_close_matches(PurePath(script).name, [path.name for path in folder.iterdir()], n=1)
    raise InputError(
        f"workload {workload.name!r}: there is no {script} in {folder}",
        remedy=f"did you mean {similar_names[0]}?" if similar_names else _FOLDER_REMEDY,
    )
