"""Variables, modules and the Python in files as people have them: .env, environment.yml, Dockerfile, sbatch script.

Nothing is run and no package is installed: the files are only read. What would need a shell is reported with its line.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from envmatrix.errors import InputError, Where
from envmatrix.system.bench_options import hides_value
from envmatrix.system.regular_files import MAX_TEXT_BYTES, RefusedFileError, read_bytes

_NAME = re.compile(r"[A-Za-z_]\w*\Z")
#: Variables of which a trial has its own value.
_NOT_TAKEN = ("PATH", "HOME", "LD_PRELOAD", "TMPDIR", "USER", "PWD")
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
        self.notes.append(f"{self.file}:{number}: {reason}")

    def set_variable(self, number: int, name: str, value: str) -> None:
        """Take a variable, unless its value needs a shell, is secret, or is a trial's own."""
        if _needs_shell(value):
            self.leave_out(number, f"{name} is not used: its value needs a shell")
        elif hides_value(name):
            self.leave_out(number, f"{name} is not stored, as it may be a secret: export it, and add --pass-env {name}")
        elif name in _NOT_TAKEN:
            self.leave_out(number, f"{name} is not used: each trial has its own")
        else:
            self.variables[name] = value

    def set_folder(self, number: int, folder: str) -> None:
        """Take the Python of an environment's folder."""
        place = os.path.expanduser(folder)  # noqa: PTH111 - pathlib's raises an error for an unknown user
        python = self.file.parent / place / "bin" / "python"
        if python.exists():
            self.interpreter = str(python)
        else:
            self.leave_out(number, f"{python} does not exist: pass your Python, as in `-- .venv/bin/python train.py`")

    def set_conda(self, number: int, name: str) -> None:
        """Take the Python of a conda environment, by its name or folder."""
        roots = [Path.home() / root / "envs" / name for root in _CONDA_ROOTS]
        folder = next((path for path in roots if (path / "bin" / "python").exists()), None)
        if "/" in name or folder:
            self.set_folder(number, str(folder or name))
        else:
            self.leave_out(
                number, f"no conda environment {name!r} in your home: pass its Python, as in `-- PYTHON ...`"
            )


def _needs_shell(text: str) -> bool:
    return "$" in text or "`" in text


def read_environment_file(file: Path) -> EnvironmentFile:
    """Read the variables, modules and Python of a file. Raises InputError for one that cannot be read."""
    try:
        text = read_bytes(file, MAX_TEXT_BYTES).decode()
    except (OSError, UnicodeDecodeError, RefusedFileError) as error:
        raise InputError("cannot be read as text", where=Where(file), remedy="pass a text file") from error
    found = EnvironmentFile(file)
    _reader_for(file, text)(found, text)
    return found


def _reader_for(file: Path, text: str) -> Callable[[EnvironmentFile, str], None]:
    name = file.name.lower()
    if name.endswith((".yml", ".yaml")):
        return _read_conda
    if name == "pyproject.toml":
        return _read_project
    if name.startswith(("dockerfile", "containerfile")) or name.endswith(".dockerfile"):
        return _read_dockerfile
    if text.startswith("#!") or name.endswith((".sh", ".sbatch", ".slurm")):
        return _read_script
    if name.startswith(".env") or name.endswith(".env"):
        return _read_dotenv
    raise InputError(
        "not a file that --like can read",
        where=Where(file),
        remedy="pass a .env, environment.yml, pyproject.toml, Dockerfile, or a script that begins with #!",
    )


def _read_dotenv(found: EnvironmentFile, text: str) -> None:
    for number, line in enumerate(text.splitlines(), 1):
        words = _words(found, number, line)
        is_export = words[:1] == ["export"]
        if len(words) > 1 and not is_export and not _needs_shell(words[0]):
            found.leave_out(number, f"{words[0].partition('=')[0]} is not used: quote a value with blanks")
            continue
        for word in words[1:] if is_export else words[:1]:
            if not _take(found, number, word):
                found.leave_out(number, f"not NAME=VALUE: {line.strip()[:40]}")


