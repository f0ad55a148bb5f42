"""Run a design, resume a run, load a run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing

from envmatrix.api.matrix_and_run_lookup import Names, PathLike, find_matrix, find_run, load_matrix, split_names
from envmatrix.api.result import Result
from envmatrix.durations_and_sizes import as_duration
from envmatrix.engines.catalog import find_engine
from envmatrix.errors import (
    EnvmatrixError,
    ExitCode,
    InputError,
    InterruptedRunError,
    NothingRanError,
    StoppedRunError,
    StoreError,
)
from envmatrix.launchers import catalog
from envmatrix.launchers.base import Ask, Launcher, LimitsBlocks, RunsElsewhere, ShowsScripts
from envmatrix.launchers.catalog import LAUNCHERS, check_options
from envmatrix.matrix import Design, Matrix
from envmatrix.matrix.known_variables import find_unread_variables
from envmatrix.report.write import write_reports
from envmatrix.results import RunFolder
from envmatrix.results.run_model import LauncherOptions
from envmatrix.runner.loop import run as run_experiment
from envmatrix.runner.progress import LineProgress
from envmatrix.system.atomic_files import retry_writes
from envmatrix.system.bench_options import node_count
from envmatrix.system.host import Host
from envmatrix.system.progress import ProgressCallback, silent
from envmatrix.trials.experiment_setup import (
    Experiment,
    create_experiment,
    design_environments,
    make_design_arms,
    reopen_experiment,
)
from envmatrix.trials.interleaving_eligibility import decide_schedule, non_interleaved_arms
from envmatrix.trials.new_run_options import NewRun
from envmatrix.trials.overrides import Overrides, apply_overrides, resolve_engine_names
from envmatrix.trials.resume_overrides import apply_resume_changes, record_interim_reading
from envmatrix.trials.user_program.hooks import setup_and_cleanup

#: Shows the progress of a run while the context is open.
Watch = Callable[[Experiment], AbstractContextManager[LineProgress]]


def run(
    design: str = "default", *, environments: Names | None = None, workloads: Names | None = None,
    engines: Names | None = None, budget: float | str | None = None, target: float | str | None = None,
    seed: int | None = None, min_blocks: int | None = None, max_blocks: int | None = None, name: str | None = None,
    matrix: PathLike | None = None, results: PathLike = "results", launcher: str = "here",
    launcher_options: LauncherOptions | None = None, host_names: bool = False, progress: ProgressCallback = silent,
) -> Result:  # fmt: skip
    """Run a design of a matrix in randomised blocks and return the effect of each environment.

    Every trial is written to disk before the next one starts. Ctrl-C ends the run cleanly: the result is then
    ``interrupted``, and ``resume`` continues it. You can call this from any thread.

    Args:
        design: name of the design in the matrix.
        environments: only these and the baseline, as names or 'a,b'; None: the design's.
        workloads: only these; None: the design's.
        engines: where processes start: 'local', 'docker', ...; 'auto' takes the first that this machine has.
        budget: stop after this time: seconds, or '90s', '10m', '2h'.
        target: stop when the half-width of every interval is at most this: 0.02 or '2%'.
        seed: of the random order, 0 or higher.
        min_blocks: no verdict with fewer blocks than this, at least 2.
        max_blocks: stop after this many blocks.
        name: of the run; None: design and time.
        matrix: a matrix.yaml; None: ./matrix.yaml, otherwise the built-in one.
        results: the folder in which the run's folder is created.
        launcher: where trials run: 'here' or another launcher's name.
        launcher_options: its options, such as {'nodes': 2, 'time': '2h'}.
        host_names: record real host names, not node-1, node-2, ...
        progress: receives lines of progress; ``print`` shows them.

    Returns:
        The Result, with its reports written into its folder.

    Raises:
        InputError: the matrix or an argument is wrong; the message has the place and a remedy.
        EngineError: an engine is missing or its build failed.
        NothingRanError: no environment of the design is available on this machine.
        StoreError: the run's folder cannot be written.

    """
    overrides = Overrides(
        seed, budget, target, min_blocks, max_blocks, split_names(workloads), split_names(environments)
    )
    command = ("envmatrix.run", design)
    new_run = NewRun(results, name, launcher, launcher_options or {}, command, host_names, progress)
    experiment = begin_run(design, overrides, new_run, engines=split_names(engines) or (), matrix=matrix)
    return finish_run(experiment, line_progress_watch(progress))


def resume(
    run: PathLike | Result | None = None,
    *,
    budget: float | str | None = None,
    target: float | str | None = None,
    max_blocks: int | None = None,
    results: PathLike = "results",
    matrix: PathLike | None = None,
    launcher_options: LauncherOptions | None = None,
    progress: ProgressCallback = silent,
) -> Result:
    """Continue a run that stopped, was killed or cut short. No trial is lost, repeated or reordered.

    Args:
        run: a Result, a run's name or its folder; None: the newest run.
        budget: a new budget for the whole run: seconds, or '90s', '10m', '2h'; None: unchanged.
        target: a new half-width at which intervals are narrow enough: 0.01 or '1%'; None: unchanged.
        max_blocks: a new, higher number of blocks to stop after, for the whole run; None: unchanged.
        results: the folder in which runs are searched by name.
        matrix: whose locks are used; None: ./matrix.yaml, otherwise the built-in one.
        launcher_options: options of the run's launcher from now on.
        progress: receives lines of progress.

    Returns:
        The Result of the whole run.

    Raises:
        InputError: there is no such run, or a file that it needs was removed.
        EngineError: an engine is missing or its build failed.
        StoreError: the folder cannot be read or written, or another envmatrix writes to it.

    """
    options, command = launcher_options or {}, ("envmatrix.resume",)
    again = NewRun(results, launcher_options=options, command=command, progress=progress)
    experiment = reopen_run(run_path(run), again, matrix, budget=budget, target=target, max_blocks=max_blocks)
    return finish_run(experiment, line_progress_watch(progress))


def load(run: PathLike | None = None, *, results: PathLike = "results") -> Result:
    """Load a run, finished or not.

    Args:
        run: a run's name or its folder; None: the newest run.
        results: the folder in which runs are searched by name.

    Returns:
        The Result; its files are read on first use.

    Raises:
        InputError: there is no such run; the message names the nearest one.
        StoreError: on first use, if a file cannot be read.

    """
    return Result.of(find_run_and_record_reading(run, results))


def run_path(run: PathLike | Result | None) -> PathLike | None:
    """Return the path or name of a run."""
    return run.folder if isinstance(run, Result) else run


def find_run_and_record_reading(run: PathLike | Result | None, results: PathLike) -> RunFolder:
    """Find a run to read. If it is still running, record an interim analysis (docs/statistics.md).

    Readers without write access cannot record one, and they do not decide when the run ends.
    """
    folder = find_run(run_path(run), results)
    if folder.is_written() and os.access(folder.path, os.W_OK):
        record_interim_reading(folder)
    return folder


def begin_run(
    design: str,
    overrides: Overrides,
    new_run: NewRun,
    *,
    engines: Sequence[str] = (),
    matrix: PathLike | Matrix | None = None,
) -> Experiment:
    """Prepare everything that a design needs and write run.json, without measuring. Raises the errors of ``run``."""
    whole = matrix if isinstance(matrix, Matrix) else load_matrix(matrix, new_run.progress)
    selected_design = apply_overrides(whole, design, overrides)
    report_unknown_variables(whole, selected_design, new_run.progress)
    names = resolve_engine_names(selected_design, engines, new_run.progress)
    selected_design, host = place_run(whole, selected_design, names, new_run)
    check_block_time(whole, selected_design, names, new_run)
    return create_experiment(whole, selected_design, names, new_run, host)


def reopen_run(
    run: PathLike | None, again: NewRun, matrix: PathLike | None = None, **limits: float | str | None
) -> Experiment:
    """Load a run and prepare what its remaining trials need. Raises the errors of ``resume``.

    ``again`` says where it is, what begins it again, and options of its launcher from now on. ``limits``: a new
    ``budget``, ``target`` or ``max_blocks``; None: unchanged.
    """
    experiment = reopen_experiment(find_run(run, again.results), find_matrix(matrix), again.progress)
    kind = LAUNCHERS.make(experiment.run.launcher)
    check_options(kind, again.launcher_options)
    options = {**experiment.run.launcher_options, **again.launcher_options}
    kind.width(experiment.run.design, options, 1)  # raises an error for impossible options
    try:
        changed = apply_resume_changes(
            experiment, launcher_options=again.launcher_options, command=again.command, **limits
        )
    except EnvmatrixError:
        experiment.folder.unlock()
        raise
    had_s = experiment.run.plan.budget_s
    if limits.get("budget") is not None and changed.run.plan.budget_s <= had_s:
        again.progress(
            f"--budget is for the whole run, which has already used {as_duration(had_s)}: pass a longer one to continue"
        )
    return changed


def report_unknown_variables(matrix: Matrix, design: Design, progress: ProgressCallback) -> None:
    """Warn of variables in the design's levels that nothing is known to read: trials with them are not verified."""
    used_levels = {
        pair for environment in design_environments(matrix, design, {}).values() for pair in environment.levels.items()
    }
    for level, doubt in find_unread_variables(matrix):
        if level in used_levels:
            progress(f"warning: {doubt}")


