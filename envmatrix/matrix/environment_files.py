"""Variables, modules and the Python in files as people have them: .env, environment.yml, Dockerfile, sbatch script.

Nothing is run and no package is installed: the files are only read. What would need a shell is reported with its line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from envmatrix.errors import InputError, Where
from envmatrix.matrix.shell_lines import WORD, Command, has_shell_expansion, read_commands, unquote
from envmatrix.system.bench_options import hides_value
from envmatrix.system.regular_files import MAX_TEXT_BYTES, RefusedFileError, read_bytes

_NAME = re.compile(r"[A-Za-z_]\w*\Z")
#: Variables of which a trial has its own value.
_TRIAL_VARIABLES = ("PATH", "HOME", "LD_PRELOAD", "TMPDIR", "USER", "PWD")
#: Numbers of YAML 1.1 or 1.2.
_NUMBER = re.compile(r"[-+]?(?:0[xob])?[\d_.]+(?:e[-+]?\d+)?\Z", re.IGNORECASE)
_UNCERTAIN = "it is inside of a condition, a loop or a function"
_NEEDS_SHELL = "its value needs a shell"
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
#: Commands of `module`, and what they do to the modules that are loaded; others are reported.
_LOADING, _UNLOADING = {"load", "add"}, {"unload", "rm", "del"}
_SHOWING = {"list", "avail", "spider", "show", "--version"}
#: Keys of an environment.yml of conda.
CONDA_KEYS = frozenset(("dependencies", "name", "prefix", "variables"))
_CONDA_ROOTS = ("miniconda3", "anaconda3", "miniforge3", "mambaforge", "micromamba", ".conda")


@dataclass
class EnvironmentFile:
    """What a file sets: ``variables``, ``modules``, the ``interpreter`` ('': none). ``notes``: what is not used."""

    file: Path
    variables: dict[str, str] = field(default_factory=dict)
    modules: list[str] = field(default_factory=list)
    interpreter: str = ""
    notes: list[str] = field(default_factory=list)

    def leave_out(self, number: int, reason: str) -> None:
        """Note a line that is not used."""
        note = f"{self.file}:{number}: {reason}"
        self.notes += [note] if note not in self.notes[-1:] else []

    def set_variable(self, number: int, name: str, value: str, reason: str = "") -> None:
        """Set a variable, unless there is a ``reason`` not to, its value is secret, or it is a trial's own."""
        self.variables.pop(name, None)  # an earlier value would be wrong
        if re.search(r"[\x00-\x1f\x7f]", value):
            reason = reason or "engines differ in how they pass several lines, and other control characters"
        if reason:
            self.leave_out(number, f"{name} is not used: {reason}")
        elif hides_value(name):
            self.leave_out(number, f"{name} is not stored, as it may be a secret: export it, and add --pass-env {name}")
        elif name in _TRIAL_VARIABLES:
            self.leave_out(number, f"{name} is not used: each trial has its own")
        else:
            self.variables[name] = value

    def set_python_from_folder(self, number: int, folder: str) -> None:
        """Use the Python of an environment's folder."""
        place = os.path.expanduser(folder)  # noqa: PTH111 - pathlib's raises an error for an unknown user
        python = self.file.parent / place / "bin" / "python"
        if python.exists():
            self.interpreter = str(python)
        else:
            self.leave_out(number, f"{python} does not exist: pass your Python, as in `-- .venv/bin/python train.py`")

    def set_conda(self, number: int, name: str) -> None:
        """Use the Python of a conda environment, by its name or folder."""
        roots = [Path.home() / root / "envs" / name for root in _CONDA_ROOTS]
        folder = next((path for path in roots if (path / "bin" / "python").exists()), None)
        if "/" in name or folder:
            self.set_python_from_folder(number, str(folder or name))
        else:
            self.leave_out(
                number, f"no conda environment {name!r} in your home: pass its Python, as in `-- PYTHON ...`"
            )


