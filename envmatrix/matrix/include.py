"""``include:``: several files become one matrix, and every name remembers the file that it came from.

A file's includes come before the file itself, in the order written, each file once however often it is named. A level
may be added to a factor of another file; apart from that a name has one place, for what a name means must not depend
on the order of files.
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
from envmatrix.system.regular_files import LARGEST_TEXT

LIBRARY = Path(__file__).with_name("library")
PACKAGED = "envmatrix:"
VERSIONS = ("1", "2")
KINDS = {
    "factors": "factor",
    "environments": "environment",
    "defaults": "default",
    "workloads": "workload",
    "designs": "design",
}
_TOP = ("version", "include", *KINDS)
#: Since version 2.
_NEW = ("include", "defaults")
#: Words of version 1, in a design, and what they are called since.
OLD_WORDS = {"ladder": "cumulative", "published": "reference_values"}
_MOST_FILES = 100
_DEEPEST = 10


@dataclass
class Gathered:
    """All files of a matrix as one ``source``; ``files`` in the order they count, the including one last.

    ``inlined`` are lists of requirements that other files hold, which stand in the source's data now. ``asked`` says
    which word of the user's own includes brought a packaged file, and where it stands.
    """

    source: Source
    files: list[Source]
    asked: Mapping[Path, tuple[str, Where]] = field(default_factory=dict)
    mistakes: list[InputError] = field(default_factory=list)
    inlined: list[list[str]] = field(default_factory=list)

    @property
    def digest(self) -> str:
        """The sha256 of the file as read; of several files, over the texts of all in their order."""
        first = self.source.text
        lists = [json.dumps(words) for words in self.inlined]
        several = len(self.files) > 1 or lists
        whole = json.dumps([*(source.text for source in self.files), *lists]) if several else first
        return "sha256:" + hashlib.sha256(whole.encode()).hexdigest()

    def of_user(self, mistake: InputError) -> InputError:
        """Return a mistake that shows in a packaged file as one of the line that includes it; any other as it is."""
        word, where = self.asked.get(mistake.where.file, ("", None)) if mistake.where else ("", None)
        if where is None:
            return mistake
        return InputError(f"{word}: {mistake.message}", where=where, remedy=mistake.remedy)

    def text(self, files: Mapping[str, str]) -> str:
        """Return the matrix as one file that includes nothing: as read, or put together from its files.

        ``files`` maps workloads to their programs' folders, which other files may write relative to themselves.
        """
        if len(self.files) == 1 and not self.inlined:
            return self.source.text
        head = "".join(f"# {source.file.name}\n" for source in self.files)
        body: dict[str, object] = {"version": 2}
        body |= {name: data for name, data in self.source.mapping(()).items() if name in KINDS}
        if files:
            workloads = self.source.mapping(("workloads",))
            placed = {name: {**self.source.mapping(("workloads", name)), "files": files[name]} for name in files}
            body["workloads"] = {**workloads, **placed}
        return f"# Put together by envmatrix from:\n{head}{yaml.dump(body, Dumper=_Plain, sort_keys=False, width=110)}"


class _Plain(yaml.SafeDumper):
    def ignore_aliases(self, _data: object) -> bool:
        return True


def gather(root: Source) -> Gathered:
    """Read all that ``root`` includes. Raises InputError for an include that cannot be; collects the rest."""
    found: dict[Path, Source] = {}
    asked: dict[Path, tuple[str, Where]] = {}
    _visit(root, (_real(root.file),), found, asked)
    gathered = Gathered(Source(root.file, root.text), list(found.values()), asked)
    for source in gathered.files:
        gathered.mistakes += _mistakes(source)
    gathered.source.data = _merged(gathered)
    return gathered


def _visit(
    source: Source, chain: tuple[Path, ...], found: dict[Path, Source], asked: dict[Path, tuple[str, Where]]
) -> None:
    for index, word in enumerate(_includes(source)):
        where = source.where(("include", index))
        file = _find(word, source, index)
        real = _real(file)
        if real in chain:
            names = " -> ".join(path.name for path in (*chain[chain.index(real) :], real))
            raise InputError(f"this includes itself: {names}", where=where, remedy="take one of these includes out")
        if real in found:
            continue
        if len(chain) > _DEEPEST or len(found) >= _MOST_FILES:
            raise InputError(
                f"more than {_DEEPEST} files include one another in a row, or {_MOST_FILES} in all", where=where,
                remedy="put some of them together",
            )  # fmt: skip
        if word.startswith(PACKAGED):
            asked[file] = asked.get(source.file, (word, where))
        _visit(parse_yaml(_text(file, source, index), file), (*chain, real), found, asked)
    found[chain[-1]] = source


def _real(file: Path) -> Path:
    return Path(os.path.realpath(file))  # resolve() breaks off at a link that leads to itself


def _includes(source: Source) -> list[str]:
    given = source.mapping(()).get("include")
    words = [given] if isinstance(given, str) else given
    if words is None:
        return []
    if not isinstance(words, list) or not all(map(_is_name, words)):
        raise InputError(
            "include must be a list of files", where=source.where(("include",)),
            remedy=f"write `include: [{PACKAGED}malloc, ./more.yaml]`",
        )  # fmt: skip
    return [str(word) for word in words]


def _is_name(word: Data) -> bool:
    return isinstance(word, str) and bool(word) and "\0" not in word


def library() -> list[str]:
    """Return the names of the packaged files."""
    return sorted(path.stem for path in LIBRARY.glob("*.yaml"))


def is_packaged(file: Path) -> bool:
    """Say whether a file comes with envmatrix."""
    return file.parent == LIBRARY


def _find(word: str, source: Source, index: int) -> Path:
    """Return the file that an include names: a packaged one, or one relative to the file that includes it."""
    if not word.startswith(PACKAGED):
        return source.file.parent / word
    name = word.removeprefix(PACKAGED)
    if name not in library():
        known = [PACKAGED + name for name in library()]
        raise InputError(
            f"nothing called {word!r} comes with envmatrix",
            where=source.where(("include", index)),
            remedy=suggestion(word, known),
        )
    return LIBRARY / f"{name}.yaml"


def _text(file: Path, source: Source, index: int) -> str:
    where = source.where(("include", index))
    try:
        status = file.stat()
    except OSError as error:
        said = f"cannot include {str(file)!r}: {error.strerror}"
        raise InputError(said, where=where, remedy=_nearest(file)) from error
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"cannot include {str(file)!r}: it is no file", where=where, remedy="name a YAML file")
    if status.st_size > LARGEST_TEXT:
        raise InputError(
            f"cannot include {str(file)!r}: it has {status.st_size} bytes, more than the {LARGEST_TEXT} of a matrix",
            where=where, remedy="name a YAML file",
        )  # fmt: skip
    return read_text(file)


def _nearest(file: Path) -> str:
    beside = [path.name for path in file.parent.glob("*.yaml")] if file.parent.is_dir() else []
    near = get_close_matches(file.name, [*beside, *library()], n=1)
    if not near:
        return "a name is relative to the file that includes it"
    return f"did you mean {near[0] if near[0] in beside else PACKAGED + near[0]!r}?"


def _mistakes(source: Source) -> Iterator[InputError]:
    """Yield what is wrong at the top of one file, and give old words of version 1 their names of today."""
    top = source.mapping(())
    for key in top:
        if key not in _TOP:
            yield InputError(f"unknown key {key!r}", where=source.where((key,), key=True), remedy=suggestion(key, _TOP))
    yield from _passwords(source.data, (), source)
    version = top.get("version")
    if version not in VERSIONS:
        said = "there is no version" if version is None else f"version must be {' or '.join(VERSIONS)}, not {version}"
        newer = isinstance(version, str) and version.isdecimal() and int(version) > int(VERSIONS[-1])
        remedy = "it is for a newer envmatrix: upgrade this one" if newer else "write `version: 2` at the top"
        yield InputError(said, where=source.where(("version",)), remedy=remedy)
    if version == "1":
        for key in _NEW:
            if key in top:
                said, remedy = f"{key!r} came with version 2", "write `version: 2` at the top"
                yield InputError(said, where=source.where((key,), key=True), remedy=remedy)
        _rename_old_words(source)


def _passwords(data: Data, path: Key, source: Source) -> Iterator[InputError]:
    """Yield every text with a password in a URL: a run keeps its matrix, and is shown to others."""
    if isinstance(data, str) and without_userinfo(data) != data:
        said = "a URL with a user's name or password: a run keeps its matrix, and is shown to others"
        remedy = "leave it out here; pip finds it in ~/.netrc or its own configuration, a program in a file of yours"
        yield InputError(said, where=source.where(path), remedy=remedy)
    for key, inner in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        yield from _passwords(inner, (*path, key), source)


def _rename_old_words(source: Source) -> None:
    designs = source.mapping(()).get("designs")
    for name, design in designs.items() if isinstance(designs, dict) else ():
        for old, new in OLD_WORDS.items():
            if isinstance(design, dict) and old in design and new not in design:
                design[new] = design.pop(old)
                for places in (source.keys, source.values):
                    _rename(places, ("designs", name, old), new)


def _rename(places: dict[Key, Where], old: Key, new: str) -> None:
    for path in [path for path in places if path[: len(old)] == old]:
        renamed = (*old[:-1], new, *path[len(old) :])
        places[renamed] = places.pop(path)


def _merged(gathered: Gathered) -> dict[str, Data]:
    """Put the sections of all files together, and their places; a name that stands twice is a mistake."""
    merged: dict[str, dict[str, Data]] = {}
    for source in gathered.files:
        for kind in KINDS:
            try:
                body = source.mapping((kind,))
            except InputError as error:
                gathered.mistakes.append(error)
                continue
            for name, data in body.items():
                _add(gathered, source, merged.setdefault(kind, {}), (kind, name), data)
        _add_places(gathered.source, source)
    return dict(merged)


def _add(gathered: Gathered, source: Source, section: dict[str, Data], path: tuple[str, ...], data: Data) -> None:
    """Add one entry; the levels of a factor that is there already are added to it."""
    old, name = section.get(path[-1]), path[-1]
    if name not in section:
        section[name] = dict(data) if isinstance(data, dict) else data
    elif path[0] == "factors" and len(path) == 2 and isinstance(old, dict) and isinstance(data, dict):
        for level, body in data.items():
            _add(gathered, source, old, (*path, level), body)
    else:
        what = KINDS[path[0]] if len(path) == 2 else f"level of {path[1]}"
        said = f"{what} {name!r} is already in {gathered.source.where(path, key=True)}"
        where = source.where(path, key=True)
        gathered.mistakes.append(InputError(said, where=where, remedy="give one of them another name"))


def _add_places(whole: Source, source: Source) -> None:
    for mine, theirs in ((whole.keys, source.keys), (whole.values, source.values)):
        for path, where in theirs.items():
            if path not in mine or len(path) < 2:
                mine[path] = where
