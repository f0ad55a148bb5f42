"""What a program that failed may lack, as far as its last words tell: one sentence each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from envmatrix.matrix.model import Workload
from envmatrix.plan.environment import Image
from envmatrix.trials.program_variables import likely_needed_variables, missing_module_name

#: A path that leads out of the folder that it begins in.
_OUTSIDE_PATH = re.compile(r"(?:^|[\s'\"=(])(\.\./[^\s'\":,)]*)")


def find_failure_hints(workload: Workload, image: Image, said: str, folder: Path) -> str:
    """Return what a program of the command line may lack, and the option that gives it; '' where nothing tells.

    ``said`` is the end of what it printed, ``folder`` the one that it lies in.
    """
    return "; ".join(_iterate_hints(workload, image, said, folder))


def _iterate_hints(workload: Workload, image: Image, output: str, folder: Path) -> Iterator[str]:
    if line := missing_module_hint(image, output, folder):
        yield line
    names = [
        name
        for name in likely_needed_variables((), output, places=False)
        if name not in (*workload.pass_env, *workload.env)
    ]
    if names:
        yield f"it did not get {', '.join(names)} from your shell: --pass-env {','.join(names)}"
    if line := outside_path_hint(workload, output):
        yield line


def missing_module_hint(image: Image, output: str, folder: Path) -> str:
    """Say which module the Python of a program of the command line lacks, and the option that gives it; else ''."""
    module = missing_module_name(output)
    if not module:
        return ""
    if image.requirements:
        return (
            f"{image.interpreter} with its requirements has no module {module!r}: add its package to the "
            "requirements file"
        )
    files = [name for name in ("requirements.txt", "pyproject.toml") if (folder / name).is_file()]
    file = next(iter(files), "requirements.txt")
    return (
        f"{image.interpreter} has no module {module!r}: install it there, use another Python (-- "
        f".venv/bin/python ...), or add requirements on top (-r {file})"
    )


def outside_path_hint(workload: Workload, output: str) -> str:
    """Say what a trial sees of `..`, if the words of a program or its last ones name a path there; else ''."""
    for text in (*workload.command, output):
        match = _OUTSIDE_PATH.search(text)
        if match:
            return (
                f"{match[1]} was not found: a trial sees only the program's folder (and, outside containers, "
                "files up to two folders above it); use the absolute path"
            )
    return ""
