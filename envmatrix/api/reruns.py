"""Measure two matrices or runs again, with both sides in the same blocks of one run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from envmatrix.api.answers import compare
from envmatrix.api.places import Names, PathLike, find_run, matrix_of_run, parse_argument, split_names
from envmatrix.api.result import Result
from envmatrix.api.runs import check_has_answer, finish_run, line_progress_watch, place_run
from envmatrix.errors import InputError
from envmatrix.launchers.catalog import DEFAULT
from envmatrix.matrix import Design, load
from envmatrix.results import RunFolder
from envmatrix.results.run import LauncherOptions
from envmatrix.stats.comparisons.result import Comparison
from envmatrix.system.progress import ProgressCallback, silent
from envmatrix.trials.comparison_sides import Side, check_comparable, side_design
from envmatrix.trials.experiment import Experiment, create_experiment, find_design
from envmatrix.trials.new_run import NewRun
from envmatrix.trials.overrides import Overrides, select_engines, with_changed_values
from envmatrix.trials.program.files import program_files
from envmatrix.units import parse_tolerance

_NO_OVERRIDES, _DEFAULT_RUN = Overrides(), NewRun()


def rerun(
    old: PathLike | Result, new: PathLike | Result, design: str | None = None, *, name: str | None = None,
    environments: Names | None = None, workloads: Names | None = None, engines: Names | None = None,
    budget: float | str | None = None, max_blocks: int | None = None, allowed: float | str = 0.0,
    launcher: str = DEFAULT, launcher_options: LauncherOptions | None = None, progress: ProgressCallback = silent,
    results: PathLike = "results",
) -> Comparison:  # fmt: skip
    """Measure two matrices or runs again in the same blocks of one run, and compare old and new.

    Args:
        old: a matrix, a folder with a matrix.yaml (such as a worktree of another commit), or a run.
        new: the same for the newer side, whose design is used.
        design: name of a design of the newer one; None: 'default', or that of the run.
        name: of the run; None: design and time.
        environments: these, each with its own old side; None: only the baseline.
        workloads: only these, which must be the same on both sides; None: the design's.
        engines: where processes start; None: the design's.
        budget: stop after this time: seconds, or '90s', '10m', '2h'.
        max_blocks: stop after this many blocks.
        allowed: the accepted slow-down: 0.03 or '3%'.
        launcher: where trials run: 'here' or another launcher's name.
        launcher_options: its options, such as {'nodes': 2, 'time': '2h'}.
        progress: receives lines of progress.
        results: the folder for the run, in which runs are also searched by name.

    Returns:
        The Comparison, as from ``compare``. The run works with ``resume`` and ``load``.

    Raises:
        InputError: the two cannot be compared, or an argument is wrong.
        EngineError: an engine is missing or its build failed.
        NothingRanError: a side is not available on this machine, or no trial was ok.
        StoreError: the run's folder cannot be written.
        InterruptedRunError: Ctrl-C ended the run; the message shows how to resume.

    """
    limit = parse_argument("allowed", allowed, parse_tolerance)
    overrides = Overrides(
        budget=budget, max_blocks=max_blocks, workloads=split_names(workloads), environments=split_names(environments)
    )
    old_path, new_path = (side.folder if isinstance(side, Result) else side for side in (old, new))
    command = ("envmatrix.rerun", str(old_path), str(new_path))
    new_run = NewRun(results, name, launcher, launcher_options or {}, command, progress=progress)
    experiment = begin_rerun(old_path, new_path, design, overrides, new_run, engines=split_names(engines) or ())
    result = finish_run(experiment, line_progress_watch(progress))
    check_has_answer(result, f"envmatrix compare {result.name}")
    return compare(result, allowed=limit)


def begin_rerun(
    old: PathLike,
    new: PathLike,
    design: str | None = None,
    overrides: Overrides = _NO_OVERRIDES,
    new_run: NewRun = _DEFAULT_RUN,
    *,
    engines: Sequence[str] = (),
) -> Experiment:
    """Prepare the environments of both sides and write run.json; nothing is measured yet.

    ``old`` and ``new`` are each a matrix, a folder with a matrix.yaml (such as a worktree of another commit), or a run.
    The design is the new side's, with its baseline or the requested environments. Raises InputError if the sides cannot
    be compared, and the errors of ``envmatrix.run``.
    """
    sides = (load_side("old", old, new_run.results), load_side("new", new, new_run.results))
    selected_design = _choose_design(sides[1], design, overrides)
    check_comparable(sides, selected_design)
    names = select_engines(selected_design, engines, new_run.progress)
    matrix = sides[1].matrix
    for workload_name in (name for name in selected_design.workloads if matrix.workloads[name].command):
        new_run.progress(
            f"workload {workload_name}: both sides run the program next to "
            f"{matrix.path}{_changed_files_text(sides, workload_name)}"
        )
    selected_design, host = place_run(matrix, selected_design, names, new_run)
    return create_experiment(matrix, selected_design, names, new_run, host, sides=sides)


def _choose_design(side: Side, name: str | None, overrides: Overrides) -> Design:
    run_design = side.run.design if side.run and name is None else None
    base_design = run_design or find_design(side.matrix, name or "default")
    limits = {key: value for key, value in vars(overrides).items() if key != "environments"}
    return side_design(with_changed_values(base_design, limits), overrides.environments)


def _changed_files_text(sides: Sequence[Side], workload: str) -> str:
    """Return a note on program files that differ between the sides, whose effect is not measured; '' if none."""
    old_files, new_files = (_program_digests(side, workload) for side in sides)
    names = (
        sorted(name for name in {*old_files, *new_files} if old_files.get(name) != new_files.get(name))
        if old_files
        else []
    )
    if not names:
        return ""
    listed = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"; changes of the program ({listed}) are not measured: see `envmatrix docs gate`, The program itself"


def _program_digests(side: Side, workload: str) -> dict[str, str]:
    entry = side.matrix.workloads[workload]
    folder = Path(side.matrix.path).resolve().parent / (entry.files or ".")
    return program_files(entry.model_copy(update={"files": str(folder)}))


def load_side(name: str, source: PathLike, results: PathLike = "results") -> Side:
    """Return the side that one word of ``compare --rerun`` means. Raises InputError if it is no matrix or run."""
    path = Path(source)
    if path.is_file():
        return Side(name, load(path))
    if (path / "matrix.yaml").is_file() and not (path / "run.json").exists():
        return Side(name, load(path / "matrix.yaml"))
    try:
        folder = find_run(source, results)
    except InputError as error:
        message = f"{str(source)!r} is not a matrix, a run, or a folder with a matrix.yaml"
        raise InputError(message, remedy=error.remedy) from error
    return _side_of_run(name, folder)


def _side_of_run(name: str, folder: RunFolder) -> Side:
    run = folder.load_for_resume()
    if run.sides:
        remedy = f"pass one of its sides: {folder.path / 'sides' / name}"
        raise InputError(f"run {run.name} itself compares two matrices", remedy=remedy)
    file = folder.matrix_file if folder.matrix_file.exists() else folder.run_file
    return Side(name, matrix_of_run(folder, run), file, run)
