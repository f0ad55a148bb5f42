"""Environments by name, from a matrix or as a run measured them: prepared for single processes, and exported."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path, PurePosixPath

from envmatrix.api import FORMS
from envmatrix.api.matrix_and_run_lookup import (
    PathLike,
    find_run,
    has_matrix,
    load_matrix,
    matrix_of_run,
    run_matrix_path,
)
from envmatrix.api.tuning.search import find_study
from envmatrix.api.user_program.program_options import check_image
from envmatrix.engines.base import HasImageFiles
from envmatrix.engines.catalog import DEFAULT
from envmatrix.errors import EnvmatrixError, InputError, SkipEnvironmentError, StoreError, or_else, suggestion
from envmatrix.launchers.catalog import script_forms
from envmatrix.matrix.environment_files import kind_of_file, read_text_file
from envmatrix.matrix.model import Workload
from envmatrix.plan.environment import Environment, Library, all_libraries, resolve_environment
from envmatrix.plan.export_lines import BUNDLE_FOLDER, dockerfile, environment_patch, export_lines
from envmatrix.report.group import Group
from envmatrix.results import Run, RunFolder, write_whole
from envmatrix.search.study_folder import StudyFolder
from envmatrix.system.host import Host, this_host
from envmatrix.system.progress import ProgressCallback, silent
from envmatrix.trials.environment_for_commands import Session, prepare_session
from envmatrix.trials.execution import measured_export_lines
from envmatrix.trials.experiment_setup import Experiment
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
    if not run.has_generated_matrix or environment not in run.environments:
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


#: Marks a folder as a bundle, which the next export may replace.
_MARKER_FILE = "envmatrix-bundle.json"
_LIBRARY_FOLDER = "lib"


def export(
    environment: str,
    *,
    form: str = "sh",
    engine: str | None = None,
    matrix: PathLike | None = None,
    run: PathLike | None = None,
    results: PathLike = "results",
    bundle: PathLike | None = None,
    patch: PathLike | None = None,
    progress: ProgressCallback = silent,
) -> str:
    """Return the lines that set up an environment outside envmatrix.

    Args:
        environment: its name in the matrix.
        form: 'sh' for a shell, 'dockerfile', 'json', or a batch script: 'slurm', 'pyxis'.
        engine: the engine whose files the lines name; 'auto' takes the first that this machine has. None: the run's, or
            'local'.
        matrix: a matrix.yaml; None: ./matrix.yaml, otherwise the newest run's, otherwise the built-in one.
        run: a run or a search, by folder or name, whose environment is exported as it was measured.
        results: the folder of the runs.
        bundle: a new folder for copies of the libraries, which the lines then use. With 'dockerfile' it is the folder
            to build in, and contains the Dockerfile too.
        patch: a .env, environment.yml, Dockerfile or script: return a patch of it instead, a unified diff.
        progress: receives lines of progress during the build.

    Returns:
        The text.

    Raises:
        InputError: no such environment, form or run; both a matrix and a run; or a bundle folder with other content.
        EngineError: the engine is missing or its build failed.
        SkipEnvironmentError: the environment is not available on this machine.

    """
    scripts = script_forms()
    if form not in (*FORMS, *scripts):
        raise InputError(f"unknown format {form!r}", remedy=suggestion(form, (*FORMS, *scripts)))
    session = open_environment(environment, engine=engine, matrix=matrix, run=run, results=results, progress=progress)
    place = Path(bundle).resolve() if bundle is not None else None
    return _export_text(session, form, place) if patch is None else _export_patch(session, Path(patch), place)


def _export_patch(session: Session, file: Path, place: Path | None) -> str:
    """Return the patch of a file, with the libraries in the bundle ``place``, if there is one."""
    text, folder = read_text_file(file), file.resolve().parent
    for_image = kind_of_file(file, text) == "dockerfile"
    if for_image and place and not place.is_relative_to(folder):
        raise InputError(
            "--bundle: Docker copies from the Dockerfile's folder only", remedy=f"--bundle {file.parent}/libraries"
        )
    preload = _export_preload(session, place, for_image=for_image)
    libraries = _copied_libraries(place, folder) if for_image else ""
    return environment_patch(file, text, session.environment, preload, libraries)


def _copied_libraries(place: Path | None, folder: Path | None) -> str:
    """Return the folder in ``folder`` with the libraries of the bundle ``place``; '' without libraries."""
    if place is None or folder is None or not (place / _LIBRARY_FOLDER).exists():
        return ""
    return f"{(place / _LIBRARY_FOLDER).relative_to(folder).as_posix()}/"


def _export_text(session: Session, form: str, place: Path | None) -> str:
    """Return the text that sets up a session's environment outside envmatrix; ``place`` is the folder of its bundle."""
    preload = _export_preload(session, place, for_image=form == "dockerfile")
    if form == "dockerfile":
        text = dockerfile(session.environment, preload, _base_image(session), _copied_libraries(place, place))
        if place:
            write_whole(place / "Dockerfile", text + "\n")
        return text
    if form in (scripts := script_forms()):
        program = {"program": session.workload} if session.workload else {}  # plugins may not accept it
        return scripts[form].training_script(
            session.environment, session.engine, session.prepared, preload, form, **program
        )
    return export_lines(session.environment, preload, form)