def place_run(matrix: Matrix, design: Design, engines: tuple[str, ...], new_run: NewRun) -> tuple[Design, Host | None]:
    """Return the design with the schedule that the launcher can run, and the machine that trials will run on.

    Raises the errors of ``find_run_host``.
    """
    design = catalog.sequential_unless_interleavable(LAUNCHERS.make(new_run.launcher), design, new_run.progress)
    return design, find_run_host(matrix, design, engines, new_run)


def find_run_host(matrix: Matrix, design: Design, engines: tuple[str, ...], new_run: NewRun) -> Host | None:
    """Return the machine that trials will run on (None: this one).

    Raises an error for anything that the launcher cannot do, before anything is built or written.
    """
    kind, options = LAUNCHERS.make(new_run.launcher), new_run.launcher_options
    check_options(kind, options)
    spread = {name: node_count(matrix.workloads[name].options) for name in (*design.workloads, *design.application)}
    return catalog.find_trial_host(kind, design, options, list(map(find_engine, engines)), spread, new_run.progress)


def check_block_time(matrix: Matrix, design: Design, names: tuple[str, ...], new_run: NewRun) -> None:
    """Raise an error if a block of the design may take longer than the launcher allows."""
    kind = LAUNCHERS.make(new_run.launcher)
    if not isinstance(kind, LimitsBlocks):
        return
    environments, engines = design_environments(matrix, design, {}), {name: find_engine(name) for name in names}
    context = (environments, matrix.workloads, engines)
    design, arms = decide_schedule(design, make_design_arms(design, tuple(environments), names), *context)
    sequential_arms = (
        non_interleaved_arms(arms, *context) if design.schedule == "turns" else {arm.name: "" for arm in arms}
    )
    span = max(node_count(matrix.workloads[arm.workload].options) for arm in arms)
    kind.check_block(design, new_run.launcher_options, span, len(arms), len(arms) - len(sequential_arms))


