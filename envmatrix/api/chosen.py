"""Find and prepare an environment by name, from a matrix or as a run measured it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from envmatrix.api.places import PathLike, find_run, has_matrix, load_matrix, matrix_of_run, run_matrix_path
from envmatrix.api.program.place import check_image
from envmatrix.api.tuning.search import find_study
from envmatrix.engines.catalog import DEFAULT
from envmatrix.errors import EnvmatrixError, InputError, SkipEnvironmentError, StoreError, or_else, suggestion
from envmatrix.matrix.model import Workload
from envmatrix.plan.environment import Environment, Library, all_libraries, resolve_environment
from envmatrix.results import Run, RunFolder
from envmatrix.search.study import StudyFolder
from envmatrix.system.host import Host, this_host
from envmatrix.system.progress import ProgressCallback, silent
from envmatrix.trials.environment_shell import Session, prepare_session
from envmatrix.trials.images import check_images_unchanged, load_supplied_images, side_matrix_path


def open_environment(
    environment: str,
    *,
    engine: str | None = None,
    matrix: PathLike | None = None,
    run: PathLike | None = None,
    results: PathLike = "results",
    image: str = "",
    host: Host | None = None,
    progress: ProgressCallback = silent,
) -> Session:
    """Prepare an environment to run single processes in it or to export it. Raises the errors of ``export``.

    Without ``matrix`` and ``run`` it comes from ./matrix.yaml, otherwise the newest run, otherwise the built-in matrix.
    ``progress`` reports the source unless it is ./matrix.yaml. ``image``: a ready image to use instead of its own.
    ``host``: the machine that its processes will run on (None: this one).
    """
    host = host or this_host()
    if image:
        engine = check_image(engine, image, progress).name
    if run is not None and matrix is not None:
        raise InputError(
            "--matrix and --run cannot be combined: a run has its own matrix", remedy="pass --matrix or --run, not both"
        )
    if run is not None:
        folder = _find_run_folder(environment, run, results)
        return _open_run_environment(folder, environment, engine, image, host, progress)
    newest = None if matrix is not None else _newest_run(environment, results)
    if newest and not has_matrix():
        session = _open_run_environment(newest, environment, engine, image, host, progress)
        progress(f"using {environment} of {_run_label(newest)}, your newest run (--run or --matrix picks another)")
        return session
    if newest and (name := _run_with_other_python(newest, environment)):
        progress(f"using {environment} of matrix.yaml; your newest run used another Python (to use that: --run {name})")
    whole = load_matrix(matrix, progress)
    resolved, libraries = resolve_environment(whole, environment, host.facts()), all_libraries(whole)
    return prepare_session(resolved, libraries, engine or DEFAULT, Path(whole.path), progress, image=image, host=host)


def _run_label(folder: RunFolder) -> str:
    """Return the name of a run for the command line; for a step of a search, the search's name."""
    study = folder.path.parent
    return f"search {study.name}" if (study / "study.json").exists() else f"run {folder.path.name}"


def _newest_run(environment: str, results: PathLike) -> RunFolder | None:
    """Return the newest run, or a step of the newest search with this environment; None if there is none."""
    with suppress(InputError):
        return _find_run_folder(environment, None, results)
    with suppress(InputError):  # the newest search has run nothing yet
        return find_run(None, results)
    return None


def _find_run_folder(environment: str, run: PathLike | None, results: PathLike) -> RunFolder:
    """Return the folder of a run; for a search (`tune`), its newest step that has the environment."""
    study = find_study(run, results)
    if study is None:
        return find_run(run, results)
    steps = StudyFolder(study).steps()
    if not steps:
        raise InputError(f"search {study.name} has not run any trial yet", remedy=f"`envmatrix resume {study.name}`")
    return next((step for step in reversed(steps) if environment in step.load().environments), steps[-1])


def _run_with_other_python(folder: RunFolder, environment: str) -> str:
    """Return the name of a program's run whose environment has another image than in ./matrix.yaml, otherwise ''."""
    try:
        run = folder.load_for_resume()
    except StoreError:  # the user did not ask for that run
        return ""
    if not run.is_of_program or environment not in run.environments:
        return ""
    matrix = load_matrix()
    is_same_image = environment in matrix.environments and (
        resolve_environment(matrix, environment, {}).image == run.environments[environment].image
    )
    return "" if is_same_image else folder.path.name


def _open_run_environment(
    folder: RunFolder, name: str, engine: str | None, image: str, host: Host, progress: ProgressCallback
) -> Session:
    """Prepare an environment of a run as it was measured, or another one of the run's own matrix."""
    run = folder.load_for_resume()
    environment, libraries, matrix = _find_in_run(folder, run, name, host)
    if environment.image.on_host and engine and not image:
        check_image(engine, "", progress)
    engine = engine or next((arm.engine for arm in run.arms if arm.runs == environment.name), run.arms[0].engine)
    program, supplied = program_of(run), load_supplied_images(folder)
    try:
        session = prepare_session(environment, libraries, engine, matrix, progress, program, supplied, image, host)
    except SkipEnvironmentError as error:
        message = f"environment {name} of run {folder.path.name} is not available on this machine: {error.message}"
        default_remedy = "export it on the machine that measured it, or use a matrix of this machine: `--matrix FILE`"
        remedy = default_remedy if environment.image.on_host else error.remedy
        raise SkipEnvironmentError(message, remedy=remedy or default_remedy) from error
    try:
        check_images_unchanged(run, {(session.environment.image_key, session.engine.name): session.prepared})
    except EnvmatrixError as error:
        progress(f"warning: {error.message}")
    return session


def _find_in_run(folder: RunFolder, run: Run, name: str, host: Host) -> tuple[Environment, tuple[Library, ...], Path]:
    """Return an environment of a run, the libraries in its image, and the path of the matrix with its locks."""
    runs = next((arm.runs for arm in run.arms if arm.environment == name), name)
    environment = run.environments.get(runs)
    if environment and environment.side:
        return environment, run.sides[environment.side].libraries, side_matrix_path(folder, environment.side)
    if environment:
        return environment, run.libraries, run_matrix_path(run)
    matrix = matrix_of_run(folder, run)
    if name not in matrix.environments:
        known_names = (*run.environments, *matrix.environments)
        raise InputError(
            f"run {folder.path.name} has no environment {name!r}",
            remedy=or_else(suggestion(name, known_names), "take it from another matrix: `--matrix FILE`"),
        )
    return resolve_environment(matrix, name, host.facts()), all_libraries(matrix), Path(matrix.path)


def program_of(run: Run) -> Workload | None:
    """Return the user's own program that a run measured (the first of several), or None."""
    return next((run.workloads[name] for name in run.design.workloads if run.workloads[name].command), None)
