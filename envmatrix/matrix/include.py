"""Combine a matrix.yaml with the files named by ``include:``, and keep the source file of every name.

Included files come before the file that includes them, in the order written, and each file is read once. A file may add
levels to a factor of another file. Any other name may be defined only once, so its meaning does not depend on the order
of files.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

import yaml

from envmatrix.errors import InputError, Where, suggestion
from envmatrix.matrix.yaml_positions import Data, Key, Source, parse_yaml, read_text
from envmatrix.system.bench_options import without_userinfo
from envmatrix.system.regular_files import MAX_TEXT_BYTES

LIBRARY_FOLDER = Path(__file__).with_name("library")
PACKAGED_PREFIX = "envmatrix:"
VERSIONS = ("1", "2")
SECTIONS = {
    "factors": "factor",
    "environments": "environment",
    "defaults": "default",
    "workloads": "workload",
    "designs": "design",
}
_TOP_LEVEL_KEYS = ("version", "include", *SECTIONS)
#: Added in version 2.
_VERSION_2_KEYS = ("include", "defaults")
#: Keys of a design in version 1, and their names since version 2.
RENAMED_KEYS = {"ladder": "cumulative", "published": "reference_values"}
_MAX_FILES = 100
_MAX_DEPTH = 10


@dataclass
class MatrixFiles:
    """All files of a matrix merged into one ``source``; ``files`` lists them in order, the including file last.

    ``inlined`` lists the requirements that were copied into the source's data from other files. ``asked`` maps a
    packaged file to the include in the user's own file that brought it in, and that include's location.
    """

    source: Source
    files: list[Source]
    asked: Mapping[Path, tuple[str, Where]] = field(default_factory=dict)
    mistakes: list[InputError] = field(default_factory=list)
    inlined: list[list[str]] = field(default_factory=list)

    @property
    def digest(self) -> str:
        """The sha256 of the file as read; for several files, of all their texts in order."""
        texts = [*(source.text for source in self.files), *map(json.dumps, self.inlined)]
        text = json.dumps(texts) if len(texts) > 1 else self.source.text
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()

    def located_in_user_file(self, mistake: InputError) -> InputError:
        """Return a mistake found in a packaged file at the user's line that includes it; any other unchanged."""
        include, where = self.asked.get(mistake.where.file, ("", None)) if mistake.where else ("", None)
        if where is None:
            return mistake
        return InputError(f"{include}: {mistake.message}", where=where, remedy=mistake.remedy)

    def merged_text(self, files: Mapping[str, str]) -> str:
        """Return the matrix as one file without includes: the text as read, or a merge of its files.

        ``files`` maps each workload to its program's folder, relative to the main file.
        """
        if len(self.files) == 1 and not self.inlined:
            return self.source.text
        header = "".join(f"# {source.file.name}\n" for source in self.files)
        document: dict[str, object] = {"version": 2}
        document |= {name: data for name, data in self.source.mapping(()).items() if name in SECTIONS}
        if files:
            workloads = self.source.mapping(("workloads",))
            placed = {name: {**self.source.mapping(("workloads", name)), "files": files[name]} for name in files}
            document["workloads"] = {**workloads, **placed}
        return f"# Put together by envmatrix from:\n{header}{yaml_text(document)}"


class _NoAliasDumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    def ignore_aliases(self, _data: object) -> bool:
        return True


def yaml_text(document: Mapping[str, object]) -> str:
    """Return a document as YAML, in its order and without aliases."""
    return yaml.dump(dict(document), Dumper=_NoAliasDumper, sort_keys=False, width=110)


def read_includes(root: Source) -> MatrixFiles:
    """Read every file that ``root`` includes, collecting mistakes. Raises InputError if an include cannot be read."""
    files: dict[Path, Source] = {}
    requested_by: dict[Path, tuple[str, Where]] = {}
    _collect_includes(root, (_real_path(root.file),), files, requested_by)
    matrix_files = MatrixFiles(Source(root.file, root.text), list(files.values()), requested_by)
    for source in matrix_files.files:
        matrix_files.mistakes += _top_level_mistakes(source)
    matrix_files.source.data = _merge_sections(matrix_files)
    return matrix_files