def read_text_file(file: Path) -> str:
    """Return the text of a file. Raises InputError for one that is no text, too large, or no file."""
    try:
        return read_bytes(file, MAX_TEXT_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError, RefusedFileError) as error:
        raise InputError("cannot be read as text", where=Where(file), remedy="pass a text file") from error


def read_environment_file(file: Path) -> EnvironmentFile:
    """Read the variables, modules and Python of a file. Raises InputError for one that cannot be read."""
    text = read_text_file(file).replace("\r\n", "\n")
    result = EnvironmentFile(file)
    _READERS[kind_of_file(file, text)](result, text)
    return result


def kind_of_file(file: Path, text: str) -> str:
    """Return which kind of file this is: a key of the readers below. Raises InputError if it is none."""
    name = file.name.lower()
    if name.endswith((".yml", ".yaml")):
        return "conda"
    if name == "pyproject.toml":
        return "pyproject"
    if name.startswith(("dockerfile", "containerfile")) or name.endswith(".dockerfile"):
        return "dockerfile"
    if text.startswith("#!") or name.endswith((".sh", ".sbatch", ".slurm")):
        return "script"
    if name.startswith(".env") or name.endswith(".env"):
        return "dotenv"
    raise InputError(
        "not a file whose variables envmatrix can read",
        where=Where(file),
        remedy="pass a .env, environment.yml, pyproject.toml, Dockerfile, or a script that begins with #!",
    )


def _read_dotenv(result: EnvironmentFile, text: str) -> None:
    """Read NAME=VALUE lines, if a shell and the libraries that load such files agree on the value."""
    for command in read_commands(text):
        number, raw = command.number, command.raw
        is_export = raw[:1] == ["export"]
        if command.error or not command.alone:
            name = raw[0].partition("=")[0] if raw else ""
            result.variables.pop(name, None)
            result.leave_out(number, f"not read: {command.error or 'quote a value with ; & | ( ) < or >'}")
            continue
        if len(raw) > 1 and not is_export and not re.search(r"[$`]", raw[0]):
            result.variables.pop(raw[0].partition("=")[0], None)
            result.leave_out(number, f"{raw[0].partition('=')[0]} is not used: quote a value with blanks")
            continue
        for word in raw[1:] if is_export else raw[:1]:
            has_escape = re.search(r"\\[^\"\n]", re.sub(r"'[^']*'", "", word))
            reason = "programs differ in how they read its backslash: put it in single quotes" if has_escape else ""
            if not _set_from_word(result, number, word, reason):
                result.leave_out(number, f"not NAME=VALUE: {word[:40]}")


def _read_script(result: EnvironmentFile, text: str) -> None:
    """Read exports, modules and activated environments of a shell script; its other lines are its work."""
    first = text.partition("\n")[0]
    if first.startswith("#!") and not re.search(r"\b(?:ba|da|k|z)?sh\b", first):
        remedy = "pass a .env with its variables"
        raise InputError("not a script of sh or bash", where=Where(result.file, 1), remedy=remedy)
    plain: dict[str, str] = {}
    for command in read_commands(text):
        if command.error:
            result.leave_out(command.number, f"not read: {command.error}")
        elif _ASSIGNMENT.match(command.raw[0]):
            _read_assignments(result, command, plain)
        elif command.raw[0] == "export" or command.raw[:2] in (["declare", "-x"], ["typeset", "-x"]):
            for word in command.raw[1:]:
                _set_exported(result, command, word if "=" in word else plain.get(word, word))
        elif command.raw[0] == "unset":
            for name in command.words[1:]:
                plain.pop(name, None)
                if result.variables.pop(name, None) is not None and not command.certain:
                    result.leave_out(command.number, f"{name} is not used: {_UNCERTAIN}")
        else:
            _read_set_up(result, command)


def _read_assignments(result: EnvironmentFile, command: Command, plain: dict[str, str]) -> None:
    """Read a command that begins with NAME=VALUE; ``plain`` has the words that did, for a later `export NAME`."""
    words = [word for word in command.raw if _ASSIGNMENT.match(word)]
    names = [word.partition("=")[0].removesuffix("+") for word in words]
    if len(words) < len(command.raw):
        result.leave_out(command.number, f"{', '.join(names)} is not used: it is set for one command only")
        return
    for name, word in zip(names, words, strict=True):
        plain[name] = word if command.certain and f"{name}=" in word else f"{name}=$"
        if name in result.variables:
            _set_exported(result, command, plain[name])


