"""From matrix.yaml's data to a Matrix: every mistake is collected with its place and the nearest known word."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from envmatrix.errors import InputError, Where, suggestion
from envmatrix.evidence import checks
from envmatrix.matrix import templates
from envmatrix.matrix.include import OLD_WORDS, Gathered, gather
from envmatrix.matrix.metrics import Check, MetricSource
from envmatrix.matrix.model import (
    LONGEST_NAME,
    NAME,
    Design,
    EnvironmentEntry,
    Factor,
    Level,
    Matrix,
    SourceBuild,
    Workload,
    too_many_blocks,
)
from envmatrix.matrix.references import RESERVED, check_names
from envmatrix.matrix.requirements import file_named
from envmatrix.matrix.requirements import read as read_requirements
from envmatrix.matrix.slurm import Slurm
from envmatrix.matrix.types import OF_KEY, key_of
from envmatrix.matrix.yaml_positions import Data, Key, mapping_of, parse_yaml, read_text
from envmatrix.system import bench_options
from envmatrix.system.validation_messages import in_words

_PLAIN = ("files", "env", "pass_env", "home", "mounts", "setup", "prepare", "cleanup")
_OWN_PROGRAM = ("command", "metric", "metrics", "check", *_PLAIN)
#: What only a program of the user's own has.
_OF_COMMAND = {
    "metric": "a metric belongs",
    "metrics": "metrics belong",
    "check": "a check belongs",
    **{key: f"`{key}` belongs" for key in _PLAIN},
}
_WORKLOAD_KEYS = ("description", "defaults", *_OWN_PROGRAM)
_REPORTED = ("metric", "metrics", "check")
Parsed = TypeVar("Parsed", bound=BaseModel)
Entry = TypeVar("Entry")


class MatrixError(InputError):
    """One or more mistakes in matrix.yaml, each with its place and remedy."""

    topic = "matrix"

    def __init__(self, mistakes: list[InputError]) -> None:
        super().__init__("\n".join(str(mistake) for mistake in mistakes))
        self.mistakes = mistakes


def load(path: Path) -> Matrix:
    """Read, check and freeze ``path`` and what it includes; a MatrixError names every mistake as file:line:column."""
    return parse(read_text(path), path)


def parse(text: str, path: Path, *, begun: bool = False) -> Matrix:
    """Check and freeze the text of a matrix.yaml; includes are looked for beside ``path``.

    ``begun``: it is the one that a run began with, perhaps under an older envmatrix, which refused less.
    """
    gathered = gather(parse_yaml(text, path))
    reader = _Parser(gathered)
    matrix = reader.matrix()
    if matrix is not None:
        check_names(reader.wrong, matrix, begun=begun)
    if reader.mistakes or matrix is None:
        raise MatrixError(_in_order(gathered, reader.mistakes))
    return matrix


def place_in(path: Path, place: Key, *, key: bool = False) -> Where:
    """Return where something stands in a matrix that could be read: in ``path``, or in a file that it includes.

    ``key``: where its name does.
    """
    return gather(parse_yaml(read_text(path), path)).source.where(place, key=key)


def of_user(path: Path, mistake: InputError) -> InputError:
    """Return a mistake of the matrix in ``path`` at a line of the user's own, if it shows in a packaged file."""
    return gather(parse_yaml(read_text(path), path)).of_user(mistake)


def _in_order(gathered: Gathered, mistakes: Iterable[InputError]) -> list[InputError]:
    """Return each mistake once, file by file (this one first) and from the top to the bottom."""
    files = [source.file for source in reversed(gathered.files)]

    def place(mistake: InputError) -> tuple[int, int, int]:
        where = mistake.where or Where(files[0])
        return files.index(where.file) if where.file in files else 0, where.line or 0, where.column or 0

    own = map(gathered.of_user, mistakes)
    return sorted({str(mistake): mistake for mistake in own}.values(), key=place)


def _entries(data: Data) -> list[tuple[Key, Data]]:
    """Return the entries of a list, each with its place in it; what is no list is its own only entry."""
    return [((at,), entry) for at, entry in enumerate(data)] if isinstance(data, list) else [((), data)]


