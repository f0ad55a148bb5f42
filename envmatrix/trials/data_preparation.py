"""Data sets: created or downloaded on the host before the first trial, by the benchmark's own code."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from envmatrix.errors import EnvmatrixError
from envmatrix.matrix.model import Workload
from envmatrix.system import resource_paths
from envmatrix.system.process import run
from envmatrix.system.progress import ProgressCallback

#: Time limit for the download of a data set over a slow link (seconds).
_DOWNLOAD_LIMIT_S = 1800.0


def data_folder() -> Path:
    """Return the folder of all data sets, in the cache."""
    return resource_paths.cache_folder() / "data"


def prepare_data_sets(
    workloads: Mapping[str, Workload], bench: Path, progress: ProgressCallback
) -> dict[str, Workload]:
    """Make the data sets of built-in workloads available; return the workloads with the data sets that are available.

    So a resumed run reads the same data. Containers have no network, so this runs on the host. `python -m bench data`
    needs only the standard library, so the host's own Python runs it.
    """
    data_folder().mkdir(parents=True, exist_ok=True)
    built_in = {key: workload for key, workload in workloads.items() if not workload.command}
    requested = {key: workload.options.get("data") for key, workload in built_in.items()}
    names = sorted(dict.fromkeys(requested.values()), key=str)
    available = {name: _prepare_data_set(bench, name, progress) for name in names}
    return dict(workloads) | {
        key: workload.model_copy(update={"options": {**workload.options, "data": available[requested[key]]}})
        for key, workload in built_in.items()
    }


def _prepare_data_set(bench: Path, name: object, progress: ProgressCallback) -> str:
    argv = [sys.executable, "-m", "bench", "data", f"--data-dir={data_folder()}", *([f"--data={name}"] if name else [])]
    finished = run(argv, cwd=bench.parent, limit_s=_DOWNLOAD_LIMIT_S)
    lines = finished.stdout.strip().splitlines()
    if not finished.exit.ok or not lines:
        raise EnvmatrixError(f"the data set could not be prepared: {finished.last_words(3)}")
    report = json.loads(lines[-1])
    if report["stand_in"] and report["name"] != name:
        progress(f"data: {report['name']}, generated; the real data set is not available ({report.get('reason')})")
    return str(report["name"])
