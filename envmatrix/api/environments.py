"""One environment: how to have it elsewhere, and what is active inside it."""

from __future__ import annotations

from envmatrix.api import FORMS
from envmatrix.api.places import PathLike, find_run, load_matrix, matrix_of_run
from envmatrix.errors import InputError, suggestion
from envmatrix.launchers.catalog import script_forms
from envmatrix.plan.export import export_lines
from envmatrix.report.summary import Group
from envmatrix.say import Say, silent
from envmatrix.trials.experiment import Experiment
from envmatrix.trials.session import Session, open_session
from envmatrix.trials.trial import preload_paths


def export(
    environment: str,
    *,
    form: str = "sh",
    engine: str = "local",
    matrix: PathLike | None = None,
    run: PathLike | None = None,
    results: PathLike = "results",
    say: Say = silent,
) -> str:
    """Return the lines that set up an environment elsewhere.

    Args:
        environment: its name in the matrix.
        form: 'sh' for a shell, 'dockerfile', 'json', or a batch script: 'slurm', 'pyxis'.
        engine: the engine whose files the lines name; 'auto' takes the first that this machine has.
        matrix: a matrix.yaml; None: ./matrix.yaml, else the one that comes with envmatrix.
        run: a run's folder or name, whose own matrix is read instead.
        results: the folder of the runs.
        say: takes lines of progress while it is built.

    Returns:
        The text.

    Raises:
        InputError: no such environment, form or run, or a matrix beside a run.
        EngineError: the engine is not there or could not build.
        SkipEnvironmentError: this machine cannot have the environment.

    """
    scripts = script_forms()
    if form not in (*FORMS, *scripts):
        raise InputError(f"no form {form!r}", remedy=suggestion(form, (*FORMS, *scripts)))
    if run is not None and matrix is not None:
        raise InputError("a run has a matrix of its own", remedy="name one: the matrix or the run")
    if run is not None:
        folder = find_run(run, results)
        session = open_session(matrix_of_run(folder, folder.load_here()), environment, engine, say)
    else:
        session = open_environment(environment, engine=engine, matrix=matrix, say=say)
    if form in scripts:
        return scripts[form].training_script(
            session.environment, session.engine, session.prepared, session.preload, form
        )
    return export_lines(session.environment, session.preload, form, of_host=session.engine.shares_files)


def open_environment(
    environment: str, *, engine: str = "local", matrix: PathLike | None = None, say: Say = silent
) -> Session:
    """Prepare an environment for single processes: evidence, any command. Raises as ``export``."""
    return open_session(load_matrix(matrix), environment, engine, say)


def lines_of_best(experiment: Experiment, group: Group) -> str:
    """Return the shell's lines that set up a group's recommended environment, '' where none is shown to be faster.

    Of programs that are compared with one another the recommended one is no environment.
    """
    if group.best is None or group.best.arm.workload != group.workload:
        return ""
    environment = experiment.run.environments[group.best.arm.runs]
    prepared = experiment.prepared[environment.image_key, group.engine]
    return export_lines(environment, preload_paths(prepared, environment), "sh")
