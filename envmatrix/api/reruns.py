"""Two matrices, or two runs, measured against each other anew: both sides in the same blocks of one run."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from envmatrix.api.places import PathLike, find_matrix, find_run
from envmatrix.api.runs import place
from envmatrix.errors import InputError
from envmatrix.launchers.catalog import DEFAULT
from envmatrix.matrix import Design, load
from envmatrix.matrix.model import NAME
from envmatrix.matrix.parse import parse
from envmatrix.say import Say, silent
from envmatrix.stats.comparison import Comparison, compare_sides
from envmatrix.stats.measurements import read_measurements
from envmatrix.store import Run, RunFolder
from envmatrix.trials.experiment import Experiment, begin, find_design
from envmatrix.trials.requested import Overrides, overridden, requested_engines
from envmatrix.trials.sides import Side, check_comparable, side_design


def begin_rerun(
    old: PathLike,
    new: PathLike,
    design: str | None = None,
    overrides: Overrides | None = None,
    *,
    engines: Sequence[str] = (),
    results: PathLike = "results",
    name: str | None = None,
    command: tuple[str, ...] = (),
    say: Say = silent,
) -> Experiment:
    """Prepare the environments of both sides and write run.json; nothing has been measured yet.

    ``old`` and ``new`` are each a matrix, a folder with a matrix.yaml (such as a worktree of another commit), or a run.
    The design is the new side's, with its baseline or the environments that are asked for. Raises InputError where the
    sides cannot be compared, and as ``envmatrix.run``.
    """
    if name is not None and not NAME.match(name):
        raise InputError(f"--name: {name!r} is no usable name", remedy="use letters, digits, '.', '_', '+' and '-'")
    sides = (find_side("old", old, results), find_side("new", new, results))
    chosen = _design(sides[1], design, overrides or Overrides())
    check_comparable(sides, chosen)
    names = requested_engines(chosen, engines, say)
    matrix = sides[1].matrix
    for own in (name for name in chosen.workloads if matrix.workloads[name].command):
        say(f"workload {own}: the program beside {matrix.path} runs on both sides")
    host = place(matrix, chosen, names, DEFAULT, {}, say)
    return begin(matrix, chosen, names, Path(results), say, command, host=host, name=name, sides=sides)


def _design(side: Side, name: str | None, asked: Overrides) -> Design:
    known = side.run.design if side.run and name is None else None
    found = known or find_design(side.matrix, name or "default")
    limits = {key: value for key, value in vars(asked).items() if key != "environments" and value is not None}
    return side_design(overridden(found, limits), asked.environments)


def find_side(name: str, given: PathLike, results: PathLike = "results") -> Side:
    """Return what one word of ``compare --rerun`` means; InputError where it is neither a matrix nor a run."""
    path = Path(given)
    if path.is_file():
        return Side(name, load(path))
    if (path / "matrix.yaml").is_file() and not (path / "run.json").exists():
        return Side(name, load(path / "matrix.yaml"))
    try:
        folder = find_run(given, results)
    except InputError as error:
        said = f"{str(given)!r} is no matrix, no folder with a matrix.yaml and no run"
        raise InputError(said, remedy=error.remedy) from error
    return _side_of_run(name, folder)


def _side_of_run(name: str, folder: RunFolder) -> Side:
    run = folder.load_here()
    if run.sides:
        remedy = f"name one of its sides: {folder.path / 'sides' / name}"
        raise InputError(f"run {run.name} compares two matrices itself", remedy=remedy)
    file = folder.matrix_file if folder.matrix_file.exists() else folder.run_file
    return Side(name, parse(str(folder.names.real(folder.matrix())), _home_of(run)), file, run)


def _home_of(run: Run) -> Path:
    """Return the matrix beside which a run's locks and programs lie: its command's, where that is here."""
    words = [word for part in run.command for word in part.split("=", 1)]
    named = [Path(then) for word, then in itertools.pairwise(words) if word == "--matrix"]
    return next((path for path in named if path.is_file()), find_matrix())


def compared(folder: RunFolder, allowed: float = 0.0) -> Comparison:
    """Compare the two sides of a run that ``begin_rerun`` began."""
    run = folder.load()
    return compare_sides(run, read_measurements(folder, run.plan), allowed)
