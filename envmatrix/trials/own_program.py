"""The user's own program as a workload: how it is started, and where it finds its files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path, PurePosixPath

from envmatrix.block.program_folder import lay_out
from envmatrix.engines.base import Engine, Job
from envmatrix.errors import EnvmatrixError
from envmatrix.matrix.metrics import MetricSource, Reported
from envmatrix.matrix.model import Workload

#: So many folders above the program's own appear around it, each if it has no more entries than this.
_ABOVE, _MOST_ENTRIES = 2, 1000
_PYTHONS = {"python", "python3"}


def number_arguments(workload: Workload) -> list[str]:
    """Return the arguments of ``python -m bench command`` that say where the program's numbers are."""
    (_, first), *more = workload.sources.items()
    also = [json.dumps({"name": name, **_source(one)}) for name, one in more]
    checks = [json.dumps({"name": one.label, **_source(one), "tolerance": one.tolerance}) for one in workload.check]
    return [*_metric(first), *(f"--also={text}" for text in also), *(f"--check={text}" for text in checks)]


def _source(one: Reported) -> dict[str, object]:
    return one.model_dump(exclude_defaults=True, exclude={"name", "tolerance"}) | (
        {"better": _better(one)} if isinstance(one, MetricSource) else {}
    )


def _better(metric: MetricSource) -> str:
    return "lower" if metric.wall else metric.better


def _metric(metric: MetricSource) -> list[str]:
    if metric.wall:
        return ["--metric-wall", "--metric-name=value", "--better=lower"]
    if metric.steps:
        return [f"--metric-steps={metric.steps}", f"--metric-warmup={metric.warmup}", "--metric-name=value"]
    better = ["--metric-name=value", f"--better={metric.better}"]
    if metric.regex:
        unit = [f"--metric-unit={metric.unit}"] if metric.unit else []
        return [f"--metric-regex={metric.regex}", *unit, *better]
    file, _, key = (metric.json_file or "").partition(":")
    return ["--metric-json", file, key, *better]


def command_arguments(workload: Workload, record: str, python: str, bench: str, gate: str = "") -> tuple[str, ...]:
    """Return the arguments that run a command workload; ``python`` in it means the environment's own.

    ``gate`` is the folder of the gate at which it waits for its turns, '' where it takes none.
    The benchmark is started by its path: the program's folder, where it runs, may hold a ``bench.py`` too.
    """
    program, *rest = workload.command
    argv = [python if program in _PYTHONS else program, *rest]
    before = [f"--prepare={word}" for word in workload.prepare]
    before += [f"--gate={gate}"] if gate else []
    return (f"{bench}/__main__.py", "command", f"--record={record}", *before, *number_arguments(workload), "--", *argv)


def metric_file(workload: Workload) -> str:
    """Return the path, in the program's folder, of the file that it writes its numbers to; '' when there is none."""
    path = PurePosixPath(workload.json_file)
    return "" if not path.parts or path.is_absolute() or ".." in path.parts else str(path)


def with_files(engine: Engine, job: Job, files: Path, inside: str, metric: str = "") -> Job:
    """Make the program's folder appear for a job (``link_files``), and return the job that starts there.

    If the engine can, what lies next to the folder and to its parent appears too, so that a program finds ``../data``.
    """
    if not engine.starts_anywhere:
        link_files(job.mounts.work, files, inside, metric)
        return job
    *above, own = files.relative_to(files.anchor).parts[-_ABOVE - 1 :] or ("root",)
    place, source = job.mounts.work / "around", files
    for _ in above:
        source = source.parent
    for name, entered in zip([*above], [*above[1:], own], strict=True):
        place = place / name
        place.mkdir(parents=True)
        _link_entries(place, source, entered)
        source = source / entered
    place = place / own
    place.mkdir(parents=True)
    link_files(place, files, inside, metric)
    return replace(job, folder=place)


def _link_entries(place: Path, folder: Path, but: str) -> None:
    """Link what lies in a folder into ``place``; nothing of one that is very large, or cannot be listed."""
    try:
        entries = list(folder.iterdir())
    except OSError:
        return
    if len(entries) <= _MOST_ENTRIES:
        for entry in entries:
            if entry.name != but:
                (place / entry.name).symlink_to(entry)


def link_files(work: Path, files: Path, inside: str, metric: str = "") -> None:
    """Make every entry of the program's folder appear in ``work`` (``block.program_folder``)."""
    try:
        lay_out(work, files, inside, metric)
    except OSError as error:
        raise EnvmatrixError(f"the program's folder {files} cannot be read: {error.strerror}") from error
