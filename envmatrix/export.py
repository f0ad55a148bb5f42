"""The lines that set up an environment elsewhere. Pure functions: text in, text out, every value quoted."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping

from envmatrix.environment import Environment


def variables_of(environment: Environment, preload: tuple[str, ...]) -> dict[str, str | None]:
    """Return every variable an environment needs, LD_PRELOAD among them; None: must not be set."""
    listed = dict(environment.variables)
    return {**listed, "LD_PRELOAD": ":".join(preload)} if preload else listed


def export_lines(environment: Environment, preload: tuple[str, ...], form: str) -> str:
    """Return the lines for a POSIX shell, a Dockerfile or a program (JSON)."""
    variables = variables_of(environment, preload)
    if form == "json":
        return json.dumps({"environment": environment.name, "variables": variables, "cpus": environment.cpus}, indent=2)
    head = f"# environment {environment.name}: {environment.levels_text()}"
    lines = _sh(variables) if form == "sh" else _dockerfile(variables)
    return "\n".join([head, *lines, *_placement(environment)])


def _sh(variables: Mapping[str, str | None]) -> list[str]:
    return [
        f"unset {name}" if value is None else f"export {name}={shlex.quote(value)}" for name, value in variables.items()
    ]


def _dockerfile(variables: Mapping[str, str | None]) -> list[str]:
    return [f"ENV {name}={dockerfile_quote(value)}" for name, value in variables.items() if value is not None]


def dockerfile_quote(value: str) -> str:
    """Quote a value for a Dockerfile's ENV: double quotes, with backslash, quote and dollar escaped."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$")
    return f'"{escaped}"'


def _placement(environment: Environment) -> list[str]:
    return [f"# start it on these CPUs: taskset --cpu-list {environment.cpus} COMMAND"] if environment.cpus else []