def _collect_includes(
    source: Source, chain: tuple[Path, ...], files: dict[Path, Source], requested_by: dict[Path, tuple[str, Where]]
) -> None:
    for index, include in enumerate(_include_entries(source)):
        where = source.where(("include", index))
        file = _included_file(include, source.file, where)
        real_path = _real_path(file)
        if real_path in chain:
            names = " -> ".join(path.name for path in (*chain[chain.index(real_path) :], real_path))
            raise InputError(f"circular include: {names}", where=where, remedy="remove one of these includes")
        if real_path in files:
            continue
        if len(chain) > _MAX_DEPTH or len(files) >= _MAX_FILES:
            raise InputError(
                f"too many includes: more than {_MAX_DEPTH} levels deep, or more than {_MAX_FILES} files in all",
                where=where,
                remedy="merge some of these files",
            )
        if include.startswith(PACKAGED_PREFIX):
            requested_by[file] = requested_by.get(source.file, (include, where))
        included = parse_yaml(_read_included_file(file, where), file, packaged=is_packaged(file))
        _collect_includes(included, (*chain, real_path), files, requested_by)
    files[chain[-1]] = source


def _real_path(file: Path) -> Path:
    return Path(os.path.realpath(file))  # Path.resolve() raises for a symlink loop


def _include_entries(source: Source) -> list[str]:
    value = source.mapping(()).get("include")
    includes = [value] if isinstance(value, str) else value
    if includes is None:
        return []
    if not isinstance(includes, list) or not all(map(_is_name, includes)):
        raise InputError(
            "include must be a list of files",
            where=source.where(("include",)),
            remedy=f"write `include: [{PACKAGED_PREFIX}malloc, ./more.yaml]`",
        )
    return [str(include) for include in includes]


def _is_name(name: Data) -> bool:
    return isinstance(name, str) and bool(name) and "\0" not in name


def packaged_names() -> list[str]:
    """Return the names of the packaged files."""
    return sorted(path.stem for path in LIBRARY_FOLDER.glob("*.yaml"))


def is_packaged(file: Path) -> bool:
    """Return whether a file comes with envmatrix."""
    return file.parent == LIBRARY_FOLDER


def _included_file(include: str, including_file: Path, where: Where) -> Path:
    """Return the file that an include names: a packaged file, or one relative to the including file."""
    if not include.startswith(PACKAGED_PREFIX):
        return including_file.parent / include
    name = include.removeprefix(PACKAGED_PREFIX)
    if name not in packaged_names():
        remedy = suggestion(include, [PACKAGED_PREFIX + known_name for known_name in packaged_names()])
        raise InputError(f"envmatrix has no packaged file {include!r}", where=where, remedy=remedy)
    return LIBRARY_FOLDER / f"{name}.yaml"


def _read_included_file(file: Path, where: Where) -> str:
    prefix, remedy = f"cannot include {str(file)!r}", "name a YAML file"
    try:
        status = file.stat()
    except OSError as error:
        raise InputError(f"{prefix}: {error.strerror}", where=where, remedy=_missing_file_remedy(file)) from error
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{prefix}: it is not a file", where=where, remedy=remedy)
    if status.st_size > MAX_TEXT_BYTES:
        message = f"{prefix}: it has {status.st_size} bytes; the limit is {MAX_TEXT_BYTES} bytes"
        raise InputError(message, where=where, remedy=remedy)
    return read_text(file)


def _missing_file_remedy(file: Path) -> str:
    siblings = [path.name for path in file.parent.glob("*.yaml")] if file.parent.is_dir() else []
    matches = get_close_matches(file.name, [*siblings, *packaged_names()], n=1)
    if not matches:
        return "the path is relative to the file that includes it"
    return f"did you mean {matches[0] if matches[0] in siblings else PACKAGED_PREFIX + matches[0]!r}?"


