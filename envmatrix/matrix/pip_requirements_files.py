"""Read requirements files as pip does: requirements.txt, or pyproject.toml."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from envmatrix.errors import InputError, Where
from envmatrix.matrix import field_types
from envmatrix.system.regular_files import MAX_TEXT_BYTES, read_bytes

_FILE_OPTION = re.compile(r"(?:-r|--requirement)[\s=]+(.+)\Z")
_INDEX_OPTION = re.compile(r"--extra-index-url[\s=]+(\S+)\Z")
#: Hashes are dropped: envmatrix writes its own lock with the sha256 of each file.
_HASHES = re.compile(r"\s+--hash[\s=]\S+")
_IGNORED_OPTIONS = re.compile(r"--(require-hashes|prefer-binary|only-binary([\s=].*)?)\Z")
_COMMENT = re.compile(r"(^|\s+)#.*")
_REMEDIES = {
    "-e": "an editable install cannot be locked: install the package into the interpreter",
    "-c": "write the versions that this file pins into the requirements",
    "-i": "name an additional index with `index:`; set the first one in pip's configuration (`pip config list`)",
    "-f": "set the folder of wheels in pip's configuration (`pip config set global.find-links FOLDER`)",
}
_LONG_OPTIONS = {"--editable": "-e", "--constraint": "-c", "--index-url": "-i", "--find-links": "-f"}
_MAX_DEPTH = 10


@dataclass(frozen=True)
class ExpandedRequirements:
    """Requirements after expansion, and the extra indexes that their files name."""

    words: tuple[str, ...]
    index: tuple[str, ...] = ()


def referenced_file(requirement: str) -> str | None:
    """Return the file that an entry of ``requirements:`` names; None if it is itself a requirement."""
    if file_option := _FILE_OPTION.match(requirement):
        return file_option[1].strip()
    is_file = requirement.endswith(".txt") or re.split(r"[\\/]", requirement)[-1] == "pyproject.toml"
    return requirement if is_file else None


def expand_requirements(words: Sequence[str], folder: Path, where: Where) -> ExpandedRequirements:
    """Return ``words`` with each file replaced by its contents; file names are relative to ``folder``.

    Raises InputError with the location in the file for an entry that is not a requirement.
    """
    lines: list[str] = []
    index: list[str] = []
    for word in words:
        name = referenced_file(word)
        for kind, text in [("", word)] if name is None else _file_entries(folder / name, where, ()):
            (index if kind else lines).append(text)
    return ExpandedRequirements(tuple(lines), tuple(dict.fromkeys(index)))


def _file_entries(file: Path, named_at: Where, chain: tuple[Path, ...]) -> Iterator[tuple[str, str]]:
    """Yield (kind, text) for each entry of a file: ('', a requirement) or ('index', its URL)."""
    if file in chain or len(chain) > _MAX_DEPTH:
        raise InputError(
            f"{file.name} includes itself, or its includes are nested too deeply",
            where=named_at,
            remedy="remove one of them",
        )
    text = _read_file(file, named_at)
    if file.name == "pyproject.toml":
        yield from (("", word) for word in _pyproject_dependencies(text, file))
        return
    for number, line in _logical_lines(text):
        where = Where(file, number)
        nested, index = _FILE_OPTION.match(line), _INDEX_OPTION.match(line)
        if nested:
            yield from _file_entries(file.parent / nested[1].strip(), where, (*chain, file))
        elif index:
            yield "index", index[1]
        elif not _IGNORED_OPTIONS.match(line):
            yield "", _check_requirement(_HASHES.sub("", line), where)


def _read_file(file: Path, named_at: Where) -> str:
    try:
        return read_bytes(file, MAX_TEXT_BYTES).decode()
    except OSError as error:
        message = f"requirements: {str(file)!r} cannot be read: {error.strerror}"
        raise InputError(message, where=named_at, remedy="the path is relative to the file that names it") from error
    except UnicodeDecodeError as error:
        raise InputError("not UTF-8 text", where=Where(file), remedy="save it as UTF-8") from error


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line number, text) of a requirements file without comments, with continued lines joined."""
    start, joined = 0, ""
    for number, line in enumerate([*text.split("\n"), ""], 1):
        start = start if joined else number
        stripped = _COMMENT.sub("", line).strip()
        joined = f"{joined} {stripped}".strip()
        if joined.endswith("\\"):
            joined = f"{joined[:-1].rstrip()} "
            continue
        if joined.strip():
            yield start, joined.strip()
        joined = ""


def _check_requirement(line: str, where: Where) -> str:
    if line.startswith("-"):
        option = re.split(r"[\s=]", line)[0]
        remedy = _REMEDIES.get(_LONG_OPTIONS.get(option, option[:2]), "remove it")
        raise InputError(f"{option} is a pip option, not a requirement", where=where, remedy=remedy)
    try:
        return field_types.check_requirement(line)
    except ValueError as error:
        raise InputError(str(error), where=where) from None


def _pyproject_dependencies(text: str, file: Path) -> list[str]:
    """Return the ``[project] dependencies`` of a pyproject.toml (PEP 621)."""
    try:
        tomllib = import_module("tomllib")
    except ModuleNotFoundError as error:
        raise InputError(
            "reading it needs Python 3.11 or newer, and envmatrix runs on an older one here",
            where=Where(file),
            remedy="write the requirements into a requirements.txt",
        ) from error
    try:
        project = tomllib.loads(text).get("project", {})
    except ValueError as error:
        raise InputError(f"not valid TOML: {error}", where=Where(file)) from error
    dependencies = project.get("dependencies") if isinstance(project, dict) else None
    if not isinstance(dependencies, list):
        raise InputError(
            "`[project]` has no `dependencies`",
            where=Where(file),
            remedy="export the dependencies (from Poetry, for example) into a requirements.txt",
        )
    return [_check_requirement(str(word), Where(file)) for word in dependencies]
