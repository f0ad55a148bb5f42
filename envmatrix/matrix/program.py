"""Types and validation for starting a user's program: command, variables and folders."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator

from envmatrix.matrix.types import AS_WORDS, Text, VariableName, matching
from envmatrix.system import bench_options


def _check_program_variable(value: str) -> str:
    instead = {"LD_PRELOAD": "write `preload:` in a level", "HOME": "write `home: real`"}.get(value)
    if instead or value.startswith(("ENVMATRIX_", "BENCH_")):
        raise ValueError(f"{value} is set by envmatrix" + (f"; {instead}" if instead else ""))
    return value


def _check_not_secret(name: str) -> str:
    """Reject a variable that looks like a secret: matrix.yaml is stored with the run and may be shared."""
    if bench_options.hides_value(name):
        raise ValueError(
            f"{name} looks like a secret, and a run stores its matrix; export it, and write `pass_env: {name}`"
        )
    return name


def _split_command(value: object) -> object:
    """Split a command written as one text into words as a shell would; reject shell operators."""
    if not isinstance(value, str):
        return value
    lexer = shlex.shlex(value, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    words = list(lexer)
    operator = next((word for word in words if word and set(word) <= set("();<>|&")), None)
    if operator is not None:
        raise ValueError(
            f"commands do not run in a shell, so {operator!r} would be an argument; write [bash, -c, {value!r}]"
        )
    return tuple(words)


def python_target(words: Sequence[str]) -> tuple[str, str]:
    """Return what Python is asked to run: ('file', FILE), ('module', NAME), or ('', '') for code and standard input.

    ``words`` are the arguments of Python; its own options come before what it runs (python(1)).
    """
    remaining = iter(words)
    for word in remaining:
        if word in ("-X", "-W", "--check-hash-based-pycs"):
            next(remaining, "")
        elif word == "-m":
            return "module", next(remaining, "")
        elif word in ("-", "-c"):
            break
        elif not word.startswith("-"):
            return "file", word
    return "", ""


ProgramVariable = Annotated[VariableName, AfterValidator(_check_program_variable)]
WrittenVariable = Annotated[ProgramVariable, AfterValidator(_check_not_secret)]
Command = Annotated[tuple[Text, ...], BeforeValidator(_split_command), AS_WORDS]
#: It may begin with a placeholder for a user's folder, as in a run's files (``results/anonymize.py``).
Folder = Annotated[
    Text,
    matching(
        r"(?=.*[^/])(/|\{(home|cache|matrix)\}(/|\Z))[^:,\\\s]*",
        "must be the absolute path of a folder other than /, without spaces, colons and commas",
    ),
]