def _set_exported(result: EnvironmentFile, command: Command, word: str) -> None:
    """Set the variable in a word of `export`."""
    if not _set_from_word(result, command.number, word, "" if command.certain else _UNCERTAIN) and _NAME.match(word):
        result.leave_out(command.number, f"{word} is not used: this line gives it no value")


def _read_set_up(result: EnvironmentFile, command: Command) -> None:
    """Read the command of a script that loads modules, or activates an environment."""
    words, number = command.words, command.number
    loads_modules = words[0] in ("module", "ml")
    arguments = [word for word in command.raw[1:] if words[0] != "module" or not word.startswith("-")]
    if not arguments or not (loads_modules or words[0] in ("source", ".", "conda", "mamba", "micromamba")):
        return
    if not command.certain:
        result.leave_out(number, f"{' '.join(words)[:60]} is not used: {_UNCERTAIN}")
    elif loads_modules:
        _follow_modules(result, number, words[0], arguments)
    elif words[1] == "activate" and len(words) == 3:
        result.set_conda(number, words[2])
    elif words[0] in ("source", "."):
        if words[1].endswith("bin/activate"):
            result.set_python_from_folder(number, str(Path(words[1]).parents[1]))
        elif not words[1].endswith("conda.sh"):
            result.leave_out(number, f"{words[1]} is not read: pass it with --like instead if it sets what you need")


def _follow_modules(result: EnvironmentFile, number: int, command: str, arguments: list[str]) -> None:
    """Follow `module ...` or `ml ...`; the latter loads what it does not know."""
    first = unquote(arguments[0])
    known = first in _LOADING | _UNLOADING | _SHOWING | {"purge", "swap", "switch", "use", "unuse", "restore", "save"}
    names = arguments[1:] if known else arguments
    if first == "purge":
        result.modules.clear()
    elif first in _UNLOADING:
        for name in names:
            _unload(result, unquote(name))
    elif first in _LOADING or (command == "ml" and not known):
        for name in names:
            if has_shell_expansion(name):
                result.leave_out(number, f"module {name} is not loaded: its name needs a shell")
            elif name.startswith("-"):
                _unload(result, unquote(name)[1:])
            else:
                result.modules.append(unquote(name))
    elif first not in _SHOWING:
        result.leave_out(number, f"`{command} {' '.join(map(unquote, arguments))[:60]}` is not followed")


def _unload(result: EnvironmentFile, name: str) -> None:
    result.modules[:] = [other for other in result.modules if name not in (other, other.partition("/")[0])]


def _read_dockerfile(result: EnvironmentFile, text: str) -> None:
    """Read the ENV lines of the last stage, and of the stages that it is built from."""
    stages: dict[str, dict[str, str]] = {}
    for number, line in _instructions(text):
        instruction, _, rest = line.partition(" ")
        if instruction.upper() == "FROM":
            words = [word for word in rest.split() if not word.startswith("--")]
            image = words[0] if words else ""
            if image.lower() not in stages:
                result.leave_out(number, f"the image {image} is not used: its ENV lines are")
            result.variables = dict(stages.get(image.lower(), {}))
            name = words[2].lower() if len(words) > 2 and words[1].upper() == "AS" else str(number)
            stages[name] = result.variables
        elif instruction.upper() == "ENV":
            words = WORD.findall(rest)
            is_whole = re.sub(r"\s", "", "".join(words)) == re.sub(r"\s", "", rest)
            if not is_whole or not words:
                result.leave_out(number, "not read: no closing quotation")
            elif "=" not in words[0] and len(words) > 1:  # the older form: ENV NAME VALUE
                words = [f"{words[0]}={rest.strip()[len(words[0]) :].strip()}"]
            for word in words if is_whole else ():
                if not _set_from_word(result, number, word):
                    result.leave_out(number, f"not NAME=VALUE: {word[:40]}")


