"""The lines that set up an environment outside envmatrix, and the patch of a user's own file that adds them.

Such a file is a .env, Dockerfile, environment.yml or script. Pure functions from text to text; every value is quoted.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from envmatrix.errors import InputError, Where
from envmatrix.matrix.environment_files import CONDA_KEYS, kind_of_file
from envmatrix.matrix.shell_lines import Command, read_commands
from envmatrix.plan.environment import Environment
from envmatrix.system.resource_paths import cache_folder

#: The folder of a bundle's files inside an image.
BUNDLE_FOLDER = "/opt/envmatrix"
#: The words of a command that mean the environment's own Python.
PYTHONS = ("python", "python3")
#: Settings that the benchmark applies to its process (bench/requested_memory_policy.py); other programs need a prefix.
_MEMORY_VARIABLES = ("BENCH_HUGE_PAGES", "BENCH_INTERLEAVE")
_NO_HUGE_PAGES = "import ctypes, os, sys; ctypes.CDLL(None).prctl(41, 1, 0, 0, 0); os.execvp(sys.argv[1], sys.argv[1:])"
_Variables = Mapping[str, str | None]
#: Commands of a script that prepare its work: the lines are inserted before the first other one.
_PREPARING = {
    *("export", "declare", "typeset", "unset", "set", "shopt", "ulimit", "umask", "trap", "eval", "source", "."),
    *("module", "ml", "conda", "mamba", "micromamba", "cd", "mkdir", "date", "hostname", "nvidia-smi"),
    *("echo", "printf", "[", "[[", "test", "true", ":"),
}


def memory_policy_command(environment: Environment, python: str = "python3") -> tuple[str, ...]:
    """Return the command prefix with the memory policy that the benchmark sets for itself; () for none."""
    pages, nodes = (environment.variables.get(name) for name in _MEMORY_VARIABLES)
    without = (python, "-c", _NO_HUGE_PAGES) if pages else ()
    return (*without, *(("numactl", f"--interleave={nodes}") if nodes else ()))


def all_variables(environment: Environment, preload: tuple[str, ...]) -> dict[str, str | None]:
    """Return every variable an environment needs, including LD_PRELOAD; None: must not be set.

    Variables that only the benchmark reads are left out; ``placement`` replaces them. Raises InputError for a library
    that the loader cannot preload.
    """
    bad_path = next((path for path in preload if re.search(r"[\s:]", path)), None)
    if bad_path:
        raise InputError(
            f"{bad_path!r} cannot be preloaded: the loader splits LD_PRELOAD at spaces and colons (ld.so(8))",
            remedy="copy it to a folder without them: `envmatrix export ENV --bundle DIR`",
        )
    set_variables = {name: value for name, value in environment.variables.items() if name not in _MEMORY_VARIABLES}
    return {**set_variables, "LD_PRELOAD": ":".join(preload)} if preload else set_variables


def export_lines(environment: Environment, preload: tuple[str, ...], form: str) -> str:
    """Return the lines for a POSIX shell or a program (JSON)."""
    variables = all_variables(environment, preload)
    if form == "json":
        placement_fields = {
            "cpus": environment.cpus,
            "memory_nodes": environment.memory_nodes,
            "cpu_quota": environment.cpu_quota,
            "start_with": shlex.split(placement(environment)),
        }
        return json.dumps({"environment": environment.name, "variables": variables, **placement_fields}, indent=2)
    return "\n".join(
        [
            comment_header(environment),
            *cached_libraries_note(environment, preload),
            *shell_lines(variables),
            *placement_lines(environment),
        ]
    )


def cached_libraries_note(environment: Environment, preload: tuple[str, ...]) -> list[str]:
    """Return a line on how to keep libraries of the cache, which users may delete."""
    if not any(Path(path).is_relative_to(cache_folder()) for path in preload):
        return []
    name = shlex.quote(environment.name)
    return [f"# the libraries are in envmatrix's cache; to copy them: envmatrix export {name} --bundle DIR"]


def dockerfile(environment: Environment, preload: tuple[str, ...], base: str, libraries: str = "") -> str:
    """Return a Dockerfile. ``preload`` are paths inside the image; ``libraries`` as in ``environment_patch``."""
    variables = all_variables(environment, preload)
    return "\n".join(
        [
            comment_header(environment),
            "# in the folder of this file: docker build -t NAME --build-arg BASE=<your image> .",
            f"ARG BASE={base}",
            "FROM ${BASE}",
            *_copy_lines(libraries),
            *dockerfile_lines(variables),
            *placement_lines(environment),
        ]
    )


def comment_header(environment: Environment) -> str:
    """Return the line above the others."""
    return f"# environment {environment.name}: {environment.levels_text()}"


def shell_lines(variables: _Variables) -> list[str]:
    """Return lines for a POSIX shell."""
    return [
        f"unset {name}" if value is None else f"export {name}={shlex.quote(value)}" for name, value in variables.items()
    ]


def dockerfile_lines(variables: _Variables) -> list[str]:
    """Return ENV lines; Docker cannot unset a variable."""
    lines = [f"ENV {name}={dockerfile_quote(value)}" for name, value in variables.items() if value is not None]
    return [*lines, *(f"# {name} must not be set" for name, value in variables.items() if value is None)]


def dockerfile_quote(value: str) -> str:
    """Quote a value for a Dockerfile's ENV: double quotes, with backslash, quote and dollar escaped."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$")
    return f'"{escaped}"'


