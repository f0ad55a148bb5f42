"""The lines that set up an environment outside envmatrix. Pure functions from text to text; every value is quoted."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from envmatrix.errors import InputError
from envmatrix.plan.environment import Environment
from envmatrix.system.project import cache_folder

#: The folder of a bundle's files inside an image.
BUNDLE_FOLDER = "/opt/envmatrix"
#: The words of a command that mean the environment's own Python.
PYTHONS = ("python", "python3")
#: Settings that the benchmark applies to its own process (bench/memory.py). Other programs need a command prefix.
_MEMORY_VARIABLES = ("BENCH_HUGE_PAGES", "BENCH_INTERLEAVE")
_NO_HUGE_PAGES = "import ctypes, os, sys; ctypes.CDLL(None).prctl(41, 1, 0, 0, 0); os.execvp(sys.argv[1], sys.argv[1:])"


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
            *cache_note(environment, preload),
            *shell_lines(variables),
            *placement_lines(environment),
        ]
    )


def cache_note(environment: Environment, preload: tuple[str, ...]) -> list[str]:
    """Return a line on how to keep libraries of the cache, which users may delete."""
    if not any(Path(path).is_relative_to(cache_folder()) for path in preload):
        return []
    name = shlex.quote(environment.name)
    return [f"# the libraries are in envmatrix's cache; to copy them: envmatrix export {name} --bundle DIR"]


def dockerfile(environment: Environment, preload: tuple[str, ...], base: str) -> str:
    """Return a Dockerfile. ``preload`` are paths inside the image; those in ``BUNDLE_FOLDER`` are copied from lib/."""
    variables = all_variables(environment, preload)
    bundled = any(path.startswith(f"{BUNDLE_FOLDER}/") for path in preload)
    return "\n".join(
        [
            comment_header(environment),
            "# in the folder of this file: docker build -t NAME --build-arg BASE=<your image> .",
            f"ARG BASE={base}",
            "FROM ${BASE}",
            *([f"COPY lib/ {BUNDLE_FOLDER}/lib/"] if bundled else []),
            *dockerfile_lines(variables),
            *placement_lines(environment),
        ]
    )


def comment_header(environment: Environment) -> str:
    """Return the line above the others."""
    return f"# environment {environment.name}: {environment.levels_text()}"


def shell_lines(variables: Mapping[str, str | None]) -> list[str]:
    """Return lines for a POSIX shell."""
    return [
        f"unset {name}" if value is None else f"export {name}={shlex.quote(value)}" for name, value in variables.items()
    ]


def dockerfile_lines(variables: Mapping[str, str | None]) -> list[str]:
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
