"""Find matrices and runs by path or name, and parse common arguments."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from envmatrix.errors import InputError, suggestion
from envmatrix.matrix import Matrix, load
from envmatrix.matrix.parse import parse
from envmatrix.results import Run, RunFolder
from envmatrix.system.progress import ProgressCallback, silent
from envmatrix.system.resource_paths import bundled_matrix_file

#: A file or folder.
PathLike = str | os.PathLike[str]
#: Names, or one text with names separated by commas.
Names = str | Sequence[str]
Number = TypeVar("Number", int, float)


_DEFAULT_MATRIX = Path("matrix.yaml")


def has_matrix() -> bool:
    """Return whether ./matrix.yaml exists, even as a broken link."""
    return os.path.lexists(_DEFAULT_MATRIX)


def find_matrix(matrix_path: PathLike | None = None, progress: ProgressCallback = silent) -> Path:
    """Return the path of the named matrix, otherwise ./matrix.yaml, otherwise the built-in matrix.

    ``progress`` reports the use of the built-in one.
    """
    if matrix_path is not None:
        return Path(matrix_path)
    if has_matrix():
        return _DEFAULT_MATRIX
    progress("no matrix.yaml here: using the matrix and the PyTorch that come with envmatrix")
    return bundled_matrix_file()


def load_matrix(matrix_path: PathLike | None = None, progress: ProgressCallback = silent) -> Matrix:
    """Load the matrix that ``find_matrix`` finds. Raises InputError with line and column for an error in it."""
    return load(find_matrix(matrix_path, progress))


def find_run(name: PathLike | None, results: PathLike = "results") -> RunFolder:
    """Return a run's folder: a path, a name under ``results``, or the newest run if ``name`` is None.

    Raises InputError with the nearest name if there is none.
    """
    folder = Path(results)
    run_folders = [file.parent for file in folder.glob("*/run.json")]
    if name is None:
        if not run_folders:
            raise InputError(f"no runs in {folder}", remedy="create one: `envmatrix bench`")
        return RunFolder(max(run_folders, key=lambda path: (path / "run.json").stat().st_mtime))
    run_name = os.fspath(name)
    paths = (Path(name), folder / name) if run_name else ()
    for path in paths:
        if (path / "run.json").exists():
            return RunFolder(path)
        if (path / "study.json").exists():
            raise InputError(
                f"{run_name!r} is a search (`envmatrix tune`), not a run",
                remedy=f"`envmatrix report {run_name}` shows the search; for one of its steps: --results {path} "
                f"{_newest_step(path)}",
            )
    if existing_path := next((path for path in paths if path.exists()), None):
        remedy = "`envmatrix list runs` shows all runs"
        raise InputError(f"{existing_path} is not a run: it has no run.json", remedy=remedy)
    raise InputError(f"no run {run_name!r}", remedy=suggestion(run_name, [path.name for path in run_folders]))


def _newest_step(study: Path) -> str:
    return max((file.parent.name for file in study.glob("*/run.json")), default="STEP")


def matrix_of_run(folder: RunFolder, run: Run, beside: PathLike | None = None) -> Matrix:
    """Return the matrix as it was when a run began.

    ``beside``: a matrix next to its locks and programs. None: that of the run's command, if it is on this machine.
    """
    return parse(str(folder.names.real(folder.matrix())), run_matrix_path(run, beside))


def run_matrix_path(run: Run, beside: PathLike | None = None) -> Path:
    """Return the matrix with a run's locks and programs next to it; arguments as in ``matrix_of_run``.

    For a program of the command line that is one in its folder, which need not exist.
    """
    words = [word for part in run.command for word in part.split("=", 1)]
    matrix_paths = [Path(value) for word, value in itertools.pairwise(words) if word in ("--matrix", "--save")]
    matrix_paths = matrix_paths if beside is None else [Path(beside)]
    if existing_path := next((path for path in matrix_paths if path.is_file()), None):
        return existing_path
    own_folders = [Path(workload.files) for workload in run.workloads.values() if workload.files]
    if run.has_generated_matrix and beside is None and own_folders and own_folders[0].is_dir():
        return own_folders[0] / _DEFAULT_MATRIX
    return find_matrix()


def split_names(names: Names | None) -> tuple[str, ...] | None:
    """Return names as a tuple; None stays None."""
    if names is None:
        return None
    return tuple(name.strip() for name in names.split(",")) if isinstance(names, str) else tuple(names)


def parse_argument(name: str, value: object, parse: Callable[[object], Number]) -> Number:
    """Return an argument such as '3%' or '10m' as a number. Raises InputError with the argument's name."""
    try:
        return parse(value)
    except ValueError as error:
        raise InputError(f"{name}: {error}") from error
