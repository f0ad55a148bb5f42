"""What a use case is about: the matrix, and runs by name."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from envmatrix.errors import InputError, suggestion
from envmatrix.matrix import Matrix, load
from envmatrix.matrix.parse import parse
from envmatrix.results import Run, RunFolder
from envmatrix.system.progress import ProgressCallback, silent
from envmatrix.system.project import default_matrix
from envmatrix.units import parse_percent

#: A file or folder.
PathLike = str | os.PathLike[str]
#: Names, or a text of names separated by commas.
Names = str | Sequence[str]


_DEFAULT_MATRIX = Path("matrix.yaml")


def has_matrix() -> bool:
    """Whether there is a ./matrix.yaml, be it one that leads nowhere."""
    return os.path.lexists(_DEFAULT_MATRIX)


def find_matrix(matrix_path: PathLike | None = None, progress: ProgressCallback = silent) -> Path:
    """Return the path of the matrix named, else ./matrix.yaml, else of the one that comes with envmatrix.

    ``progress`` is told of the last.
    """
    if matrix_path is not None:
        return Path(matrix_path)
    if has_matrix():
        return _DEFAULT_MATRIX
    progress("no matrix.yaml here: using the matrix and the PyTorch that come with envmatrix")
    return default_matrix()


def load_matrix(matrix_path: PathLike | None = None, progress: ProgressCallback = silent) -> Matrix:
    """Load what ``find_matrix`` finds; raises InputError with line and column for what is wrong in it."""
    return load(find_matrix(matrix_path, progress))


def find_run(name: PathLike | None, results: PathLike = "results") -> RunFolder:
    """Return a run's folder: a path, a name under ``results``, or the newest run when ``name`` is None.

    Raises InputError with the nearest name when there is none.
    """
    folder = Path(results)
    run_folders = [file.parent for file in folder.glob("*/run.json")]
    if name is None:
        if not run_folders:
            raise InputError(f"no runs in {folder}", remedy="create one: `envmatrix bench`")
        return RunFolder(max(run_folders, key=lambda path: (path / "run.json").stat().st_mtime))
    for path in (Path(name), folder / name) if os.fspath(name) else ():
        if (path / "run.json").exists():
            return RunFolder(path)
        if (path / "study.json").exists():
            raise InputError(
                f"{os.fspath(name)!r} is a search (`envmatrix tune`), not a run",
                remedy=f"`envmatrix report {os.fspath(name)}` shows the search; for one of its steps: --results {path} "
                f"{_newest_step(path)}",
            )
    existing_path = next((path for path in (Path(name), folder / name) if os.fspath(name) and path.exists()), None)
    if existing_path:
        raise InputError(
            f"{existing_path} is not a run: it has no run.json", remedy="`envmatrix list runs` shows all runs"
        )
    raise InputError(
        f"no run {os.fspath(name)!r}", remedy=suggestion(os.fspath(name), [path.name for path in run_folders])
    )


def _newest_step(study: Path) -> str:
    return max((file.parent.name for file in study.glob("*/run.json")), default="STEP")


def matrix_of_run(folder: RunFolder, run: Run, beside: PathLike | None = None) -> Matrix:
    """Return the matrix as it was when a run began; locks and programs lie beside its command's, where that is here.

    ``beside``: a matrix that they lie beside now.
    """
    return parse(str(folder.names.real(folder.matrix())), run_matrix_path(run, beside), begun=True)


def run_matrix_path(run: Run, beside: PathLike | None = None) -> Path:
    """Return the matrix that the locks and programs of a run lie beside; arguments as of ``matrix_of_run``."""
    words = [word for part in run.command for word in part.split("=", 1)]
    matrix_paths = [Path(value) for word, value in itertools.pairwise(words) if word == "--matrix"]
    matrix_paths = matrix_paths if beside is None else [Path(beside)]
    return next((path for path in matrix_paths if path.is_file()), find_matrix())


def split_names(names: Names | None) -> tuple[str, ...] | None:
    """Return names as a tuple; None stays None."""
    if names is None:
        return None
    return tuple(name.strip() for name in names.split(",")) if isinstance(names, str) else tuple(names)


def parse_fraction(name: str, value: float | str, parse: Callable[[object], float] = parse_percent) -> float:
    """Return what an argument called ``name`` says as 0.03 or '3%'; an InputError names it where it says neither."""
    try:
        return parse(value)
    except ValueError as error:
        raise InputError(f"{name}: {error}") from error
