"""Types and validation for starting a user's program: command, variables and folders."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator

from envmatrix.matrix.types import AS_SCALAR, AS_WORDS, VARIABLE, Text, word_as_list
from envmatrix.system import bench_options

#: Placeholders for a user's folders at the start of paths in a run's files (``results/anonymize.py``).
FOLDER_PLACEHOLDER = re.compile(r"\{(home|cache|matrix)\}(/|\Z)")


def _check_program_variable(value: str) -> str:
    if not VARIABLE.match(value):
        msg = f"{value!r} is not a valid variable name (letters, digits, underscore)"
        raise ValueError(msg)
    instead = {"LD_PRELOAD": "write `preload:` in a level", "HOME": "write `home: real`"}.get(value)
    if instead or value.startswith(("ENVMATRIX_", "BENCH_")):
        msg = f"{value} is set by envmatrix" + (f"; {instead}" if instead else "")
        raise ValueError(msg)
    return value


def _check_not_secret(name: str) -> str:
    """Reject a variable that looks like a secret: matrix.yaml is stored with the run and may be shared."""
    if bench_options.hides_value(name):
        msg = f"{name} looks like a secret, and a run stores its matrix; export it, and write `pass_env: {name}`"
        raise ValueError(msg)
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
        msg = f"commands do not run in a shell, so {operator!r} would be an argument; write [bash, -c, {value!r}]"
        raise ValueError(msg)
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


def _check_mount_folder(value: str) -> str:
    if (
        not (value.startswith("/") or FOLDER_PLACEHOLDER.match(value))
        or re.search(r"[:,\\\s]", value)
        or not value.strip("/")
    ):
        msg = f"{value!r} must be the absolute path of a folder other than /, without spaces, colons and commas"
        raise ValueError(msg)
    return value


ProgramVariable = Annotated[str, AfterValidator(_check_program_variable)]
WrittenVariable = Annotated[ProgramVariable, AfterValidator(_check_not_secret)]
PassedVariables = Annotated[tuple[ProgramVariable, ...], BeforeValidator(word_as_list), AS_WORDS]
Command = Annotated[tuple[Text, ...], BeforeValidator(_split_command), AS_WORDS]
Folder = Annotated[Text, AfterValidator(_check_mount_folder), AS_SCALAR]
Folders = Annotated[tuple[Folder, ...], BeforeValidator(word_as_list), AS_WORDS]
