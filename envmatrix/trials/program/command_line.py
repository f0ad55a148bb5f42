"""Command lines that cannot run in a trial, or would do their work outside it; each error says what to type."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from envmatrix.errors import InputError
from envmatrix.system.start_errors import NOEXEC, NOT_EXECUTABLE, describe_unusable

_PYTHON = re.compile(r"python(\d(\.\d+)?t?)?\Z")
SHELLS = frozenset(("ash", "bash", "csh", "dash", "fish", "ksh", "mksh", "sh", "tcsh", "zsh"))
#: Words that a shell reads itself. `time` is a program too, if it is installed.
_SHELL_WORDS = frozenset(
    (".", "[[", "alias", "bg", "builtin", "cd", "eval", "exec", "export", "for", "if", "let", "popd", "pushd",
     "set", "source", "trap", "ulimit", "umask", "unset", "until", "wait", "while")
)  # fmt: skip
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_SHELL_SYNTAX = re.compile(r"[;&|<>$`*]")
#: Control characters, and bytes that are not UTF-8.
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
#: Substituted by a shell for `<(LINE)`.
_SHELL_PIPE = re.compile(r"/(dev|proc/(self|\d+))/fd/\d+\Z")
_OTHER_USERS = frozenset(("doas", "pkexec", "runuser", "su", "sudo"))
#: Programs that start theirs on other machines, or later -> the option for that.
_JOB_STARTERS = {
    "bsub": "--launcher lsf", "qsub": "--launcher pbs", "salloc": "--launcher slurm", "sbatch": "--launcher slurm",
    "srun": "--launcher slurm", "ssh": "--launcher ssh --hosts HOST",
}  # fmt: skip


def is_python(program: str) -> bool:
    """Return whether a program is a Python, by its name."""
    return _PYTHON.match(Path(program).name) is not None


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


def reads_program_from_input(words: tuple[str, ...]) -> bool:
    """Return whether a Python or a shell would read its program from standard input."""
    name = Path(words[0]).name
    return (is_python(name) or name in SHELLS) and words[1:] in ((), ("-",), ("-s",))


def check_command_line(words: tuple[str, ...]) -> None:
    """Raise InputError for a command line whose work would not be done in the trials, or only in the first one."""
    name = Path(words[0]).name
    if not words[0].strip():
        raise InputError("the program after `--` is an empty word", remedy="is a variable of your shell not set?")
    if reads_program_from_input(words):
        raise InputError(
            f"{' '.join(words)} reads a program from standard input, which is empty in a trial",
            remedy=f"write the program into a file and name it: -- {words[0]} FILE",
        )
    if _UNPRINTABLE.search(str(Path.cwd())):
        raise InputError(
            f"the name of the folder {str(Path.cwd())!r} has a newline or bytes that are not UTF-8",
            remedy="rename it, or copy your program to another folder",
        )
    odd_word = next(filter(_UNPRINTABLE.search, words), None)
    if odd_word:
        raise InputError(
            f"{odd_word!r} has a newline or another character that engines pass differently",
            remedy=f"write it into a file without such characters in its name, and name that: -- {words[0]} FILE",
        )
    pipe = next(filter(_SHELL_PIPE.match, words), None)
    if pipe:
        raise InputError(
            f"{pipe} is a pipe of your shell, which can be read only once: a program runs several times",
            remedy="write its content into a file and name that; or quote the whole line: -- bash -c 'LINE'",
        )
    if name in _OTHER_USERS:
        raise InputError(
            f"{name} removes the variables and libraries of an environment",
            remedy=f"leave it out here, and write it first: {name} envmatrix bench -- PROGRAM",
        )
    if name in _JOB_STARTERS:
        raise InputError(
            f"{name} starts its program outside the trial, where nothing is set or verified",
            remedy=f"leave it out, and let envmatrix do that: {_JOB_STARTERS[name]} -- PROGRAM",
        )


def missing_program_error(words: tuple[str, ...]) -> InputError:
    """Return the error for a program that a shell would not find either."""
    reason = describe_unusable(words[0])
    message = f"cannot start {words[0]!r}: {reason}" if reason else f"no such program: {words[0]!r}"
    return InputError(message, remedy=_start_remedy(words, reason))


def _start_remedy(words: tuple[str, ...], reason: str) -> str:
    program, line = words[0], shlex.join(words)
    file = Path(program)
    if len(words) == 1 and " " in program.strip():
        return _unquoted(program)
    if _ASSIGNMENT.match(program):
        return f"-- env {' '.join(words)}"
    if program == "time":
        return f"leave it out, as each run is timed: -- {' '.join(words[1:])}"
    if program in _SHELL_WORDS:
        return f"{program} is part of a shell: pass it the whole line, in quotes: -- bash -c '{line} ...'"
    if file.is_file() and file.suffix == ".py":
        return f"-- python {' '.join(words)}"
    if reason == NOT_EXECUTABLE:
        return f"make it executable (`chmod +x {program}`), or name its interpreter: -- bash {' '.join(words)}"
    if reason == NOEXEC:
        return f"name its interpreter: -- bash {' '.join(words)}; or copy it to another file system"
    if reason:
        return "correct the path, or name another program"
    if file.is_file():
        return f"add the folder, as in a shell: -- ./{' '.join(words)}"
    return _similar_name(file.name) or (
        "pass a program on the PATH, or a file: -- ./run.sh. If it is an alias or a function of your shell, write what "
        f"it stands for: `type {program}` prints it"
    )


def _unquoted(line: str) -> str:
    if _SHELL_SYNTAX.search(line) or line.split()[0] in _SHELL_WORDS:
        return f"pass it to a shell: -- bash -c {shlex.quote(line)}"
    return f"without quotes: -- {'env ' if _ASSIGNMENT.match(line) else ''}{line}"


def _similar_name(name: str) -> str:
    similar_names = get_close_matches(name, [path.name for path in Path.cwd().iterdir()], n=1)
    return f"did you mean ./{similar_names[0]}?" if similar_names else ""
