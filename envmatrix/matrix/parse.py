"""Build a Matrix from the data of matrix.yaml, and collect every mistake with its location and a suggestion."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from envmatrix.errors import InputError, Where, suggestion
from envmatrix.evidence import checks
from envmatrix.evidence.dotted_paths import ClaimError
from envmatrix.matrix import placeholders
from envmatrix.matrix.include import RENAMED_KEYS, MatrixFiles, read_includes
from envmatrix.matrix.metric_sources import Check, MetricSource
from envmatrix.matrix.model import (
    MAX_NAME_LENGTH,
    NAME,
    Design,
    EnvironmentEntry,
    Factor,
    Level,
    Matrix,
    Slurm,
    SourceBuild,
    Workload,
    unreachable_verdict_reason,
)
from envmatrix.matrix.pip_requirements_files import expand_requirements, referenced_file
from envmatrix.matrix.reference_checks import RESERVED, reference_mistakes
from envmatrix.matrix.value_types import OF_KEY, attached_key
from envmatrix.matrix.yaml_positions import Data, Key, as_mapping, parse_yaml, read_text
from envmatrix.system import bench_options
from envmatrix.system.validation_messages import validation_message

_PROCESS_KEYS = ("files", "env", "pass_env", "home", "mounts", "setup", "prepare", "cleanup")
_PROGRAM_KEYS = ("command", "metric", "metrics", "check", *_PROCESS_KEYS)
#: Keys that need the user's own command.
_NEEDS_COMMAND = {
    "metric": "a metric belongs",
    "metrics": "metrics belong",
    "check": "a check belongs",
    **{key: f"`{key}` belongs" for key in _PROCESS_KEYS},
}
_WORKLOAD_KEYS = ("description", "defaults", *_PROGRAM_KEYS)
_METRIC_KEYS = ("metric", "metrics", "check")
Parsed = TypeVar("Parsed", bound=BaseModel)
Entry = TypeVar("Entry")


class MatrixError(InputError):
    """One or more mistakes in matrix.yaml, each with its location and remedy."""

    topic = "matrix"

    def __init__(self, mistakes: list[InputError]) -> None:
        super().__init__("\n".join(str(mistake) for mistake in mistakes))
        self.mistakes = mistakes


def load(path: Path) -> Matrix:
    """Load and validate ``path`` and its includes. Raises MatrixError with the location of every mistake."""
    return parse(read_text(path), path)


def parse(text: str, path: Path) -> Matrix:
    """Validate the text of a matrix.yaml; includes are relative to the folder of ``path``."""
    matrix_files = read_includes(parse_yaml(text, path))
    reader = _Parser(matrix_files)
    matrix = reader.matrix()
    if matrix is not None:
        for mistake in reference_mistakes(matrix):
            reader.wrong(mistake.path, mistake.message, mistake.remedy, key=mistake.key)
    if reader.mistakes or matrix is None:
        raise MatrixError(_sorted_mistakes(matrix_files, reader.mistakes))
    return matrix


def locate_key(path: Path, key_path: Key, *, key: bool = False) -> Where:
    """Return the location of an entry of a readable matrix: in ``path``, or in a file that it includes.

    ``key``: return the location of the entry's key.
    """
    return read_includes(parse_yaml(read_text(path), path)).source.where(key_path, key=key)


def locate_in_user_matrix(path: Path, mistake: InputError) -> InputError:
    """Return a mistake in the matrix of ``path``; one in a packaged file moves to the user's include line."""
    return read_includes(parse_yaml(read_text(path), path)).located_in_user_file(mistake)


def _sorted_mistakes(matrix_files: MatrixFiles, mistakes: Iterable[InputError]) -> list[InputError]:
    """Return the mistakes without duplicates, sorted by file (the main file first) and position."""
    files = [source.file for source in reversed(matrix_files.files)]

    def place(mistake: InputError) -> tuple[int, int, int]:
        where = mistake.where or Where(files[0])
        return files.index(where.file) if where.file in files else 0, where.line or 0, where.column or 0

    user_mistakes = map(matrix_files.located_in_user_file, mistakes)
    return sorted({str(mistake): mistake for mistake in user_mistakes}.values(), key=place)


