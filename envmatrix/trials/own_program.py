"""The user's own program as a workload: how it is started, and where it finds its files."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path, PurePosixPath

from envmatrix.engines.base import Engine, Job
from envmatrix.errors import EnvmatrixError
from envmatrix.matrix.metrics import MetricSource, ReportedNumber
from envmatrix.matrix.model import Workload

#: What a trial's process writes into its work folder (docs/record.md).
RECORD = "record.json"
#: Files up to this size (bytes) are copied into the work folder, larger ones linked (docs/workloads.md).
MAX_COPIED_BYTES = 2**20
#: So many folders above the program's own appear around it, each if it has no more entries than this.
_FOLDERS_ABOVE, _MOST_ENTRIES = 2, 1000
_PYTHONS = {"python", "python3"}


def metric_arguments(workload: Workload) -> list[str]:
    """Return the arguments of ``python -m bench command`` that say where the program's numbers are."""
    (_, main_metric), *further_metrics = workload.sources.items()
    further_texts = [json.dumps({"name": name, **_source_fields(source)}) for name, source in further_metrics]
    checks = [
        json.dumps({"name": source.label, **_source_fields(source), "tolerance": source.tolerance})
        for source in workload.check
    ]
    return [
        *_metric_options(main_metric),
        *(f"--also={text}" for text in further_texts),
        *(f"--check={text}" for text in checks),
    ]


def _source_fields(source: ReportedNumber) -> dict[str, object]:
    return source.model_dump(exclude_defaults=True, exclude={"name", "tolerance"}) | (
        {"better": _better(source)} if isinstance(source, MetricSource) else {}
    )


def _better(metric: MetricSource) -> str:
    return "lower" if metric.wall else metric.better


def _metric_options(metric: MetricSource) -> list[str]:
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
    program, *arguments = workload.command
    argv = [python if program in _PYTHONS else program, *arguments]
    options = [f"--prepare={word}" for word in workload.prepare]
    options += [f"--gate={gate}"] if gate else []
    return (f"{bench}/__main__.py", "command", f"--record={record}", *options, *metric_arguments(workload), "--", *argv)


def metric_file(workload: Workload) -> str:
    """Return the path, in the program's folder, of the file that it writes its numbers to; '' when there is none."""
    path = PurePosixPath(workload.json_file)
    return "" if not path.parts or path.is_absolute() or ".." in path.parts else str(path)


def place_program_files(engine: Engine, job: Job, files: Path, inner_path: str, metric: str = "") -> Job:
    """Make the program's folder appear for a job (``link_files``), and return the job that starts there.

    If the engine can, what lies next to the folder and to its parent appears too, so that a program finds ``../data``.
    """
    if not engine.starts_anywhere:
        link_files(job.mounts.work, files, inner_path, metric)
        return job
    *parents, folder_name = files.relative_to(files.anchor).parts[-_FOLDERS_ABOVE - 1 :] or ("root",)
    place, source = job.mounts.work / "around", files
    for _ in parents:
        source = source.parent
    for name, entered in zip([*parents], [*parents[1:], folder_name], strict=True):
        place = place / name
        place.mkdir(parents=True)
        _link_entries(place, source, entered)
        source = source / entered
    place = place / folder_name
    place.mkdir(parents=True)
    link_files(place, files, inner_path, metric)
    return replace(job, folder=place)


def _link_entries(place: Path, folder: Path, excluded: str) -> None:
    """Link what lies in a folder into ``place``; nothing of one that is very large, or cannot be listed."""
    try:
        entries = list(folder.iterdir())
    except OSError:
        return
    if len(entries) <= _MOST_ENTRIES:
        for entry in entries:
            if entry.name != excluded:
                (place / entry.name).symlink_to(entry)


def link_files(work: Path, files: Path, inside: str, metric: str = "") -> None:
    """Make every entry of the program's folder appear in ``work``, where it may also write.

    The folder itself is mounted read-only at ``inside``. Small files are copied, so that a program may write to them
    and the user's own stay as they are; large ones and folders are linked, by their paths inside the environment. An
    old ``metric`` file (or record) is left out: it must be written anew, not read as this trial's.
    """
    try:
        _link_tree(work, files, inside, PurePosixPath(metric).parts)
        (work / RECORD).unlink(missing_ok=True)
    except OSError as error:
        raise EnvmatrixError(f"cannot read the program's folder {files}: {error.strerror}") from error


def _link_tree(work: Path, files: Path, inner_path: str, left_out: tuple[str, ...]) -> None:
    """Lay a folder's entries into ``work``; the folders on the way to what is ``left_out`` are made anew."""
    for entry in files.iterdir():
        target, on_the_way = work / entry.name, left_out[:1] == (entry.name,)
        if on_the_way and entry.is_dir():
            target.mkdir()
            _link_tree(target, entry, f"{inner_path}/{entry.name}", left_out[1:])
        elif on_the_way:
            continue
        elif _is_small(entry):
            shutil.copy2(entry, target)
        else:
            target.symlink_to(f"{inner_path}/{entry.name}")


def _is_small(entry: Path) -> bool:
    if entry.is_symlink() or not entry.is_file() or not os.access(entry, os.R_OK):
        return False
    return entry.stat().st_size <= MAX_COPIED_BYTES