class _Parser:
    def __init__(self, gathered: Gathered) -> None:
        self.gathered = gathered
        self.source = gathered.source
        self.mistakes = gathered.mistakes

    def wrong(self, path: Key, message: str, remedy: str = "", *, key: bool = False) -> None:
        self.mistakes.append(InputError(message, where=self.source.where(path, key=key), remedy=remedy))

    def matrix(self) -> Matrix | None:
        defaults = self.section("defaults", self._default)
        factors = self.section("factors", self._factor)
        environments = self.section("environments", self._environment)
        workloads = self.section(
            "workloads", lambda name, data, path: self._workload(name, self._laid_over(defaults, data, path), path)
        )
        designs = self.section("designs", self._design)
        if self.mistakes:
            return None
        return Matrix(
            factors=factors, environments=environments, workloads=workloads, designs=designs,
            digest=self.gathered.digest, path=str(self.source.file),
            text=self.gathered.text({name: made.files for name, made in workloads.items() if made.files}),
        )  # fmt: skip

    def mapping(self, data: Data, path: Key) -> dict[str, Data]:
        try:
            return mapping_of(data, path, self.source)
        except InputError as error:
            self.mistakes.append(error)
            return {}

    def section(self, kind: str, make: Callable[[str, dict[str, Data], Key], Entry | None]) -> dict[str, Entry]:
        found: dict[str, Entry] = {}
        for name, data in self.source.mapping((kind,)).items():
            path = (kind, name)
            if self.good_name(name, path):
                made = make(name, self.mapping(data, path), path)
                if made is not None:
                    found[name] = made
        return found

    def good_name(self, name: str, path: Key) -> bool:
        if name in RESERVED:
            self.wrong(path, f"{name!r} is a reserved name", RESERVED[name], key=True)
            return False
        if not NAME.match(name) or len(name) > LONGEST_NAME:
            self.wrong(path, f"{name!r} is no usable name", "use letters, digits, '.', '_', '+' and '-'", key=True)
            return False
        return True

    def validate(self, model: type[Parsed], data: Mapping[str, object], path: Key, **more: object) -> Parsed | None:
        try:
            return model.model_validate({**data, **more})
        except ValidationError as error:
            known = set(model.model_fields) - set(more)
            for problem in error.errors(include_url=False):
                place = (*path, *problem["loc"], *key_of(problem))
                self.explain(problem["type"], in_words(problem), place, problem["input"], known)
            return None

    def explain(self, kind: str, text: str, path: Key, given: object, known: set[str]) -> None:
        of_key = "[key]" in path
        path = tuple(part for part in path if part != "[key]")
        if kind == "extra_forbidden" and OLD_WORDS.get(str(path[-1])) in known:
            now = OLD_WORDS[str(path[-1])]
            self.wrong(path, f"{str(path[-1])!r} is called {now!r} since version 2", f"write `{now}`", key=True)
            return
        if kind == "extra_forbidden":
            self.wrong(path, f"unknown key {path[-1]!r}", suggestion(str(path[-1]), known), key=True)
            return
        plain = kind in ("value_error", "missing", OF_KEY) or isinstance(given, (dict, list, tuple))
        said = text if plain else f"{text}, not {given!r}"
        named = next((part for part in reversed(path) if isinstance(part, str)), "")
        self.wrong(path, f"{named}: {said}", key=of_key or kind == OF_KEY)

    def _factor(self, name: str, data: dict[str, Data], path: Key) -> Factor | None:
        if name == "description":
            self.wrong(path, "a factor cannot be called 'description'", "choose another name", key=True)
            return None
        levels = {}
        for key, body in data.items():
            inner = (*path, key)
            if self.good_name(key, inner):
                levels[key] = self._level(self.mapping(body, inner), inner)
        if not data:
            self.wrong(path, f"factor {name!r} has no levels", "write at least its reference level", key=True)
            return None
        whole = {key: level for key, level in levels.items() if level}
        return Factor(name=name, levels=whole) if len(whole) == len(data) else None

    def _level(self, data: dict[str, Data], path: Key) -> Level | None:
        for section in ("env", "claims"):
            for variable, value in self.mapping(data.get(section), (*path, section)).items():
                for text in value if isinstance(value, list) else [value]:
                    unknown = templates.unknown(text) if isinstance(text, str) else None
                    if unknown:
                        remedy = suggestion(unknown, templates.KNOWN)
                        self.wrong((*path, section, variable), f"no template {{{unknown}}}", remedy)
        builds = self.mapping(data.get("build"), (*path, "build")).items()
        made = {name: self._source_build(body, (*path, "build", name)) for name, body in builds}
        if None in made.values():
            return None
        self._inline_requirements(data, path)
        level = self.validate(Level, {**data, "build": made}, path)
        for claimed, allowed in level.claims.items() if level else ():
            self._claim(claimed, allowed, (*path, "claims", claimed))
        return level

    def _inline_requirements(self, data: dict[str, Data], path: Key) -> None:
        """Put, in place of files that a level's requirements name, what these hold: a run keeps its matrix whole."""
        given = data.get("requirements")
        words = [given] if isinstance(given, str) else given
        if not isinstance(words, list) or not any(isinstance(word, str) and file_named(word) for word in words):
            return
        place = (*path, "requirements")
        where = self.source.where(place)
        try:
            read = read_requirements([str(word) for word in words], where.file.parent, where)
        except InputError as error:
            self.mistakes.append(error)
            data["requirements"] = []
            return
        self.gathered.inlined.append([*read.words, *read.index])
        data["requirements"] = list(read.words)
        index = {*read.index, *filter(None, [data.get("index")])}
        if len(index) > 1:
            self.wrong(place, "requirements: more than one further index", "keep one, the other in pip's configuration")
        data.update({"index": read.index[0]} if read.index else {})

    def _claim(self, claimed: str, allowed: tuple[str, ...], path: Key) -> None:
        filled = [templates.fill(text, templates.SAMPLES) for text in allowed]
        try:
            checks.check(checks.parse(claimed, filled))
        except checks.ClaimError as error:
            place = path if error.index is None else (*path, error.index)
            self.wrong(place, str(error), error.remedy, key=error.index is None)

    def _source_build(self, data: Data, path: Key) -> SourceBuild | None:
        return self.validate(SourceBuild, self.mapping(data, path), path)

    def _environment(self, name: str, data: dict[str, Data], path: Key) -> EnvironmentEntry | None:
        levels = {key: value for key, value in data.items() if key != "description"}
        for key, value in levels.items():
            if not isinstance(value, str):
                self.wrong((*path, key), f"{key}: must be the name of one of its levels", key=True)
                return None
        return self.validate(
            EnvironmentEntry, {"description": data.get("description", "")}, path, name=name, levels=levels
        )

    def _default(self, _name: str, data: dict[str, Data], path: Key) -> dict[str, Data]:
        if "defaults" in data:
            self.wrong((*path, "defaults"), "a default takes nothing from another one", "write its keys here", key=True)
        options = {key: value for key, value in data.items() if key not in _WORKLOAD_KEYS}
        for key, value in options.items():
            self._option(key, value, path)
        return data

    def _laid_over(self, defaults: Mapping[str, dict[str, Data]], data: dict[str, Data], path: Key) -> dict[str, Data]:
        """Lay a workload over the default that it names; what it takes from there keeps its place there."""
        if "defaults" not in data:
            return data
        name = data["defaults"]
        if not isinstance(name, str) or name not in defaults:
            known = self.source.mapping(("defaults",))
            if not isinstance(name, str) or name not in known:
                self.wrong((*path, "defaults"), f"no default {name!r}", suggestion(str(name), known))
            return {key: value for key, value in data.items() if key != "defaults"}
        for places in (self.source.keys, self.source.values):
            for key in [key for key in places if key[:2] == ("defaults", name) and len(key) > 2]:
                places.setdefault((*path, *key[2:]), places[key])
        return {key: value for key, value in {**defaults[name], **data}.items() if key != "defaults"}

    def _workload(self, name: str, data: dict[str, Data], path: Key) -> Workload | None:
        own = {key: value for key, value in data.items() if key in _WORKLOAD_KEYS and key not in _REPORTED}
        rest = {key: value for key, value in data.items() if key not in _WORKLOAD_KEYS}
        if "command" in own and rest:
            extra = next(iter(rest))
            self.wrong(
                (*path, extra),
                f"{extra!r} is an option of the built-in benchmark, not of a command",
                key=True,
            )
            return None
        for key, words in _OF_COMMAND.items():
            if key in data and "command" not in own:
                self.wrong((*path, key), f"{words} to a workload with a `command`", key=True)
        checked = self._options(rest, path)
        made = self.validate(Workload, own, path, name=name, options=checked, **self._reported(data, path))
        return made.model_copy(update={"files": self._folder(made.files, path)}) if made and made.command else made

    def _reported(self, data: Mapping[str, Data], path: Key) -> dict[str, object]:
        """Return the numbers that a program reports, each checked at its own place."""
        found: dict[str, object] = {}
        if "metric" in data:
            found["metric"] = self._number(MetricSource, data["metric"], (*path, "metric"))
        if "metrics" in data:
            named = self.mapping(data["metrics"], (*path, "metrics"))
            usable = {key: value for key, value in named.items() if self.good_name(key, (*path, "metrics", key))}
            made = {key: self._number(MetricSource, value, (*path, "metrics", key)) for key, value in usable.items()}
            found["metrics"] = {key: metric for key, metric in made.items() if metric}
        if "check" in data:
            checks = [self._number(Check, entry, (*path, "check", *at)) for at, entry in _entries(data["check"])]
            found["check"] = tuple(check for check in checks if check)
        return found

    def _number(self, model: type[Parsed], data: Data, path: Key) -> Parsed | None:
        return self.validate(model, self.mapping(data, path), path)

    def _folder(self, files: str | None, path: Key) -> str | None:
        """Return a program's folder, relative to the matrix; it was written relative to the file that names it."""
        said = (*path, "files") if files else path
        home, here = self.source.file.parent, self.source.where(said, key=True).file.parent
        return files if here == home else os.path.relpath(here / (files or "."), home)

    def _options(self, given: Mapping[str, Data], path: Key) -> dict[str, bench_options.OptionValue]:
        checked: dict[str, bench_options.OptionValue] = {}
        for key, value in given.items():
            checked.update(self._option(key, value, path))
        for rule in bench_options.broken_rules(checked) if len(checked) == len(given) else ():
            named = next(key for key in rule.options if key in checked)
            self.wrong((*path, named), rule.message, f"change {' or '.join(rule.options)}", key=True)
        return checked

    def _option(self, key: str, value: Data, path: Key) -> dict[str, bench_options.OptionValue]:
        try:
            return {key: bench_options.convert(key, value)}
        except bench_options.UnknownOptionError:
            known = [*bench_options.options(), *_WORKLOAD_KEYS]
            self.wrong((*path, key), f"unknown key {key!r}", suggestion(key, known), key=True)
        except bench_options.WrongValueError as error:
            self.wrong((*path, key), f"{key}: {error}", error.remedy)
        return {}

    def _design(self, name: str, data: dict[str, Data], path: Key) -> Design | None:
        ways = [key for key in ("environments", "factors", "cumulative") if data.get(key)]
        if len(ways) > 1:
            self.wrong(
                (*path, ways[1]),
                f"a design has either `{ways[0]}` or `{ways[1]}`",
                "make two designs",
                key=True,
            )
            return None
        data = dict(data)
        asked = self.mapping(data.pop("slurm", None), (*path, "slurm"))
        slurm = self.validate(Slurm, asked, (*path, "slurm"))
        design = self.validate(Design, data, path, name=name, slurm=slurm or Slurm.model_validate({}))
        if design and "min_blocks" in data and (said := too_many_blocks(design)):  # max_blocks alone: a short look
            self.wrong((*path, "min_blocks"), f"min_blocks: {said}", "lower min_blocks, or raise max_blocks")
        return design
