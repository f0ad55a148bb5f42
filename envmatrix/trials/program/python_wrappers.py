"""Wrappers such as `uv run` and `poetry run`, which choose a Python by the current folder.

A trial has a folder of its own. There `uv run` would install the copied project into the user's environment, and other
wrappers would create an empty environment. So their Python is resolved here, once.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from envmatrix.errors import InputError
from envmatrix.system.progress import ProgressCallback
from envmatrix.system.regular_files import RefusedFileError, read_bytes

#: NAME of `NAME run` -> the command that prints its Python.
_PYTHON_COMMANDS = {
    "poetry": "poetry env info --executable",
    "pipenv": "pipenv --py",
    "pdm": "pdm info --python",
    "hatch": "hatch run which python",
    "pixi": "pixi run which python",
    "rye": "rye run which python",
    "conda": "conda run -n NAME which python",
    "mamba": "mamba run -n NAME which python",
    "micromamba": "micromamba run -n NAME which python",
}
#: Options of `uv run` that change nothing about an environment that is used as it is.
_UV_WITHOUT_EFFECT = frozenset(
    ("--", "--frozen", "--locked", "--no-progress", "--no-sync", "--offline", "--quiet", "-q")
)
_LARGEST_SCRIPT = 2**20
#: The first line of the list of packages that a script may have (PEP 723).
_PACKAGES_IN_SCRIPT = re.compile(rb"^# /// script\s*$", re.MULTILINE)


def unwrap_command(words: tuple[str, ...], progress: ProgressCallback) -> tuple[str, ...]:
    """Return the words of the program itself. Raises InputError if its Python is unknown."""
    if len(words) < 3 or words[1] != "run":
        return words
    name = Path(words[0]).name
    if name == "uv":
        return _unwrap_uv(words[2:], progress)
    if name in _PYTHON_COMMANDS:
        raise InputError(
            f"`{name} run` picks a Python by the folder it runs in, and a trial runs in another folder",
            remedy=f'use that Python directly: -- "$({_PYTHON_COMMANDS[name]})" train.py',
        )
    return words


def _unwrap_uv(words: tuple[str, ...], progress: ProgressCallback) -> tuple[str, ...]:
    while words[0] in _UV_WITHOUT_EFFECT and len(words) > 1:
        words = words[1:]
    words = ("python", "-m", *words[1:]) if words[0] in ("-m", "--module") else words
    if words[0].startswith("-"):
        raise InputError(
            f"`uv run {words[0]}`: with this option, uv creates a new environment each time",
            remedy="run `uv sync` with the same options, then use its Python: -- .venv/bin/python train.py",
        )
    if _lists_packages(Path(words[0])):
        script = f"--script {words[0]}"
        raise InputError(
            f"{words[0]} lists its own packages (`# /// script`), for which `uv run` creates an environment",
            remedy=f'create it: `uv sync {script}`, then: -- "$(uv python find {script})" {words[0]}',
        )
    current_folder = Path.cwd()
    root = next(
        (folder for folder in (current_folder, *current_folder.parents) if (folder / "pyproject.toml").is_file()),
        current_folder,
    )
    bin_folder = root / os.environ.get("UV_PROJECT_ENVIRONMENT", ".venv") / "bin"
    if not (bin_folder / "python").exists():
        raise InputError(
            f"{bin_folder / 'python'} does not exist yet (`uv run` would create it)", remedy="create it: `uv sync`"
        )
    progress(f"{bin_folder.parent} is used as it is (`uv run` would sync it first)")
    if words[0].endswith(".py"):
        return (str(bin_folder / "python"), *words)
    executable = bin_folder / words[0]
    return (str(executable), *words[1:]) if executable.is_file() else words


def _lists_packages(script: Path) -> bool:
    try:
        return script.suffix == ".py" and _PACKAGES_IN_SCRIPT.search(read_bytes(script, _LARGEST_SCRIPT)) is not None
    except (OSError, RefusedFileError):
        return False
