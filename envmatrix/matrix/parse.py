"""From matrix.yaml's data to a Matrix: every mistake is collected with its place and the nearest known word."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from envmatrix import benchmark
from envmatrix.errors import InputError, suggestion
from envmatrix.matrix import templates
from envmatrix.matrix.model import (
    NAME,
    Design,
    EnvironmentEntry,
    Factor,
    Level,
    Matrix,
    Metric,
    Slurm,
    SourceBuild,
    Workload,
    cells,
    too_many_blocks,
)
from envmatrix.matrix.source import Key, Source, parse_yaml, read_text
from envmatrix.record import claims

VERSION = 1
SECTIONS = ("version", "factors", "environments", "workloads", "designs")
_WORKLOAD_KEYS = ("description", "command", "metric", "files")
_KINDS = {
    "environments": "environment",
    "ladder": "environment",
    "workloads": "workload",
    "application": "workload",
}
_RESERVED = {"control": "the second copy of the baseline has this name"}
Parsed = TypeVar("Parsed", bound=BaseModel)


class MatrixError(InputError):
    """One or more mistakes in matrix.yaml, each with its place and remedy."""

    def __init__(self, mistakes: list[InputError]) -> None:
        super().__init__("\n".join(str(mistake) for mistake in mistakes))
        self.mistakes = mistakes


def load(path: Path) -> Matrix:
    """Read, check and freeze ``path``; a MatrixError names every mistake as file:line:column."""
    return parse(read_text(path), path)


def parse(text: str, path: Path) -> Matrix:
    """Check and freeze the text of a matrix.yaml; ``path`` is only named in messages."""
    reader = _Parser(parse_yaml(text, path))
    matrix = reader.matrix(hashlib.sha256(text.encode()).hexdigest())
    if matrix is not None:
        _check_names(reader, matrix)
    if reader.mistakes or matrix is None:
        raise MatrixError(sorted(reader.mistakes, key=lambda m: (m.where.line or 0) if m.where else 0))
    return matrix


class _Parser:
    def __init__(self, source: Source) -> None:
        self.source = source
        self.mistakes: list[InputError] = []

    def wrong(self, path: Key, message: str, remedy: str = "", *, key: bool = False) -> None:
        self.mistakes.append(InputError(message, where=self.source.where(path, key=key), remedy=remedy))

    def matrix(self, digest: str) -> Matrix | None:
        top = self.mapping(self.source.data, ())
        for key in top:
            if key not in SECTIONS:
                self.wrong((key,), f"unknown key {key!r}", suggestion(key, SECTIONS), key=True)
        version = top.get("version")
        if version != str(VERSION):
            self.wrong(("version",), f"version must be {VERSION}, not {version}", "write `version: 1` at the top")
        parts = {
            "factors": self.section("factors", self._factor),
            "environments": self.section("environments", self._environment),
            "workloads": self.section("workloads", self._workload),
            "designs": self.section("designs", self._design),
        }
        if self.mistakes:
            return None
        return Matrix(version=VERSION, digest=f"sha256:{digest}", path=str(self.source.file), **parts)

    def mapping(self, data: Any, path: Key) -> dict[str, Any]:
        if data is None:
            return {}
        if isinstance(data, dict):
            return data
        self.wrong(path, f"{_dotted(path)} must hold `name: ...` lines, not {data!r}")
        return {}

    def section(self, name: str, make: Callable[[str, dict[str, Any], Key], Any]) -> dict[str, Any]:
        found = {}
        for key, data in self.mapping(self.mapping(self.source.data, ()).get(name), (name,)).items():
            path = (name, key)
            if self.good_name(key, path):
                found[key] = make(key, self.mapping(data, path), path)
        return {key: value for key, value in found.items() if value is not None}

    def good_name(self, name: str, path: Key) -> bool:
        if name in _RESERVED:
            self.wrong(path, f"{name!r} is a reserved name", _RESERVED[name], key=True)
            return False
        if not NAME.match(name) or len(name) > 80:
            self.wrong(path, f"{name!r} is no usable name", "use letters, digits, '.', '_', '+' and '-'", key=True)
            return False
        return True

    def validate(self, model: type[Parsed], data: Mapping[str, Any], path: Key, **more: Any) -> Parsed | None:
        try:
            return model.model_validate({**data, **more})
        except ValidationError as error:
            known = set(model.model_fields) - set(more)
            for problem in error.errors(include_url=False, include_context=False):
                self.explain(problem["type"], problem["msg"], (*path, *problem["loc"]), problem["input"], known)
            return None

    def explain(self, kind: str, text: str, path: Key, given: Any, known: set[str]) -> None:
        of_key = "[key]" in path
        path = tuple(part for part in path if part != "[key]")
        if kind == "extra_forbidden":
            self.wrong(path, f"unknown key {path[-1]!r}", suggestion(str(path[-1]), known), key=True)
            return
        said = text.removeprefix("Value error, ")
        if kind != "value_error":
            shown = "" if isinstance(given, (dict, list, tuple)) else f", not {given!r}"
            said = f"{said[0].lower()}{said[1:]}{shown}"
        named = next((part for part in reversed(path) if isinstance(part, str)), "")
        self.wrong(path, f"{named}: {said}", key=of_key)

    def _factor(self, name: str, data: dict[str, Any], path: Key) -> Factor | None:
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

    def _level(self, data: dict[str, Any], path: Key) -> Level | None:
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
        level = self.validate(Level, {**data, "build": made}, path)
        for claimed, allowed in level.claims.items() if level else ():
            self._claim(claimed, allowed, (*path, "claims", claimed))
        return level

    def _claim(self, claimed: str, allowed: tuple[str, ...], path: Key) -> None:
        filled = [templates.fill(text, templates.SAMPLES) for text in allowed]
        try:
            claims.check(claims.parse(claimed, filled))
        except claims.ClaimError as error:
            place = path if error.index is None else (*path, error.index)
            self.wrong(place, str(error), error.remedy, key=error.index is None)

    def _source_build(self, data: Any, path: Key) -> SourceBuild | None:
        return self.validate(SourceBuild, self.mapping(data, path), path)

    def _environment(self, name: str, data: dict[str, Any], path: Key) -> EnvironmentEntry | None:
        levels = {key: value for key, value in data.items() if key != "description"}
        return self.validate(
            EnvironmentEntry, {"description": data.get("description", "")}, path, name=name, levels=levels
        )

    def _workload(self, name: str, data: dict[str, Any], path: Key) -> Workload | None:
        own = {key: value for key, value in data.items() if key in _WORKLOAD_KEYS and key != "metric"}
        rest = {key: value for key, value in data.items() if key not in _WORKLOAD_KEYS}
        if "command" in own and rest:
            extra = next(iter(rest))
            self.wrong(
                (*path, extra),
                f"{extra!r} is an option of the built-in benchmark, not of a command",
                key=True,
            )
            return None
        metric = None
        if "metric" in data:
            metric = self.validate(Metric, self.mapping(data["metric"], (*path, "metric")), (*path, "metric"))
            if "command" not in own:
                self.wrong((*path, "metric"), "a metric belongs to a workload with a `command`", key=True)
        if "files" in own and "command" not in own:
            self.wrong((*path, "files"), "`files` belongs to a workload with a `command`", key=True)
        checked = self._options(rest, path)
        return self.validate(Workload, own, path, name=name, options=checked, metric=metric)

    def _options(self, given: Mapping[str, Any], path: Key) -> dict[str, benchmark.OptionValue]:
        checked: dict[str, benchmark.OptionValue] = {}
        for key, value in given.items():
            try:
                checked[key] = benchmark.convert(key, value)
            except benchmark.UnknownOptionError:
                known = [*benchmark.options(), *_WORKLOAD_KEYS]
                self.wrong((*path, key), f"unknown key {key!r}", suggestion(key, known), key=True)
            except benchmark.WrongValueError as error:
                self.wrong((*path, key), f"{key}: {error}", error.remedy)
        for rule in benchmark.broken_rules(checked) if len(checked) == len(given) else ():
            named = next(key for key in rule.options if key in checked)
            self.wrong((*path, named), rule.message, f"change {' or '.join(rule.options)}", key=True)
        return checked

    def _design(self, name: str, data: dict[str, Any], path: Key) -> Design | None:
        ways = [key for key in ("environments", "factors", "ladder") if data.get(key)]
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


def _check_names(parser: _Parser, matrix: Matrix) -> None:
    """Check that every word that names something in another section is there."""
    _check_levels(parser, matrix)
    for name, entry in matrix.environments.items():
        for factor, level in entry.levels.items():
            _check_level_word(parser, matrix, ("environments", name), factor, level)
    for design in matrix.designs.values():
        _check_design(parser, matrix, design)
    _check_baselines(parser, matrix)


def _check_baselines(parser: _Parser, matrix: Matrix) -> None:
    """Refuse a factorial design whose first cell has the name of something else: a name means one environment."""
    named = {name: _all_levels(matrix, entry.levels) for name, entry in matrix.environments.items()}
    for design in matrix.designs.values():
        if not design.factors or not all(design.factors.values()):
            continue
        first = {factor: levels[0] for factor, levels in design.factors.items()}
        levels = _all_levels(matrix, first)
        if named.setdefault(design.baseline, levels) != levels:
            said = ", ".join(f"{factor}={level}" for factor, level in first.items())
            parser.wrong(
                ("designs", design.name, "baseline"),
                f"the first cell of this design ({said}) would be called {design.baseline!r}, which is another "
                "environment",
                "give it a name of its own with `baseline: NAME`, or begin each factor with that environment's level",
            )


def _all_levels(matrix: Matrix, chosen: Mapping[str, str]) -> dict[str, str]:
    return {factor.name: chosen.get(factor.name, factor.reference) for factor in matrix.factors.values()}


def _check_design(parser: _Parser, matrix: Matrix, design: Design) -> None:
    path = ("designs", design.name)
    for key, kind in _KINDS.items():
        known = matrix.environments if kind == "environment" else matrix.workloads
        for index, word in enumerate(getattr(design, key)):
            if word not in known:
                parser.wrong((*path, key, index), f"no {kind} {word!r}", suggestion(word, known))
    for index, word in enumerate(design.application):
        if word in design.workloads or word in matrix.environments:
            remedy = "give the workload another name"
            parser.wrong((*path, "application", index), f"{word!r} already names a row of the table", remedy)
    _check_published(parser, matrix, design)
    if not design.factors and design.baseline not in matrix.environments:
        remedy = "add `baseline: {}` under environments"
        parser.wrong((*path, "baseline"), f"no environment {design.baseline!r} to compare with", remedy)
    for factor, levels in design.factors.items():
        for index, level in enumerate(levels):
            _check_level_word(parser, matrix, (*path, "factors"), factor, level, index)


def _check_published(parser: _Parser, matrix: Matrix, design: Design) -> None:
    known = {*matrix.environments, *matrix.workloads, *_RESERVED}
    unknown = [name for name in design.published if name not in known]
    of_cells = cells(design) if unknown else {}
    for name in unknown:
        if name not in of_cells:
            path = ("designs", design.name, "published", name)
            parser.wrong(path, f"no environment or workload {name!r}", suggestion(name, {*known, *of_cells}), key=True)


def _check_levels(parser: _Parser, matrix: Matrix) -> None:
    for factor in matrix.factors.values():
        for level_name, level in factor.levels.items():
            path = ("factors", factor.name, level_name, "requires")
            for other, allowed in level.requires.items():
                for index, word in enumerate(allowed):
                    _check_level_word(parser, matrix, path, other, word, index)


def _check_level_word(
    parser: _Parser, matrix: Matrix, path: Key, factor: str, level: str, index: int | None = None
) -> None:
    inner = (*path, factor)
    if factor not in matrix.factors:
        parser.wrong(inner, f"no factor {factor!r}", suggestion(factor, matrix.factors), key=True)
    elif level not in matrix.factors[factor].levels:
        place = inner if index is None else (*inner, index)
        parser.wrong(
            place,
            f"factor {factor!r} has no level {level!r}",
            suggestion(level, matrix.factors[factor].levels),
        )


def _dotted(path: Key) -> str:
    return ".".join(str(part) for part in path) or "the file"
