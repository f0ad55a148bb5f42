"""The user's own program as a workload: its command, and the placement of its files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath

from envmatrix.block.program_folder import link_program_files
from envmatrix.block.program_overlay import make_overlay, overlay_root_or_reason
from envmatrix.engines.base import Engine, Job
from envmatrix.errors import EnvmatrixError
from envmatrix.matrix.metric_sources import MetricSource, ReportedNumber
from envmatrix.matrix.model import Workload
from envmatrix.system.atomic_files import full_disk_errors
from envmatrix.system.progress import ProgressCallback
from envmatrix.trials import orphans

#: How many folders above the program's own appear around it, and the most entries that each may have.
_FOLDERS_ABOVE, _MOST_ENTRIES = 2, 1000
_PYTHONS = {"python", "python3"}


def metric_arguments(workload: Workload) -> list[str]:
    """Return the arguments of ``python -m bench command`` that name the sources of the program's numbers."""
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


def python_arguments(workload: Workload, record: str, python: str, bench: str, gate: str = "") -> tuple[str, ...]:
    """Return the arguments that run a command workload; ``python`` in it means the environment's own.

    ``gate`` is the folder of the gate at which it waits for its turns, '' if it is not interleaved. The benchmark is
    started by its path, as the program's folder may contain a ``bench.py`` too, and without ``site``, which it does not
    need.
    """
    program, *arguments = workload.command
    argv = [python if program in _PYTHONS else program, *arguments]
    options = [f"--prepare={word}" for word in workload.prepare]
    options += [f"--gate={gate}"] if gate else []
    bench_argv = ("-S", f"{bench}/__main__.py", "command", f"--record={record}")
    return (*bench_argv, *options, *metric_arguments(workload), "--", *argv)


def metric_file(workload: Workload) -> str:
    """Return the path, in the program's folder, of the file that it writes its numbers to; '' if there is none."""
    path = PurePosixPath(workload.json_file)
    return "" if not path.parts or path.is_absolute() or ".." in path.parts else str(path)


def place_program_files(engine: Engine, job: Job, files: Path, inner_path: str, metric: str = "") -> Job:
    """Make the program's folder appear for a job, and return the job that starts there.

    If the engine can, this is the folder itself under an overlay, otherwise one with the same entries (``link_files``).
    Then entries next to the folder and to its parent appear too, so that a program finds ``../data``.
    """
    if not engine.starts_anywhere:
        link_files(job.mounts.work, files, inner_path, metric)
        return job
    overlay = make_overlay(files, job.mounts.work, metric)
    if overlay:
        return replace(job, folder=files, overlay=overlay)
    *folders_above, _ = chain = [files, *files.parents][_FOLDERS_ABOVE::-1]
    place = job.mounts.work / "around"
    for source, entered in zip(folders_above, chain[1:], strict=True):
        place = place / (source.name or "root")
        place.mkdir(parents=True)
        _link_entries(place, source, entered.name)
    place = place / (files.name or "root")
    place.mkdir(parents=True)
    link_files(place, files, inner_path, metric)
    return replace(job, folder=place)


def report_linked_folders(workloads: Iterable[Workload], engines: Iterable[Engine], progress: ProgressCallback) -> None:
    """Report each program whose trials get a folder of links, with the reason, or which lies outside its folder."""
    if not any(engine.starts_anywhere for engine in engines):
        return
    place = orphans.work_folder()
    place.mkdir(parents=True, exist_ok=True)
    for workload in workloads:
        if not workload.command or not workload.files:
            continue
        root, reason = overlay_root_or_reason(Path(workload.files), place)
        if reason:
            progress(
                f"note: trials of {workload.name} run in a folder of links to your files: {reason}. If the program "
                "writes to its folders or to files over 1 MiB, it changes yours"
            )
        covered = root or workload.files
        for script in scripts_outside(workload.command, Path(covered)):
            progress(
                f"note: {script} is outside {covered}, the folder that each trial gets anew. If it writes next to "
                "itself, later trials find that: to avoid it, type the command in its folder"
            )


def scripts_outside(command: Iterable[str], folder: Path) -> Iterator[str]:
    """Yield the scripts of a command with an absolute path outside a folder."""
    for word in command:
        script = Path(word)
        is_script = script.is_absolute() and script.suffix in (".py", ".sh") and script.is_file()
        if is_script and not script.resolve().is_relative_to(folder.resolve()):
            yield word


def _link_entries(place: Path, folder: Path, excluded: str) -> None:
    """Link the entries of a folder into ``place``, unless it is very large or cannot be listed."""
    try:
        entries = list(folder.iterdir())
    except OSError:
        return
    if len(entries) <= _MOST_ENTRIES:
        for entry in entries:
            if entry.name != excluded:
                (place / entry.name).symlink_to(entry)


def link_files(work: Path, files: Path, inside: str, metric: str = "") -> None:
    """Make every entry of the program's folder appear in ``work`` (``block.program_folder``)."""
    try:
        with full_disk_errors(work):
            link_program_files(work, files, inside, metric)
    except OSError as error:
        raise EnvmatrixError(f"cannot read the program's folder {files}: {error.strerror}") from error
