"""How a run is started and stored: what every command that begins or resumes one passes on, next to its matrix."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from envmatrix.errors import InputError
from envmatrix.matrix.model import NAME
from envmatrix.results.run_model import LauncherOptions
from envmatrix.system.progress import ProgressCallback, silent

#: Most characters of a name that a user gives, and how many more a derived one may have: file systems allow 255.
_MAX_NAME_LENGTH, _DERIVED_LENGTH = 200, 20


@dataclass(frozen=True)
class NewRun:
    """A run that begins, or begins again: ``name`` None is design and time, ``command`` the command line that began it.

    ``host_names``: record real host names, not node-1, node-2, ... Raises InputError for a bad name.
    """

    results: str | os.PathLike[str] = "results"
    name: str | None = None
    launcher: str = "here"
    launcher_options: LauncherOptions = field(default_factory=dict)
    command: tuple[str, ...] = ()
    host_names: bool = False
    progress: ProgressCallback = silent

    def __post_init__(self) -> None:
        if self.name is not None:
            check_run_name(self.name, _MAX_NAME_LENGTH + _DERIVED_LENGTH)


def check_run_name(name: str, longest: int = _MAX_NAME_LENGTH) -> None:
    """Raise InputError for a name that a run or a search cannot have."""
    if len(name) > longest:
        raise InputError(
            f"--name: {len(name)} characters are too many for the name of a folder",
            remedy=f"use at most {longest}",
        )
    if not NAME.match(name):
        raise InputError(f"--name: {name!r} is not a valid name", remedy="use letters, digits, '.', '_', '+' and '-'")
