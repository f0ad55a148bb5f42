"""Data sets: created or downloaded on the host before the first trial, by the benchmark's own code."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from envmatrix.errors import EnvmatrixError
from envmatrix.matrix.model import Workload
from envmatrix.system import project
from envmatrix.system.process import run
from envmatrix.system.progress import ProgressCallback

#: Time limit for the download of a data set over a slow link (seconds).
_DOWNLOAD_LIMIT_S = 1800.0


def data_folder() -> Path:
    """Return the folder of all data sets, in the cache."""
    return project.cache_folder() / "data"


def prepare_data_sets(workloads: Iterable[Workload], bench: Path, progress: ProgressCallback) -> dict[str | None, str]:
    """Make the data sets of built-in workloads available; return requested name (None: the default) -> available name.

    Containers have no network, so this runs on the host. `python -m bench data` needs only the standard library, so the
    host's own Python runs it.
    """
    data_folder().mkdir(parents=True, exist_ok=True)
    requested_names = {_requested_name(workload) for workload in workloads if not workload.command}
    return {name: _prepare_data_set(bench, name, progress) for name in sorted(requested_names, key=str)}


def _prepare_data_set(bench: Path, name: str | None, progress: ProgressCallback) -> str:
    argv = [sys.executable, "-m", "bench", "data", f"--data-dir={data_folder()}", *([f"--data={name}"] if name else [])]
    finished = run(argv, cwd=bench.parent, limit_s=_DOWNLOAD_LIMIT_S)
    lines = finished.stdout.strip().splitlines()
    if not finished.exit.ok or not lines:
        raise EnvmatrixError(f"the data set could not be prepared: {finished.last_words(3)}")
    report = json.loads(lines[-1])
    if report["stand_in"] and report["name"] != name:
        progress(f"data: {report['name']}, generated; the real data set is not available ({report.get('reason')})")
    return str(report["name"])


def pin_data_set(workload: Workload, names: Mapping[str | None, str]) -> Workload:
    """Return a workload with the available data set, so that a resumed run reads the same one."""
    if workload.command:
        return workload
    return workload.model_copy(update={"options": {**workload.options, "data": names[_requested_name(workload)]}})


def _requested_name(workload: Workload) -> str | None:
    name = workload.options.get("data")
    return None if name is None else str(name)