def _top_level_mistakes(source: Source) -> Iterator[InputError]:
    """Yield the mistakes at the top level of one file, and rename keys of version 1 to their current names."""
    top = source.mapping(())
    for key in top:
        if key not in _TOP_LEVEL_KEYS:
            where = source.where((key,), key=True)
            yield InputError(f"unknown key {key!r}", where=where, remedy=suggestion(key, _TOP_LEVEL_KEYS))
    yield from _url_passwords(source.data, (), source)
    version, remedy = top.get("version"), "write `version: 2` at the top"
    if version not in VERSIONS:
        message = (
            f"version must be {' or '.join(VERSIONS)}, not {version}" if version is not None else "`version` is missing"
        )
        if isinstance(version, str) and version.isdecimal() and int(version) > int(VERSIONS[-1]):
            remedy = "the file was written for a newer envmatrix: upgrade envmatrix"
        yield InputError(message, where=source.where(("version",)), remedy=remedy)
    if version == "1":
        for key in _VERSION_2_KEYS:
            if key in top:
                yield InputError(f"{key!r} needs version 2", where=source.where((key,), key=True), remedy=remedy)
        _rename_old_keys(source)


def _url_passwords(data: Data, path: Key, source: Source) -> Iterator[InputError]:
    """Yield a mistake for each URL that contains a password: the matrix is stored with each run and may be shared."""
    if isinstance(data, str) and without_userinfo(data) != data:
        yield InputError(
            "this URL contains a user name or password, and a run stores its matrix, which you may share",
            where=source.where(path),
            remedy="remove them here, and put them in ~/.netrc or pip's configuration, or in a file that your program "
            "reads",
        )
    for key, value in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        yield from _url_passwords(value, (*path, key), source)


def _rename_old_keys(source: Source) -> None:
    designs = source.mapping(()).get("designs")
    for name, design in designs.items() if isinstance(designs, dict) else ():
        for old_key, new_key in RENAMED_KEYS.items():
            if isinstance(design, dict) and old_key in design and new_key not in design:
                design[new_key] = design.pop(old_key)
                old_path = ("designs", name, old_key)
                for path in [path for path in source.positions if path[:3] == old_path]:
                    source.positions[("designs", name, new_key, *path[3:])] = source.positions.pop(path)


def _merge_sections(matrix_files: MatrixFiles) -> dict[str, Data]:
    """Merge the sections of all files and their positions; report a name that is defined twice."""
    sections: dict[str, dict[str, Data]] = {}
    for source in matrix_files.files:
        for section in SECTIONS:
            try:
                entries = source.mapping((section,))
            except InputError as error:
                matrix_files.mistakes.append(error)
                continue
            for name, data in entries.items():
                _add_entry(matrix_files, source, sections.setdefault(section, {}), (section, name), data)
        positions = matrix_files.source.positions
        positions |= {path: at for path, at in source.positions.items() if path not in positions or len(path) < 2}
    return dict(sections)


def _add_entry(
    matrix_files: MatrixFiles, source: Source, section: dict[str, Data], path: tuple[str, ...], data: Data
) -> None:
    """Add one entry; if the entry is an existing factor, add its levels to that factor."""
    name = path[-1]
    existing = section.get(name)
    if name not in section:
        section[name] = dict(data) if isinstance(data, dict) else data
    elif path[0] == "factors" and len(path) == 2 and isinstance(existing, dict) and isinstance(data, dict):
        for level, level_data in data.items():
            _add_entry(matrix_files, source, existing, (*path, level), level_data)
    else:
        noun = SECTIONS[path[0]] if len(path) == 2 else f"level of {path[1]}"
        message = f"{noun} {name!r} is already defined in {matrix_files.source.where(path, key=True)}"
        mistake = InputError(message, where=source.where(path, key=True), remedy="rename one of them")
        matrix_files.mistakes.append(mistake)
