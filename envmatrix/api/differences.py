"""Differences between two environments: their packages, and the settings that are active inside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import NamedTuple

from envmatrix.api.environment_exec_and_export import open_environment
from envmatrix.api.matrix_and_run_lookup import PathLike, find_run
from envmatrix.errors import InputError, suggestion
from envmatrix.results import Run, RunFolder, Trial
from envmatrix.system.progress import ProgressCallback, silent

#: Last parts of paths whose values differ between any two processes, times or package folders.
_ALWAYS_DIFFERENT = frozenset({
    "BENCH_PROBE", "affinity_after", "arenas", "build", "clocks", "cpu_periods", "executable", "load_1m", "mhz", "path",
    "pid", "power_mw", "processes", "programs", "ranks", "steal_ticks", "stops", "temperature_c", "thread_affinity",
    "throttle", "throttled_periods", "uptime_s", "used_bytes",
})  # fmt: skip
_FILES = ("libraries", "loaded", "preloaded")


class Difference(NamedTuple):
    """One value that differs between two environments; '' if an environment does not have it."""

    path: str
    first: str
    second: str


def diff(
    first: str,
    second: str,
    *,
    engine: str | None = None,
    matrix: PathLike | None = None,
    run: PathLike | None = None,
    results: PathLike = "results",
    progress: ProgressCallback = silent,
) -> tuple[Difference, ...]:
    """Return the differences between two environments: packages, libraries, variables and verified settings.

    With ``run``, compare what that run recorded; otherwise start one process in each environment.
    Raises InputError, EngineError and SkipEnvironmentError like ``export``.
    """
    if run is not None and (matrix is not None or engine is not None):
        raise InputError("a recorded run has its own matrix and engines", remedy="leave out --matrix and --engine")
    if run is not None:
        return recorded_differences(run, first, run, second, results)
    trees = []
    for name in (first, second):
        session = open_environment(name, engine=engine, matrix=matrix, results=results, progress=progress)
        trees.append(_tree(session.prepared.facts, session.evidence()))
    return tuple(differing(trees[0], trees[1]))


def recorded_differences(
    old: PathLike, first: str, new: PathLike, second: str, results: PathLike = "results"
) -> tuple[Difference, ...]:
    """Return the differences that two runs recorded, between environment ``first`` of one and ``second`` of the other.

    The runs may be the same. Raises InputError if one has no successful trial of its environment.
    """
    old_folder, new_folder = find_run(old, results), find_run(new, results)
    if old_folder.path == new_folder.path:
        old_tree, new_tree = _recorded(old_folder, first, second)
    else:
        [old_tree], [new_tree] = _recorded(old_folder, first), _recorded(new_folder, second)
    return tuple(differing(old_tree, new_tree))


def _recorded(folder: RunFolder, *names: str) -> Iterator[dict[str, object]]:
    """Yield the contents of each environment's image, and the evidence of its last successful trial, as one tree."""
    run = folder.load()
    facts = enumerate(folder.facts(run.plan), 1)
    lines = {trial.environment: number for number, trial in facts if trial.outcome == "ok"}
    for name in names:
        if name not in lines:
            planned = {arm.environment for arm in run.arms}
            problem = "has no successful trial of" if name in planned else "has no environment"
            remedy = suggestion(name, lines.keys() | planned)
            raise InputError(f"run {folder.path.name} {problem} {name!r}", remedy=remedy)
        yield _recorded_tree(run, name, folder.trial_in_line(lines[name]))


def _recorded_tree(run: Run, name: str, trial: Trial) -> dict[str, object]:
    environment = run.environments.get(next(arm.runs for arm in run.arms if arm.environment == name))
    facts = run.images.get(f"{environment.image_key}@{trial.engine}", {}) if environment else {}
    return _tree(facts, (trial.document or {}).get("evidence"))


def _tree(facts: Mapping[str, str], evidence: object) -> dict[str, object]:
    """Return facts about an image, and the evidence of one process in it, as one tree."""
    packages = {name.removeprefix("package "): version for name, version in facts.items() if " " in name}
    return {"image": packages, **(evidence if isinstance(evidence, Mapping) else {})}


def differing(first: object, second: object, path: str = "") -> Iterator[Difference]:
    """Yield each difference between two trees, and its path below ``path``."""
    if isinstance(first, Mapping) or isinstance(second, Mapping):
        first_values, second_values = (value if isinstance(value, Mapping) else {} for value in (first, second))
        for key in sorted({*first_values, *second_values} - _ALWAYS_DIFFERENT):
            first_value, second_value = _files(key, first_values.get(key)), _files(key, second_values.get(key))
            yield from differing(first_value, second_value, f"{path}.{key}".strip("."))
    elif first != second:
        yield Difference(path, _text(first), _text(second))


def _files(key: str, value: object) -> object:
    """Return files by name only, because their folders differ between any two images."""
    if key not in _FILES or not isinstance(value, (list, Mapping)):
        return value
    return {PurePosixPath(str(file)).name: "loaded" for file in value}


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(_text, value)) if isinstance(value, list) else str(value)
