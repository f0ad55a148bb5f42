"""How a program of the user's own is started: its words, its variables, the folders that it sees."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator

from envmatrix.matrix.types import AS_SCALAR, AS_WORDS, VARIABLE, Text, one_word
from envmatrix.system import bench_options

#: How a folder begins in a run's files, which name no user's own (``store/names.py``).
SHOWN_FOLDER = re.compile(r"\{(home|cache|matrix)\}(/|\Z)")


def _program_variable(value: str) -> str:
    if not VARIABLE.match(value):
        msg = f"{value!r} is no variable name (letters, digits, underscore)"
        raise ValueError(msg)
    instead = {"LD_PRELOAD": "write `preload:` in a level", "HOME": "write `home: real`"}.get(value)
    if instead or value.startswith(("ENVMATRIX_", "BENCH_")):
        msg = f"{value} is set by envmatrix itself" + (f"; {instead}" if instead else "")
        raise ValueError(msg)
    return value


def _no_secret(name: str) -> str:
    """Refuse a variable whose value records would hide: matrix.yaml is kept with the run, and shown to others."""
    if bench_options.hides(name):
        msg = f"{name} looks like a secret, and a run keeps its matrix; export it, and write `pass_env: {name}`"
        raise ValueError(msg)
    return name


def _command(value: object) -> object:
    """Split a command that was written as one text into its words, as a shell would; what only a shell does is none."""
    if not isinstance(value, str):
        return value
    found = shlex.shlex(value, posix=True, punctuation_chars=True)
    found.whitespace_split, found.commenters = True, ""
    words = list(found)
    operator = next((word for word in words if word and set(word) <= set("();<>|&")), None)
    if operator is not None:
        msg = f"no shell reads this, so {operator!r} would be an argument; write [bash, -c, {value!r}]"
        raise ValueError(msg)
    return tuple(words)


def of_python(words: Sequence[str]) -> tuple[str, str]:
    """Return what a Python is to run: ('file', FILE), ('module', NAME), or ('', '') for code and standard input.

    ``words`` follow the Python; its own options stand before what it runs (python(1)).
    """
    rest = iter(words)
    for word in rest:
        if word in ("-X", "-W", "--check-hash-based-pycs"):
            next(rest, "")
        elif word == "-m":
            return "module", next(rest, "")
        elif word in ("-", "-c"):
            break
        elif not word.startswith("-"):
            return "file", word
    return "", ""


def _folder_to_mount(value: str) -> str:
    if (
        not (value.startswith("/") or SHOWN_FOLDER.match(value))
        or re.search(r"[:,\\\s]", value)
        or not value.strip("/")
    ):
        msg = f"{value!r} must be an absolute path of a folder, without blanks, colons and commas, and not / itself"
        raise ValueError(msg)
    return value


ProgramVariable = Annotated[str, AfterValidator(_program_variable)]
WrittenVariable = Annotated[ProgramVariable, AfterValidator(_no_secret)]
PassedVariables = Annotated[tuple[ProgramVariable, ...], BeforeValidator(one_word), AS_WORDS]
Command = Annotated[tuple[Text, ...], BeforeValidator(_command), AS_WORDS]
Folder = Annotated[Text, AfterValidator(_folder_to_mount), AS_SCALAR]
Folders = Annotated[tuple[Folder, ...], BeforeValidator(one_word), AS_WORDS]