def _read_script(found: EnvironmentFile, text: str) -> None:
    """Read exports, modules and activated environments of a shell script; its other lines are its work."""
    for number, line in _joined_lines(text):
        if not re.match(r"\s*(export|module|ml|source|\.|conda|mamba|micromamba)\s", line):
            continue
        words = _words(found, number, line)
        if words[:1] == ["export"]:
            for word in words[1:]:
                if not _take(found, number, word) and _NAME.match(word):
                    found.leave_out(number, f"{word} is not used: this line gives it no value")
        elif words[:2] in (["module", "load"], ["module", "add"]) or (words[:1] == ["ml"] and len(words) > 1):
            _take_modules(found, number, words[1:] if words[0] == "ml" else words[2:])
        elif words[1:2] == ["activate"] and len(words) == 3:
            found.set_conda(number, words[2])
        elif len(words) < 2 or words[0] not in ("source", "."):
            continue
        elif words[1].endswith("bin/activate"):
            found.set_folder(number, str(Path(words[1]).parents[1]))
        else:
            found.leave_out(number, f"{words[1]} is not read: pass it with --like instead if it sets what you need")


def _read_dockerfile(found: EnvironmentFile, text: str) -> None:
    for number, line in _joined_lines(text):
        instruction, _, rest = line.strip().partition(" ")
        if instruction.upper() == "FROM":
            found.leave_out(
                number, f"the image {rest.split()[0] if rest.split() else ''} is not used: its ENV lines are"
            )
        if instruction.upper() != "ENV":
            continue
        words = _words(found, number, rest)
        if words and "=" not in words[0]:  # the older form: ENV NAME VALUE
            words = [f"{words[0]}={' '.join(words[1:])}"]
        for word in words:
            _take(found, number, word)


def _read_conda(found: EnvironmentFile, text: str) -> None:
    try:
        body = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(
            "it is not valid YAML", where=Where(found.file), remedy="`conda env export` writes one"
        ) from error
    if not isinstance(body, dict) or not {"dependencies", "name", "prefix", "variables"} & set(body):
        raise InputError("it is no environment of conda", where=Where(found.file), remedy="pass an environment.yml")
    variables = body.get("variables") or {}
    if not isinstance(variables, dict):
        where = Where(found.file, _line_of(text, "variables"))
        raise InputError("`variables` is no mapping", where=where, remedy="write `NAME: VALUE` lines below it")
    for name, value in variables.items():
        found.set_variable(_line_of(text, str(name)), str(name), str(value))
    if body.get("prefix"):
        found.set_folder(_line_of(text, "prefix"), str(body["prefix"]))
    elif body.get("name"):
        found.set_conda(_line_of(text, "name"), str(body["name"]))


def _read_project(found: EnvironmentFile, _: str) -> None:
    found.set_folder(1, ".venv")


def _line_of(text: str, key: str) -> int:
    match = re.search(rf"^\s*['\"]?{re.escape(key)}['\"]?\s*:", text, re.MULTILINE)
    return text.count("\n", 0, match.end()) + 1 if match else 1


def _joined_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the number of each line, and the line with those that a backslash continues it with."""
    lines = enumerate(text.splitlines(), 1)
    for number, line in lines:
        whole = line
        while whole.endswith("\\"):
            whole = whole[:-1] + " " + next(lines, (0, ""))[1]
        yield number, whole


def _words(found: EnvironmentFile, number: int, line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError as error:
        found.leave_out(number, f"not read: {error}")
        return []


def _take_modules(found: EnvironmentFile, number: int, words: list[str]) -> None:
    for name in words:
        if _needs_shell(name):
            found.leave_out(number, f"module {name} is not loaded: its name needs a shell")
        elif not name.startswith("-") and name not in ("load", "add"):
            found.modules.append(name)


def _take(found: EnvironmentFile, number: int, word: str) -> bool:
    name, is_set, value = word.partition("=")
    if not is_set or not _NAME.match(name):
        return False
    found.set_variable(number, name, value)
    return True
