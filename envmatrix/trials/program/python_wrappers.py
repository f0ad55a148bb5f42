"""Wrappers such as `uv run` and `poetry run`, which choose a Python by the current folder.

A trial has a folder of its own. There `uv run` would install the copied project into the user's environment, and other
wrappers would create an empty environment. So their Python is resolved here, once.
"""

from __future__ import annotations

import os
from pathlib import Path

from envmatrix.errors import InputError
from envmatrix.system.progress import ProgressCallback

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


def unwrap_command(words: tuple[str, ...], progress: ProgressCallback) -> tuple[str, ...]:
    """Return the words of the program itself. Raises InputError if its Python is unknown."""
    if len(words) < 3 or words[1] != "run":
        return words
    if words[0] == "uv":
        return _unwrap_uv(words[2:], progress)
    if words[0] in _PYTHON_COMMANDS:
        raise InputError(
            f"`{words[0]} run` picks a Python by the folder it runs in, and a trial runs in another folder",
            remedy=f'use that Python directly: -- "$({_PYTHON_COMMANDS[words[0]]})" train.py',
        )
    return words


def _unwrap_uv(words: tuple[str, ...], progress: ProgressCallback) -> tuple[str, ...]:
    if words[0].startswith("-"):
        raise InputError(
            f"`uv run {words[0]}`: with this option, uv creates a new environment each time",
            remedy="run `uv sync` with the same options, then use its Python: -- .venv/bin/python train.py",
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