def script_preview(launcher: str) -> Callable[[Experiment], list[str]]:
    """Return a function that gives the scripts to submit for the first blocks, and removes the run's folder.

    Raises InputError for a launcher without scripts.
    """
    kind = LAUNCHERS.make(launcher)
    if not isinstance(kind, ShowsScripts):
        raise InputError(
            f"--dry-run prints scripts, and launcher {kind.name} has none", remedy="`envmatrix plan` shows the order"
        )

    def scripts(experiment: Experiment) -> list[str]:
        try:
            return kind.scripts(experiment)
        finally:
            shutil.rmtree(experiment.folder.path)

    return scripts


def finish_run(
    experiment: Experiment,
    watch: Watch,
    ask: Ask | None = None,
    *,
    is_set_up: bool = False,
    price_per_h: float | None = None,
) -> Result:
    """Run the remaining trials of an experiment and write its reports. ``ask`` is None if nobody can answer.

    Setup commands run before it (unless ``is_set_up``), cleanup commands after it.
    """
    folder = experiment.folder
    try:
        programs = experiment.run.workloads.values()
        with (
            watch(experiment) as observer,
            retry_writes(observer.progress),
            setup_and_cleanup(programs, observer.progress, is_set_up=is_set_up),
        ):
            for name, reason in experiment.run.skipped.items():
                observer.progress(f"skipped {name}: {reason}")
            launcher = LAUNCHERS.make(experiment.run.launcher).open(experiment, observer.progress, ask)
            folder.lock()
            try:
                ending = run_experiment(experiment, launcher, observer, observer.progress)
            except StoreError as error:
                raise _stopped_error(error, experiment, launcher) from error
    finally:
        folder.unlock()  # the calling process may live on and resume the run
    try:
        summary = write_reports(folder, progress=observer.progress, price_per_h=price_per_h, measured=ending.measured)
    except StoreError as error:
        message = f"{error.message}; the run is complete, but its reports could not be written"
        remedy = f"free some space or make it writable, then `envmatrix report {experiment.run.name}`"
        raise StoppedRunError(message, where=error.where, remedy=remedy) from error
    return Result.of(folder, ending, summary)


def check_has_answer(result: Result, then: str) -> None:
    """Raise an error for a run that was interrupted or had no successful trial; ``then`` is typed after `resume`."""
    commands = f"envmatrix resume {result.name}, then: {then}"
    if result.interrupted:
        raise InterruptedRunError("interrupted", remedy=f"to continue: {commands}")
    if result.exit_code == ExitCode.NOTHING_RAN:
        raise NothingRanError("no trial succeeded", remedy=commands)


def _stopped_error(error: StoreError, experiment: Experiment, launcher: Launcher) -> StoppedRunError:
    """Return an error with the cause, the jobs still running, and how to resume."""
    running_jobs = launcher.out() if isinstance(launcher, RunsElsewhere) else ""
    remedy = error.remedy.removesuffix(", then `envmatrix resume`")
    prefix = f"{remedy}; " if remedy else ""
    return StoppedRunError(
        f"{error.message}; the run was stopped" + (f", {running_jobs}" if running_jobs else ""),
        where=error.where,
        remedy=f"{prefix}`envmatrix resume {experiment.run.name}` continues; no finished trial is lost",
    )


def line_progress_watch(progress: ProgressCallback) -> Watch:
    """Return a watch that reports the progress of a run, line by line, to ``progress``."""
    return lambda experiment: closing(LineProgress(experiment, quiet=False, tell=progress))