def _instructions(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a Dockerfile, whole, without comments and without the documents of RUN and COPY."""
    lines = enumerate(text.splitlines(), 1)
    for number, line in lines:
        whole = "" if line.lstrip().startswith("#") else line.rstrip()
        while whole.endswith("\\"):
            following = next(lines, (0, " "))[1]
            if following and not following.lstrip().startswith("#"):
                whole = whole[:-1] + following.rstrip()
        for until in re.findall(r"<<-?['\"]?(\w+)", whole):
            next((None for _, inner in lines if inner.strip() == until), None)
        yield number, re.sub(r"\s+", " ", whole.lstrip(), count=1) if whole else ""


def _read_conda(result: EnvironmentFile, text: str) -> None:
    try:
        body = yaml.compose(text, yaml.SafeLoader)
    except yaml.YAMLError as error:
        remedy = "`conda env export` writes one"
        raise InputError("it is not valid YAML", where=Where(result.file), remedy=remedy) from error
    parts = {key.value: value for key, value in body.value} if isinstance(body, yaml.MappingNode) else {}
    if not CONDA_KEYS & set(parts):
        raise InputError("it is no environment of conda", where=Where(result.file), remedy="pass an environment.yml")
    variables = parts.get("variables")
    if isinstance(variables, yaml.MappingNode):
        for key, value in variables.value:
            _set_from_node(result, key, value)
    elif variables is not None and variables.value:
        where = Where(result.file, variables.start_mark.line + 1)
        raise InputError("`variables` is no mapping", where=where, remedy="write `NAME: VALUE` lines below it")
    prefix, name = (parts.get(key) for key in ("prefix", "name"))
    if isinstance(prefix, yaml.ScalarNode) and prefix.value:
        result.set_python_from_folder(prefix.start_mark.line + 1, prefix.value)
    elif isinstance(name, yaml.ScalarNode) and name.value:
        result.set_conda(name.start_mark.line + 1, name.value)


def _set_from_node(result: EnvironmentFile, key: yaml.Node, value: yaml.Node) -> None:
    """Set a variable of an environment.yml if every YAML parser reads its value as it is written."""
    number, is_text = key.start_mark.line + 1, value.tag == "tag:yaml.org,2002:str"
    if not isinstance(key, yaml.ScalarNode) or not _NAME.match(key.value):
        result.leave_out(number, "not NAME: VALUE")
        return
    is_number = isinstance(value, yaml.ScalarNode) and value.style is None and _NUMBER.match(value.value)
    is_clear = re.fullmatch(r"0|-?[1-9]\d*", value.value) if is_number else is_text
    reason = "" if is_clear else "quote its value, which YAML does not read as it is written"
    if is_text and re.search(r"[$`]", value.value):
        reason = _NEEDS_SHELL
    result.set_variable(number, key.value, str(value.value), reason)


def _read_project(result: EnvironmentFile, _: str) -> None:
    result.set_python_from_folder(1, ".venv")


def _set_from_word(result: EnvironmentFile, number: int, raw: str, reason: str = "") -> bool:
    """Set NAME=VALUE, as it is written; return False if it is not that."""
    if raw[:1] in ("'", '"'):  # such as export "NAME=some words"
        raw = f"{unquote(raw).partition('=')[0]}={raw[:1]}{raw[1:].partition('=')[2]}"
    name, is_set, value = raw.partition("=")
    if name.endswith("+"):
        name, reason = name[:-1], reason or _NEEDS_SHELL
    if not is_set or not _NAME.match(name):
        return False
    result.set_variable(number, name, unquote(value), reason or (_NEEDS_SHELL if has_shell_expansion(raw) else ""))
    return True


_READERS: Mapping[str, Callable[[EnvironmentFile, str], None]] = {
    "dotenv": _read_dotenv,
    "dockerfile": _read_dockerfile,
    "script": _read_script,
    "conda": _read_conda,
    "pyproject": _read_project,
}
