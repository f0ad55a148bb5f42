"""The user's own program as a workload: how it is started, and where it finds its files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envmatrix.errors import EnvmatrixError

#: What a trial's process writes into its work folder (docs/record.md).
RECORD = "record.json"
_PYTHONS = {"python", "python3"}


def metric_arguments(metric: Mapping[str, Any] | None) -> list[str]:
    """Return the arguments of ``python -m bench command`` that say where the metric is; the default is wall time."""
    if metric is None or metric.get("wall"):
        return ["--metric-wall", "--metric-name=value", "--better=lower"]
    better = ["--metric-name=value", f"--better={metric['better']}"]
    if metric.get("regex"):
        return [f"--metric-regex={metric['regex']}", *better]
    file, _, key = str(metric.get("json_file") or "").partition(":")
    return ["--metric-json", file, key, *better]


def command_arguments(workload: Mapping[str, Any], record: str, python: str) -> tuple[str, ...]:
    """Return the arguments that run a command workload; ``python`` in it means the environment's own."""
    program, *rest = workload["command"]
    argv = [python if program in _PYTHONS else program, *rest]
    return ("-m", "bench", "command", f"--record={record}", *metric_arguments(workload["metric"]), "--", *argv)


def metric_file(workload: Mapping[str, Any]) -> str:
    """Return the name of the file that a workload's program writes its metric to, '' when there is none beside it."""
    file, _, _ = str((workload["metric"] or {}).get("json_file") or "").partition(":")
    return "" if "/" in file or file in (".", "..") else file


def link_files(work: Path, files: Path, inside: str, metric: str = "") -> None:
    """Make every entry of the program's folder appear in ``work``, where it may also write.

    The folder itself is mounted read-only at ``inside``; new files that the program writes stay in the trial's own
    work folder. Links are left as links: they point to paths inside the environment. An old ``metric`` file (or
    record) is left out: it must be written anew, not read as this trial's, nor written through to the folder.
    """
    try:
        for entry in files.iterdir():
            if entry.name not in (metric, RECORD):
                (work / entry.name).symlink_to(f"{inside}/{entry.name}")
    except OSError as error:
        raise EnvmatrixError(f"the program's folder {files} cannot be read: {error.strerror}") from error
