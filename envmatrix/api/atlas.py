"""Atlases: the runs of many machines in one folder, and what they show together."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from envmatrix.api.places import PathLike, find_run, load_matrix
from envmatrix.engines.catalog import DEFAULT as DEFAULT_ENGINE
from envmatrix.errors import EnvmatrixError, InputError, StoreError, Where
from envmatrix.results import RunFolder
from envmatrix.results.atlas import AtlasEntry, read_entries, write_entry
from envmatrix.stats.analysis import estimate
from envmatrix.stats.measurements import read_measurements
from envmatrix.stats.meta_analysis.atlas import (
    Advice,
    Atlas,
    Prediction,
    atlas_entry,
    predict,
    read_atlas,
    this_processor,
)
from envmatrix.stats.steady_state.effect import steady_effects
from envmatrix.system.progress import silent

#: Most environments that the next command measures.
_MOST_NEXT = 4


def add_to_atlas(
    runs: Sequence[PathLike], folder: PathLike = "atlas", *, results: PathLike = "results", key: Path | None = None
) -> list[tuple[Path, bool]]:
    """Add runs to the atlas in ``folder``, anonymized, and return the file of each and whether it is new.

    Runs are names in ``results`` or folders (none: the newest run). All are read before the first is written. An SSH
    ``key`` signs them. Raises InputError if there is no such run, it has no interval yet or the key cannot sign, and
    StoreError if a run cannot be read or is still being measured, or if the atlas cannot be written.
    """
    folders = [find_run(run, results) for run in runs] or [find_run(None, results)]
    entries = [(_entry(run), run.names) for run in folders]
    return [write_entry(Path(folder), entry, names, key) for entry, names in entries]


def _entry(folder: RunFolder) -> AtlasEntry:
    if folder.is_written():
        remedy = "add it when it has ended"
        raise StoreError("this run is still being measured", where=Where(folder.path), remedy=remedy)
    run = folder.load()
    measured = read_measurements(folder, run.plan)
    analysis = estimate(run.plan, measured, workloads=run.workloads, environments=run.environments, metrics=())
    return atlas_entry(run, measured, analysis, steady_effects(run.plan, measured, analysis))


def read_atlas_folder(folder: PathLike = "atlas", *, signers: PathLike | None = None) -> Atlas:
    """Return what the runs of the atlas in ``folder`` show together.

    ``signers`` is a file of allowed signers (ssh-keygen): who signed is told for each file, and files of other signers
    are left out. Raises InputError if there is no such file, or no run in the folder.
    """
    if signers is not None and not Path(signers).is_file():
        raise InputError(f"no such file: {signers}", remedy="--signers FILE lists the keys that you trust")
    files = read_entries(Path(folder), None if signers is None else Path(signers))
    if not files.entries and not files.errors:
        what = f"no runs in the atlas {folder}" if Path(folder).is_dir() else f"no such folder: {folder}"
        raise InputError(what, remedy=f"add a run: envmatrix atlas add RUN --to {folder}")
    atlas = read_atlas(files.entries)
    return replace(atlas, unreadable=tuple(map(str, files.errors)), signatures=files.signatures)


def advise(folder: PathLike = "atlas", *, signers: PathLike | None = None) -> Advice:
    """Return what the atlas in ``folder`` predicts for this machine. Raises InputError as ``read_atlas_folder``."""
    atlas, machine = read_atlas_folder(folder, signers=signers), this_processor()
    predictions = predict(atlas, machine)
    known = any(effect.machine == machine for row in atlas.rows for effect in row.machines)
    return Advice(machine, known, predictions, _next_command(predictions), atlas.unreadable)


def _next_command(predictions: Sequence[Prediction]) -> str:
    """Return the command that measures the best predictions here, those of one workload; '' if there are none."""
    here = [prediction for prediction in predictions if not prediction.measured] or list(predictions)
    if not here:
        return ""
    first = here[0]
    names = [
        prediction.environment for prediction in here if prediction.workload == first.workload and prediction.is_faster
    ][:_MOST_NEXT]
    words = ["envmatrix", "bench", "--environments", ",".join(dict.fromkeys([first.environment, *names]))]
    words += ["--engine", first.engine] if first.engine != DEFAULT_ENGINE else []
    with suppress(EnvmatrixError):
        if first.workload in load_matrix(None, silent).workloads:
            return shlex.join([*words, "--workloads", first.workload, "default"])
    return f"{shlex.join(words)} -- PROGRAM"
