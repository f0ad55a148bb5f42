"""The patch that sets up an environment in a user's own .env, Dockerfile, environment.yml or script."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from envmatrix.errors import InputError, Where
from envmatrix.matrix.environment_files import CONDA_KEYS, kind_of_file
from envmatrix.matrix.shell_lines import Command, read_commands
from envmatrix.plan.environment import Environment
from envmatrix.plan.export_lines import (
    BUNDLE_FOLDER,
    all_variables,
    comment_header,
    dockerfile_lines,
    placement_lines,
    shell_lines,
)

_Variables = Mapping[str, str | None]
#: Commands of a script that prepare its work: the lines are inserted before the first other one.
_PREPARING = {
    *("export", "declare", "typeset", "unset", "set", "shopt", "ulimit", "umask", "trap", "eval", "source", "."),
    *("module", "ml", "conda", "mamba", "micromamba", "cd", "mkdir", "date", "hostname", "nvidia-smi"),
    *("echo", "printf", "[", "[[", "test", "true", ":"),
}


def patch_text(file: Path, text: str, environment: Environment, preload: tuple[str, ...], libraries: str = "") -> str:
    """Return a unified diff of ``file``, for `patch` and `git apply`, after which it sets up the environment.

    ``libraries`` is the folder that a Dockerfile copies the preloaded files from ('': they are in its image already).
    Raises InputError for a file that cannot be changed so.
    """
    variables = all_variables(environment, preload)
    header, notes = [comment_header(environment)], placement_lines(environment)
    kind = kind_of_file(file, text)
    if kind == "pyproject":
        what = f"{file.name} has no place for environment variables"
        raise InputError(what, remedy="patch a .env, and start with `uv run --env-file .env`")
    if kind == "dockerfile":
        copied = [f"COPY {json.dumps([libraries, f'{BUNDLE_FOLDER}/lib/'])}"] if libraries else []
        new = _appended(text, [*header, *copied, *dockerfile_lines(variables), *notes])
    elif kind == "script":
        new = _inserted(file, text, [*header, *shell_lines(variables), *notes], variables)
    elif kind == "conda":
        new = _with_conda_variables(file, text, [*header, *notes], variables)
    else:
        lines = [line.removeprefix("export ") for line in shell_lines(variables)]
        new = _appended(
            text, [*header, *(re.sub(r"^unset (.*)", r"# \1 must not be set", line) for line in lines), *notes]
        )
    return _diff(file, text, new)


def _split(text: str) -> list[str]:
    return [line for line in text.replace("\n", "\n\0").split("\0") if line]


def _appended(text: str, lines: Sequence[str]) -> str:
    return text + ("" if text.endswith("\n") or not text else "\n") + "".join(f"{line}\n" for line in lines)


def _inserted(file: Path, text: str, lines: Sequence[str], variables: _Variables) -> str:
    """Insert lines into a script, before the first command that is not there to prepare it."""
    commands = [command for command in read_commands(text) if command.raw]
    place = next((command.line for command in commands if command.certain and not _prepares(command)), 0)
    for command in commands if place else ():
        if command.line >= place and command.raw[0] in ("export", "unset", "declare", "typeset"):
            name = next((name for word in command.words[1:] if (name := re.split(r"\+?=", word)[0]) in variables), None)
            if name:
                what = f"it sets {name} again, after its work begins in line {place}"
                raise InputError(what, where=Where(file, command.number), remedy="move this line to the top")
    before = _split(text)[: place - 1] if place else _split(text)
    whole = "".join(before)
    return _appended(whole, lines) + text[len(whole) :]


def _prepares(command: Command) -> bool:
    return command.raw[0] in _PREPARING or all(re.match(r"[A-Za-z_]\w*\+?=", word) for word in command.raw)


def _with_conda_variables(file: Path, text: str, comments: Sequence[str], variables: _Variables) -> str:
    """Return an environment.yml with these variables; those that it has get the new values."""
    body = yaml.compose(text, yaml.SafeLoader)
    pairs = body.value if isinstance(body, yaml.MappingNode) else []
    if not CONDA_KEYS & {key.value for key, _ in pairs}:
        raise InputError("it is no environment of conda", where=Where(file), remedy="pass an environment.yml")
    node = next((value for key, value in pairs if key.value == "variables"), None)
    lines = {name: f"{name}: {json.dumps(value)}" for name, value in variables.items() if value is not None}
    unset = [f"# {name} must not be set" for name, value in variables.items() if value is None]
    if node is None:
        return _appended(text, [*comments, *unset, "variables:", *(f"  {line}" for line in lines.values())])
    if not isinstance(node, yaml.MappingNode) or node.flow_style or not node.value:
        where = Where(file, node.start_mark.line + 1)
        raise InputError("`variables` is not a block", where=where, remedy="write `NAME: VALUE` lines below it")
    indent, old = " " * node.start_mark.column, _split(text)
    first = node.start_mark.line
    for key, value in reversed(node.value):
        if key.value in variables:
            del old[
                key.start_mark.line : max(key.start_mark.line, value.end_mark.line - (value.end_mark.column == 0)) + 1
            ]
    new = [f"{indent}{line}\n" for line in (*comments, *unset, *lines.values())]
    return "".join([*old[:first], *new, *old[first:]])


def _diff(file: Path, old: str, new: str) -> str:
    name = Path(os.path.relpath(file)).as_posix()
    lines = difflib.unified_diff(_split(old), _split(new), f"a/{name}", f"b/{name}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