class _Parser:
    def __init__(self, matrix_files: MatrixFiles) -> None:
        self.gathered = matrix_files
        self.source = matrix_files.source
        self.mistakes = matrix_files.mistakes

    def wrong(self, path: Key, message: str, remedy: str = "", *, key: bool = False) -> None:
        self.mistakes.append(InputError(message, where=self.source.where(path, key=key), remedy=remedy))

    def matrix(self) -> Matrix | None:
        defaults = self.section("defaults", self._default)
        factors = self.section("factors", self._factor)
        environments = self.section("environments", self._environment)
        workloads = self.section(
            "workloads", lambda name, data, path: self._workload(name, self._merge_defaults(defaults, data, path), path)
        )
        designs = self.section("designs", self._design)
        if self.mistakes:
            return None
        return Matrix(
            factors=factors,
            environments=environments,
            workloads=workloads,
            designs=designs,
            digest=self.gathered.digest,
            path=str(self.source.file),
            text=self.gathered.merged_text(
                {name: workload.files for name, workload in workloads.items() if workload.files}
            ),
        )

    def mapping(self, data: Data, path: Key) -> dict[str, Data]:
        try:
            return as_mapping(data, path, self.source)
        except InputError as error:
            self.mistakes.append(error)
            return {}

    def section(self, kind: str, make: Callable[[str, dict[str, Data], Key], Entry | None]) -> dict[str, Entry]:
        parsed: dict[str, Entry] = {}
        for name, data in self.source.mapping((kind,)).items():
            path = (kind, name)
            if self.is_valid_name(name, path):
                entry = make(name, self.mapping(data, path), path)
                if entry is not None:
                    parsed[name] = entry
        return parsed

    def is_valid_name(self, name: str, path: Key) -> bool:
        if name in RESERVED:
            self.wrong(path, f"{name!r} is a reserved name", RESERVED[name], key=True)
            return False
        if not NAME.match(name) or len(name) > MAX_NAME_LENGTH:
            self.wrong(path, f"{name!r} is not a valid name", "use letters, digits, '.', '_', '+' and '-'", key=True)
            return False
        return True

    def validate(self, model: type[Parsed], data: Mapping[str, object], path: Key, **more: object) -> Parsed | None:
        try:
            return model.model_validate({**data, **more})
        except ValidationError as error:
            known_keys = set(model.model_fields) - set(more)
            for problem in error.errors(include_url=False):
                self.add_value_mistake(problem, (*path, *problem["loc"], *attached_key(problem)), known_keys)
            return None

    def _entry(self, model: type[Parsed], data: Data, path: Key) -> Parsed | None:
        return self.validate(model, self.mapping(data, path), path)

    def add_value_mistake(self, problem: ErrorDetails, path: Key, known: set[str]) -> None:
        kind, value, of_key = problem["type"], problem["input"], "[key]" in path
        path = tuple(part for part in path if part != "[key]")
        name = str(path[-1])
        if kind == "extra_forbidden" and (new_name := RENAMED_KEYS.get(name)) in known:
            self.wrong(path, f"{name!r} is called {new_name!r} since version 2", f"write `{new_name}`", key=True)
        elif kind == "extra_forbidden":
            self.wrong(path, f"unknown key {path[-1]!r}", suggestion(name, known), key=True)
        else:
            is_complete = kind in ("value_error", "missing", OF_KEY) or isinstance(value, (dict, list, tuple))
            text = validation_message(problem) + ("" if is_complete else f", not {value!r}")
            last_key = next((part for part in reversed(path) if isinstance(part, str)), "")
            self.wrong(path, f"{last_key}: {text}", key=of_key or kind == OF_KEY)

    def _factor(self, name: str, data: dict[str, Data], path: Key) -> Factor | None:
        if name == "description":
            self.wrong(path, "a factor cannot be called 'description'", "choose another name", key=True)
            return None
        if not data:
            self.wrong(path, f"factor {name!r} has no levels", "add at least its reference level", key=True)
            return None
        valid_names = [key for key in data if self.is_valid_name(key, (*path, key))]
        levels = {key: self._level(self.mapping(data[key], (*path, key)), (*path, key)) for key in valid_names}
        complete_levels = {key: level for key, level in levels.items() if level}
        return Factor(name=name, levels=complete_levels) if len(complete_levels) == len(data) else None

    def _level(self, data: dict[str, Data], path: Key) -> Level | None:
        for section in ("env", "claims"):
            for variable, value in self.mapping(data.get(section), (*path, section)).items():
                for text in value if isinstance(value, list) else [value]:
                    unknown = placeholders.unknown_template(text) if isinstance(text, str) else None
                    if unknown:
                        remedy = suggestion(unknown, placeholders.TEMPLATE_NAMES)
                        self.wrong((*path, section, variable), f"unknown template {{{unknown}}}", remedy)
        builds = self.mapping(data.get("build"), (*path, "build"))
        source_builds = {name: self._entry(SourceBuild, builds[name], (*path, "build", name)) for name in builds}
        if None in source_builds.values():
            return None
        self._inline_requirements(data, path)
        level = self.validate(Level, {**data, "build": source_builds}, path)
        for claimed, allowed in level.claims.items() if level else ():
            self._check_claim(claimed, allowed, (*path, "claims", claimed))
        return level

    def _inline_requirements(self, data: dict[str, Data], path: Key) -> None:
        """Replace requirements files with their contents, so that the stored matrix of a run is complete."""
        value = data.get("requirements")
        requirements = [value] if isinstance(value, str) else value
        if not isinstance(requirements, list) or not any(
            isinstance(requirement, str) and referenced_file(requirement) for requirement in requirements
        ):
            return
        requirements_path = (*path, "requirements")
        where = self.source.where(requirements_path)
        try:
            expanded = expand_requirements(list(map(str, requirements)), where.file.parent, where)
        except InputError as error:
            self.mistakes.append(error)
            data["requirements"] = []
            return
        self.gathered.inlined.append([*expanded.words, *expanded.index])
        if len({*expanded.index, *filter(None, [data.get("index")])}) > 1:
            remedy = "keep one, and put the other in pip's configuration"
            self.wrong(requirements_path, "requirements: more than one additional index", remedy)
        data["requirements"] = list(expanded.words)
        if expanded.index:
            data["index"] = expanded.index[0]

    def _check_claim(self, claimed: str, allowed: tuple[str, ...], path: Key) -> None:
        sample_values = [placeholders.fill_templates(text, placeholders.SAMPLE_VALUES) for text in allowed]
        try:
            checks.check(checks.parse_claim(claimed, sample_values))
        except ClaimError as error:
            claim_path = path if error.index is None else (*path, error.index)
            self.wrong(claim_path, str(error), error.remedy, key=error.index is None)

    def _environment(self, name: str, data: dict[str, Data], path: Key) -> EnvironmentEntry | None:
        levels = {key: value for key, value in data.items() if key != "description"}
        for key, value in levels.items():
            if not isinstance(value, str):
                self.wrong((*path, key), f"{key}: must be the name of one of its levels", key=True)
                return None
        entry = {"description": data.get("description", "")}
        return self.validate(EnvironmentEntry, entry, path, name=name, levels=levels)

    def _default(self, _name: str, data: dict[str, Data], path: Key) -> dict[str, Data]:
        if "defaults" in data:
            self.wrong((*path, "defaults"), "a default cannot use another default", "write its keys here", key=True)
        for key in [key for key in data if key not in _WORKLOAD_KEYS]:
            self._option(key, data[key], path)
        return data

    def _merge_defaults(
        self, defaults: Mapping[str, dict[str, Data]], data: dict[str, Data], path: Key
    ) -> dict[str, Data]:
        """Merge a workload with the default it names; inherited keys keep their location in the default."""
        if "defaults" not in data:
            return data
        own_data = {key: value for key, value in data.items() if key != "defaults"}
        name, known_defaults = data["defaults"], self.source.mapping(("defaults",))
        if not isinstance(name, str) or name not in known_defaults:
            self.wrong((*path, "defaults"), f"no default {name!r}", suggestion(str(name), known_defaults))
        if not isinstance(name, str) or name not in defaults:
            return own_data
        positions = self.source.positions
        for key in [key for key in positions if key[:2] == ("defaults", name) and len(key) > 2]:
            positions.setdefault((*path, *key[2:]), positions[key])
        inherited = {key: value for key, value in defaults[name].items() if key != "defaults"}
        return {**inherited, **own_data}

    def _workload(self, name: str, data: dict[str, Data], path: Key) -> Workload | None:
        program_keys = {key: value for key, value in data.items() if key in _WORKLOAD_KEYS and key not in _METRIC_KEYS}
        option_keys = {key: value for key, value in data.items() if key not in _WORKLOAD_KEYS}
        if "command" in program_keys and option_keys:
            key = next(iter(option_keys))
            message = f"{key!r} is an option of the built-in benchmark; a workload with `command` has no such option"
            self.wrong((*path, key), message, key=True)
            return None
        for key, words in _NEEDS_COMMAND.items():
            if key in data and "command" not in program_keys:
                self.wrong((*path, key), f"{words} to a workload with a `command`", key=True)
        checked = self._options(option_keys, path)
        workload = self.validate(Workload, program_keys, path, name=name, options=checked, **self._metrics(data, path))
        if not workload or not workload.command:
            return workload
        return workload.model_copy(update={"files": self._program_folder(workload.files, path)})

    def _metrics(self, data: Mapping[str, Data], path: Key) -> dict[str, object]:
        """Return the numbers that a program reports, each validated at its own location."""
        numbers: dict[str, object] = {}
        if "metric" in data:
            numbers["metric"] = self._entry(MetricSource, data["metric"], (*path, "metric"))
        if "metrics" in data:
            metrics, metrics_path = self.mapping(data["metrics"], (*path, "metrics")), (*path, "metrics")
            valid_names = [key for key in metrics if self.is_valid_name(key, (*metrics_path, key))]
            sources = {key: self._entry(MetricSource, metrics[key], (*metrics_path, key)) for key in valid_names}
            numbers["metrics"] = {key: metric for key, metric in sources.items() if metric}
        if "check" in data:
            entries, check_path = data["check"], (*path, "check")
            checks = (
                [self._entry(Check, entry, (*check_path, index)) for index, entry in enumerate(entries)]
                if isinstance(entries, list)
                else [self._entry(Check, entries, check_path)]
            )
            numbers["check"] = tuple(filter(None, checks))
        return numbers

    def _program_folder(self, files: str | None, path: Key) -> str | None:
        """Return a program's folder relative to the matrix; it was written relative to the file that names it."""
        files_path = (*path, "files") if files else path
        home, matrix_folder = self.source.file.parent, self.source.where(files_path, key=True).file.parent
        return files if matrix_folder == home else os.path.relpath(matrix_folder / (files or "."), home)

    def _options(self, written: Mapping[str, Data], path: Key) -> dict[str, bench_options.OptionValue]:
        checked = {name: option for key in written for name, option in self._option(key, written[key], path).items()}
        for rule in bench_options.broken_rules(checked) if len(checked) == len(written) else ():
            option = next(key for key in rule.options if key in checked)
            self.wrong((*path, option), rule.message, f"change {' or '.join(rule.options)}", key=True)
        return checked

    def _option(self, key: str, value: Data, path: Key) -> dict[str, bench_options.OptionValue]:
        try:
            return {key: bench_options.convert(key, value)}
        except bench_options.UnknownOptionError:
            known_keys = [*bench_options.options(), *_WORKLOAD_KEYS]
            self.wrong((*path, key), f"unknown key {key!r}", suggestion(key, known_keys), key=True)
        except bench_options.WrongValueError as error:
            self.wrong((*path, key), f"{key}: {error}", error.remedy)
        return {}

    def _design(self, name: str, data: dict[str, Data], path: Key) -> Design | None:
        choices = [key for key in ("environments", "factors", "cumulative") if data.get(key)]
        if len(choices) > 1:
            message = f"a design takes either `{choices[0]}` or `{choices[1]}`, not both"
            self.wrong((*path, choices[1]), message, "write two designs", key=True)
            return None
        slurm = self._entry(Slurm, data.get("slurm"), (*path, "slurm")) or Slurm.model_validate({})
        own_data = {key: value for key, value in data.items() if key != "slurm"}
        design = self.validate(Design, own_data, path, name=name, slurm=slurm)
        # With max_blocks alone, a short run without a verdict is intended.
        if design and "min_blocks" in data and (reason := unreachable_verdict_reason(design)):
            self.wrong((*path, "min_blocks"), f"min_blocks: {reason}", "lower min_blocks, or raise max_blocks")
        return design
