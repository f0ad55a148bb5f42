"""Command lines that cannot run in a trial, or would do their work outside it; each error says what to type.

Wrappers such as `uv run` and `poetry run` choose a Python by the current folder, and a trial has a folder of its own.
There `uv run` would install the copied project into the user's environment, and other wrappers would create an empty
environment. So their Python is resolved here, once.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from envmatrix.errors import InputError
from envmatrix.system.progress import ProgressCallback
from envmatrix.system.regular_files import RefusedFileError, read_bytes
from envmatrix.system.start_errors import NOEXEC, NOT_EXECUTABLE, why_file_cannot_start

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
_TRACERS, _TRACES_TO_FILE = ("strace", "ltrace"), re.compile(r"-\w*o|--output\b")
_OTHER_USERS = frozenset(("doas", "pkexec", "runuser", "su", "sudo"))
#: Programs that start theirs on other machines, or later -> the option for that.
_JOB_STARTERS = {
    "bsub": "--launcher lsf", "qsub": "--launcher pbs", "salloc": "--launcher slurm", "sbatch": "--launcher slurm",
    "srun": "--launcher slurm", "ssh": "--launcher ssh --hosts HOST",
}  # fmt: skip

#: Options of `uv run` that change nothing about an environment that is used as it is.
_UV_WITHOUT_EFFECT = frozenset(
    ("--", "--frozen", "--locked", "--no-progress", "--no-sync", "--offline", "--quiet", "-q")
)
_LARGEST_SCRIPT = 2**20
#: The first line of the list of packages that a script may have (PEP 723).
_PACKAGES_IN_SCRIPT = re.compile(rb"^# /// script\s*$", re.MULTILINE)


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
    if refusal := _refusal(words):
        raise InputError(refusal[0], remedy=refusal[1])


def _refusal(words: tuple[str, ...]) -> tuple[str, str] | None:
    """Return why a command line is refused, and what to type; None if it is not."""
    program, name, folder = words[0], Path(words[0]).name, str(Path.cwd())
    if not program.strip():
        return "the program after `--` is an empty word", "is a variable of your shell not set?"
    if reads_program_from_input(words):
        reason = f"{' '.join(words)} reads a program from standard input, which is empty in a trial"
        return reason, f"write the program into a file and name it: -- {program} FILE"
    if _UNPRINTABLE.search(folder):
        reason = f"the name of the folder {folder!r} has a newline or bytes that are not UTF-8"
        return reason, "rename it, or copy your program to another folder"
    if odd_word := next(filter(_UNPRINTABLE.search, words), None):
        reason = f"{odd_word!r} has a newline or another character that engines pass differently"
        return reason, f"write it into a file without such characters in its name, and name that: -- {program} FILE"
    if pipe := next(filter(_SHELL_PIPE.match, words), None):
        reason = f"{pipe} is a pipe of your shell, which can be read only once: a program runs several times"
        return reason, "write its content into a file and name that; or quote the whole line: -- bash -c 'LINE'"
    if name in _OTHER_USERS:
        reason = f"{name} removes the variables and libraries of an environment"
        return reason, f"leave it out here, and write it first: {name} envmatrix bench -- PROGRAM"
    if name in _TRACERS and not any(map(_TRACES_TO_FILE.match, words)):
        reason = f"{name} writes its lines into those of the program, so that numbers in them cannot be told apart"
        return reason, f"leave it out, or let it write to a file: -- {name} -o FILE PROGRAM"
    if name in _JOB_STARTERS:
        reason = f"{name} starts its program outside the trial, where nothing is set or verified"
        return reason, f"leave it out, and let envmatrix do that: {_JOB_STARTERS[name]} -- PROGRAM"
    return None


def missing_program_error(words: tuple[str, ...]) -> InputError:
    """Return the error for a program that a shell would not find either."""
    reason = why_file_cannot_start(words[0])
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


def with_absolute_script_if_outside(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return a command that names a script outside the current folder (``../train.py``) by its absolute path."""
    script = python_target(words[1:])[1] if is_python(words[0]) else words[0]
    if Path(script).parts[:1] != ("..",) or not Path(script).is_file():
        return words
    path = str(Path(script).parent.resolve() / Path(script).name)
    return tuple(path if word == script else word for word in words)


def unwrap_uv_run(words: tuple[str, ...], progress: ProgressCallback) -> tuple[str, ...]:
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


def program_label(words: Sequence[str]) -> str:
    """Return the label of a program: its script or module, otherwise the program itself."""
    launch_kind, name = python_target(words[1:]) if is_python(words[0]) else ("", "")
    if launch_kind == "module":
        return safe_name(name.removesuffix(".__main__").rpartition(".")[2])
    parts = [part for word in words[1:] for part in word.split()]  # also of a line: sh -c 'python train.py <data'
    scripts = [part for part in parts if part.endswith((".py", ".sh"))] if words[0] != "pytest" else []
    return safe_name(Path((*scripts, words[0])[0]).stem)


def safe_name(text: str) -> str:
    """Return a text as the name of a workload."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:60] or "program"
    return f"{safe}-program" if safe in ("control", "baseline") else safe
