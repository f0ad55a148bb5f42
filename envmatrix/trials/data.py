"""Data sets: created or downloaded on the host before the first trial, by the benchmark's own code."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from envmatrix.errors import EnvmatrixError
from envmatrix.matrix.model import Workload
from envmatrix.system.process import run
from envmatrix.system.progress import ProgressCallback

#: Time limit for the download of a data set over a slow link (seconds).
_DOWNLOAD_LIMIT_S = 1800.0


def prepare_data_sets(
    bench: Path, folder: Path, requested_names: Iterable[str | None], progress: ProgressCallback
) -> dict[str | None, str]:
    """Put data sets into ``folder`` and return requested name (None: the default) -> name of the available one.

    Containers have no network, so this runs on the host. `python -m bench data` needs only the standard library, so the
    host's own Python runs it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    return {name: _prepare_data_set(bench, folder, name, progress) for name in sorted(set(requested_names), key=str)}


def _prepare_data_set(bench: Path, folder: Path, name: str | None, progress: ProgressCallback) -> str:
    argv = [sys.executable, "-m", "bench", "data", f"--data-dir={folder}", *([f"--data={name}"] if name else [])]
    finished = run(argv, cwd=bench.parent, limit_s=_DOWNLOAD_LIMIT_S)
    lines = finished.stdout.strip().splitlines()
    if not finished.exit.ok or not lines:
        raise EnvmatrixError(f"the data set could not be prepared: {finished.last_words(3)}")
    report = json.loads(lines[-1])
    if report["stand_in"] and report["name"] != name:
        progress(f"data: {report['name']}, generated; the real data set is not available ({report.get('reason')})")
    return str(report["name"])


def data_set_name(workload: Workload) -> str | None:
    """Return the name of the data set that a workload requests; None: the default one."""
    name = workload.options.get("data")
    return None if name is None else str(name)


def pin_data_set(workload: Workload, names: Mapping[str | None, str]) -> Workload:
    """Return a workload with the available data set, so that a resumed run reads the same one."""
    if workload.command:
        return workload
    return workload.model_copy(update={"options": {**workload.options, "data": names[data_set_name(workload)]}})