def _export_preload(session: Session, place: Path | None, *, for_image: bool) -> tuple[str, ...]:
    """Return the preloaded files of the exported environment, after copying them to ``place``, if that is given.

    Raises InputError for an image without them.
    """
    if place:
        return copy_preloaded_libraries(place, session, for_image=for_image)
    has_files = any("/" in path for path in session.preload)
    if for_image and has_files and (session.prepared.mounted or not _is_image(session)):
        raise InputError(
            f"the libraries of environment {session.environment.name} are files on this machine, not in an image",
            remedy="`--bundle DIR` copies them into a folder with a Dockerfile that builds anywhere",
        )
    return session.preload


def _is_image(session: Session) -> bool:
    """Return whether a Dockerfile can start from the prepared environment: not a venv, not a file such as a SIF."""
    return not (session.engine.shares_files or isinstance(session.engine, HasImageFiles))


def _base_image(session: Session) -> str:
    """Return the default base image of a Dockerfile (its argument BASE)."""
    if _is_image(session):
        return session.prepared.reference
    version = session.prepared.facts.get("python", "").split(".")
    return f"python:{'.'.join(version[:2])}-slim" if len(version) > 1 else "debian:stable-slim"


def best_export_lines(experiment: Experiment, group: Group) -> str:
    """Return the shell lines for a group's recommended environment, or '' if none is significantly faster.

    If programs are compared with one another, the recommendation is not an environment: ''.
    """
    if group.best is None or group.best.arm.workload != group.workload:
        return ""
    return measured_export_lines(experiment, group.best.arm)


def copy_preloaded_libraries(folder: Path, session: Session, *, for_image: bool = False) -> tuple[str, ...]:
    """Copy the preloaded libraries of an environment into ``folder`` and return their paths in it.

    Bare names are returned unchanged. ``for_image``: the folder is only copied into an image, so its path may have
    blanks; return the paths there. Raises InputError for a folder with other content, and for libraries inside an
    image.
    """
    _check_bundle_folder(folder, for_image=for_image)
    source_folders = {path: _host_folder(session, path) for path in session.preload if "/" in path}
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / _MARKER_FILE, json.dumps({"schema": 1, "environment": session.environment.name}) + "\n")
    with tempfile.TemporaryDirectory(prefix=".new-", dir=folder) as temporary_folder:
        copies = Path(temporary_folder) / _LIBRARY_FOLDER
        for library_folder in dict.fromkeys(source_folders.values()):
            shutil.copytree(library_folder, copies / library_folder.name)  # symbolic links become files
        shutil.rmtree(folder / _LIBRARY_FOLDER, ignore_errors=True)
        if source_folders:
            copies.rename(folder / _LIBRARY_FOLDER)
    libraries = f"{BUNDLE_FOLDER if for_image else folder}/{_LIBRARY_FOLDER}"
    return tuple(
        f"{libraries}/{source_folders[path].name}/{PurePosixPath(path).name}" if path in source_folders else path
        for path in session.preload
    )


def _check_bundle_folder(folder: Path, *, for_image: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--bundle: {folder} is not a folder", remedy="pass a new folder")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / _MARKER_FILE).is_file():
        raise InputError(
            f"--bundle: {folder} is not empty, and `export --bundle` did not create it", remedy="pass a new folder"
        )
    if not for_image and re.search(r"[\s:]", str(folder)):
        raise InputError(
            f"--bundle: LD_PRELOAD cannot load files from {str(folder)!r}: the path contains a space or a colon",
            remedy="pass a folder without spaces and colons in its path",
        )


def _host_folder(session: Session, path: str) -> Path:
    """Return the folder on this machine with the library that is preloaded as ``path``."""
    parent = str(PurePosixPath(path).parent)
    if session.engine.shares_files:
        return Path(parent)
    if mounted := session.prepared.mounted.get(parent):
        return Path(mounted)
    raise InputError(
        f"--bundle: the libraries are inside the image of engine {session.engine.name}",
        remedy="leave out --bundle, or use `--engine local`",
    )
