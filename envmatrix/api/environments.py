"""Export of an environment: what sets it up outside envmatrix."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from pathlib import Path, PurePosixPath

from envmatrix.api import FORMS
from envmatrix.api.chosen import open_environment
from envmatrix.api.places import PathLike
from envmatrix.engines.base import HasImageFiles
from envmatrix.errors import InputError, suggestion
from envmatrix.launchers.catalog import script_forms
from envmatrix.matrix.environment_files import kind_of_file, read_text_file
from envmatrix.plan.export_lines import BUNDLE_FOLDER, dockerfile, export_lines, patch_text
from envmatrix.report.group import Group
from envmatrix.results import write_whole
from envmatrix.system.progress import ProgressCallback, silent
from envmatrix.trials.environment_shell import Session
from envmatrix.trials.experiment import Experiment
from envmatrix.trials.trial import measured_export_lines

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
    bundled = place / _LIBRARY_FOLDER if for_image and place else None
    libraries = f"{bundled.relative_to(folder).as_posix()}/" if bundled and bundled.exists() else ""
    return patch_text(file, text, session.environment, preload, libraries)


def _export_text(session: Session, form: str, place: Path | None) -> str:
    """Return the text that sets up a session's environment outside envmatrix; ``place`` is the folder of its bundle."""
    preload = _export_preload(session, place, for_image=form == "dockerfile")
    if form == "dockerfile":
        text = dockerfile(session.environment, preload, _base_image(session))
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
    """Return the preloaded files of the exported environment, after copying them to ``place``, if that is given."""
    if place:
        bundled_files = make_bundle(place, session, for_image=for_image)
        return bundle_paths(BUNDLE_FOLDER if for_image else str(place), bundled_files)
    return _image_preload(session) if for_image else session.preload


def _image_preload(session: Session) -> tuple[str, ...]:
    """Return the preloaded files if an image has them. Raises InputError otherwise."""
    if any("/" in path for path in session.preload) and (session.prepared.mounted or not _is_image(session)):
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


def make_bundle(folder: Path, session: Session, *, for_image: bool = False) -> tuple[str, ...]:
    """Copy the preloaded libraries of an environment into ``folder`` and return their paths in it.

    Bare names are returned unchanged. ``for_image``: the folder is only copied into an image, so its path may have
    blanks. Raises InputError for a folder with other content, and for libraries inside an image.
    """
    _check_bundle_folder(folder, for_image=for_image)
    source_folders = {path: _host_folder(session, path) for path in session.preload if "/" in path}
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / _MARKER_FILE, json.dumps({"schema": 1, "environment": session.environment.name}) + "\n")
    with tempfile.TemporaryDirectory(prefix=".new-", dir=folder) as temporary_folder:
        for library_folder in dict.fromkeys(source_folders.values()):
            shutil.copytree(
                library_folder, Path(temporary_folder) / _LIBRARY_FOLDER / library_folder.name
            )  # symbolic links become files
        shutil.rmtree(folder / _LIBRARY_FOLDER, ignore_errors=True)
        if source_folders:
            (Path(temporary_folder) / _LIBRARY_FOLDER).rename(folder / _LIBRARY_FOLDER)
    return tuple(
        f"{_LIBRARY_FOLDER}/{source_folders[path].name}/{PurePosixPath(path).name}" if path in source_folders else path
        for path in session.preload
    )


def bundle_paths(folder: str, preload: tuple[str, ...]) -> tuple[str, ...]:
    """Return the paths of a bundle's files if the bundle is in ``folder``."""
    return tuple(f"{folder}/{path}" if "/" in path else path for path in preload)


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
