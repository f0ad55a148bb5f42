"""One environment: how to have it elsewhere, and what is active inside it."""

from __future__ import annotations

from pathlib import Path

from envmatrix.api import FORMS
from envmatrix.api.bundle import bundle_paths, make_bundle
from envmatrix.api.chosen import open_environment
from envmatrix.api.places import PathLike
from envmatrix.engines.base import HasImageFiles
from envmatrix.errors import InputError, suggestion
from envmatrix.launchers.catalog import script_forms
from envmatrix.plan.export import BUNDLE_FOLDER, dockerfile, export_lines
from envmatrix.report.group import Group
from envmatrix.results import write_whole
from envmatrix.system.progress import ProgressCallback, silent
from envmatrix.trials.environment_shell import Session
from envmatrix.trials.experiment import Experiment
from envmatrix.trials.trial import preload_paths


def export(
    environment: str,
    *,
    form: str = "sh",
    engine: str | None = None,
    matrix: PathLike | None = None,
    run: PathLike | None = None,
    results: PathLike = "results",
    bundle: PathLike | None = None,
    progress: ProgressCallback = silent,
) -> str:
    """Return the lines that set up an environment elsewhere.

    Args:
        environment: its name in the matrix.
        form: 'sh' for a shell, 'dockerfile', 'json', or a batch script: 'slurm', 'pyxis'.
        engine: the engine whose files the lines name; 'auto' takes the first that this machine has. None: the run's,
            or 'local'.
        matrix: a matrix.yaml; None: ./matrix.yaml, else the newest run's, else the one that comes with envmatrix.
        run: a run or a search, by folder or name: the environment is the one that was measured.
        results: the folder of the runs.
        bundle: a new folder into which the libraries are copied; the lines name them there. Of 'dockerfile' it is the
            folder to build in, and holds the Dockerfile too.
        progress: takes lines of progress while it is built.

    Returns:
        The text.

    Raises:
        InputError: no such environment, form or run, a matrix beside a run, or a bundle that holds something else.
        EngineError: the engine is not there or could not build.
        SkipEnvironmentError: this machine cannot have the environment.

    """
    scripts = script_forms()
    if form not in (*FORMS, *scripts):
        raise InputError(f"unknown format {form!r}", remedy=suggestion(form, (*FORMS, *scripts)))
    session = open_environment(environment, engine=engine, matrix=matrix, run=run, results=results, progress=progress)
    return _export_text(session, form, Path(bundle).resolve() if bundle is not None else None)


def _export_text(session: Session, form: str, place: Path | None) -> str:
    """Return what sets a session's environment up elsewhere; ``place`` is the folder of its bundle."""
    bundled_files = make_bundle(place, session, for_image=form == "dockerfile") if place else ()
    preload = bundle_paths(str(place), bundled_files) if place else session.preload
    if form == "dockerfile":
        text = dockerfile(
            session.environment,
            bundle_paths(BUNDLE_FOLDER, bundled_files) if place else _image_preload(session),
            _base_image(session),
        )
        if place:
            write_whole(place / "Dockerfile", text + "\n")
        return text
    if form in (scripts := script_forms()):
        program = {"program": session.workload} if session.workload else {}  # scripts of others may not take one
        return scripts[form].training_script(
            session.environment, session.engine, session.prepared, preload, form, **program
        )
    return export_lines(session.environment, preload, form)


def _image_preload(session: Session) -> tuple[str, ...]:
    """Return what is preloaded, if an image has it. Raises InputError."""
    if any("/" in path for path in session.preload) and (session.prepared.mounted or not _is_image(session)):
        raise InputError(
            f"the libraries of environment {session.environment.name} are files on this machine, not in an image",
            remedy="`--bundle DIR` copies them into a folder with a Dockerfile that builds anywhere",
        )
    return session.preload


def _is_image(session: Session) -> bool:
    """Whether a Dockerfile can start from what was prepared: it is no venv, and no file such as a SIF."""
    return not (session.engine.shares_files or isinstance(session.engine, HasImageFiles))


def _base_image(session: Session) -> str:
    """Return the image that a Dockerfile starts from unless BASE says otherwise."""
    if _is_image(session):
        return session.prepared.reference
    version = session.prepared.facts.get("python", "").split(".")
    return f"python:{'.'.join(version[:2])}-slim" if len(version) > 1 else "debian:stable-slim"


def best_export_lines(experiment: Experiment, group: Group) -> str:
    """Return the shell's lines that set up a group's recommended environment, '' where none is shown to be faster.

    Of programs that are compared with one another the recommended one is no environment.
    """
    if group.best is None or group.best.arm.workload != group.workload:
        return ""
    environment = experiment.run.environments[group.best.arm.runs]
    prepared = experiment.prepared[environment.image_key, group.engine]
    return export_lines(environment, preload_paths(prepared, environment), "sh")