def posix_quote(text: str) -> str:
    """Quote a text for a POSIX shell. Raises InputError for a newline or another control character."""
    if re.search(r"[\x00-\x1f\x7f]", text):
        raise InputError(
            f"{text!r} contains a newline or another control character, which is not safe in a batch script",
            remedy="rename the folder, or change the value",
        )
    return shlex.quote(text)


def program_command(python: str, program: Sequence[str]) -> str:
    """Return the shell command that starts a user's program; () is unknown: a line to edit."""
    if not program:
        return f"{posix_quote(python)} train.py  # <your program>"
    program_name, *program_arguments = program
    return " ".join(map(posix_quote, (python if program_name in PYTHONS else program_name, *program_arguments)))


def placement(environment: Environment) -> str:
    """Return the command prefix that places a process on the environment's CPUs and memory; '' if anywhere."""
    cpus = f"taskset --cpu-list {shlex.quote(environment.cpus)} " if environment.cpus else ""
    nodes = environment.memory_nodes
    bound = f"numactl --membind={shlex.quote(nodes)} " if nodes else ""
    return "".join([cpus, bound, *(f"{shlex.quote(word)} " for word in memory_policy_command(environment))])


def quota_note(environment: Environment) -> list[str]:
    """Return a line on how to set the CPU quota outside envmatrix, as no variable can set it."""
    quota = environment.cpu_quota
    if quota is None:
        return []
    quota_commands = (
        f"docker run --cpus {quota:g}, a pod's limits.cpu, systemd-run --user --scope -p CPUQuota={quota * 100:g}%"
    )
    return [f"# it was limited to the CPU time of {quota:g} CPUs: {quota_commands}"]


def placement_lines(environment: Environment) -> list[str]:
    """Return comments on what no variable sets: where the program runs, and how much CPU time it has."""
    prefix = placement(environment)
    start = [f"# start your program with: {prefix}COMMAND"] if prefix else []
    return [*start, *quota_note(environment)]


def environment_patch(
    file: Path, text: str, environment: Environment, preload: tuple[str, ...], libraries: str = ""
) -> str:
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
        new = _appended(text, [*header, *_copy_lines(libraries), *dockerfile_lines(variables), *notes])
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


def _copy_lines(libraries: str) -> list[str]:
    return [f"COPY {json.dumps([libraries, f'{BUNDLE_FOLDER}/lib/'])}"] if libraries else []


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
