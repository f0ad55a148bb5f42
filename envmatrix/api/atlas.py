"""Atlases: the runs of many machines in one folder, what they show together, and the order that they give environments.

In that order, faster environments are first, and those that were slower everywhere last.
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from envmatrix.api.matrix_and_run_lookup import PathLike, find_run, load_matrix
from envmatrix.engines.catalog import DEFAULT as DEFAULT_ENGINE
from envmatrix.errors import EnvmatrixError, InputError, StoreError, Where
from envmatrix.matrix import Design, Matrix
from envmatrix.matrix.model import Workload
from envmatrix.matrix.parse import parse
from envmatrix.matrix.template import MatrixTemplate
from envmatrix.plan.environment import resolve_environment
from envmatrix.report.formatting import join_texts
from envmatrix.results import RunFolder
from envmatrix.results.anonymize import local_anonymizer
from envmatrix.results.atlas_entries import AtlasEntry, read_entries, write_entry
from envmatrix.stats.effect_estimation import estimate
from envmatrix.stats.measurements import read_measurements
from envmatrix.stats.meta_analysis.atlas import (
    Advice,
    Atlas,
    Prediction,
    atlas_entry,
    predict,
    read_atlas,
    this_processor,
    work_digest,
)
from envmatrix.stats.meta_analysis.effects_for_ordering import KnownEffect, Situation, known_effects
from envmatrix.stats.steady_state.effect import steady_effects
from envmatrix.system.printable import printable_line
from envmatrix.system.progress import ProgressCallback, silent
from envmatrix.trials.feasibility import resolve_program_folder
from envmatrix.trials.user_program.file_digests import program_files
from envmatrix.trials.user_program.passed_variables import pass_available_variables

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


@dataclass(frozen=True)
class OrderAtlas:
    """The runs of an atlas that gives an order, and its folder as it is shown."""

    shown: str
    entries: tuple[AtlasEntry, ...]

    def known(self, matrix: Matrix, design: Design, *, is_elsewhere: bool) -> list[KnownEffect]:
        """Return what is known of changes to a design's baseline; ``is_elsewhere``: not for this processor."""
        folder = Path(matrix.path).resolve().parent
        works = frozenset(_work(matrix.workloads[name], folder) for name in design.workloads)
        levels = resolve_environment(matrix, design.baseline, {}).levels
        processor = None if is_elsewhere else this_processor()
        return known_effects(self.entries, Situation(design.baseline, levels, works, processor))


def read_named_or_local_atlas(folder: PathLike | None, progress: ProgressCallback) -> OrderAtlas | None:
    """Return the atlas in ``folder``, or in ./atlas if that exists (None). A file that cannot be used is a warning.

    Raises InputError if ``folder`` is no atlas.
    """
    files = read_entries(Path(folder or "atlas"))
    for error in files.errors:
        progress(f"warning: left out of the order: {printable_line(error, 400)}")
    if folder is not None and not files.entries and not files.errors:
        raise InputError(f"--atlas: no runs in {folder}", remedy=f"add one: envmatrix atlas add RUN --to {folder}")
    shown = printable_line("./atlas" if folder is None else folder)
    return OrderAtlas(shown, files.entries) if files.entries else None


def order_environments(
    starter: MatrixTemplate, atlas: OrderAtlas | None, progress: ProgressCallback, *, is_elsewhere: bool = False
) -> MatrixTemplate:
    """Return the template of a program's matrix with its environments in the order of an atlas (None: unchanged)."""
    if atlas is None:
        return starter
    matrix = parse(starter.text(), Path("matrix.yaml"))
    design = matrix.designs["default"]
    known = atlas.known(matrix, design, is_elsewhere=is_elsewhere)
    baseline = resolve_environment(matrix, design.baseline, {}).levels
    by_name: dict[str, KnownEffect] = {}
    for name in starter.environments:
        levels = resolve_environment(matrix, name, {}).levels
        changed = {factor: level for factor, level in levels.items() if level != baseline[factor]}
        by_name.update((name, effect) for effect in known if effect.levels == changed)
    text = order_text(by_name, atlas.shown)
    progress(text)
    ranks = {name: effect.fastest_first_key for name, effect in by_name.items()}
    names = sorted(starter.environments, key=lambda name: ranks.get(name, (0, 0.0)))
    return replace(starter, environments=names, description=text if names != list(starter.environments) else "")


def known_search_effects(
    atlas: OrderAtlas | None, matrix: Matrix, design: Design, factors: Mapping[str, Sequence[str]],
    progress: ProgressCallback, *, is_elsewhere: bool,
) -> tuple[KnownEffect, ...]:  # fmt: skip
    """Return what an atlas (None: nothing) knows of the levels that are searched, if it decides anything."""
    if atlas is None:
        return ()
    known = {
        "+".join(f"{factor}={level}" for factor, level in effect.levels.items()): effect
        for effect in atlas.known(matrix, design, is_elsewhere=is_elsewhere)
        if all(level in factors.get(factor, ()) for factor, level in effect.levels.items())
    }
    progress(order_text(known, atlas.shown))
    return tuple(effect for effect in known.values() if effect.verdict)


def order_text(known: Mapping[str, KnownEffect], shown: str) -> str:
    """Describe an order in one line: which environments are first and last, and on how many machines of the atlas."""
    clauses = [*_clauses(known, "faster", "first"), *_clauses(known, "slower", "last")]
    if not clauses:
        return f"order: as usual, because {shown} knows none of these to be faster or slower against this baseline"
    return f"order: {'; '.join(clauses)} (from {shown})"


def _clauses(known: Mapping[str, KnownEffect], verdict: str, place: str) -> Iterator[str]:
    ranked = sorted(
        (name for name in known if known[name].verdict == verdict), key=lambda name: known[name].fastest_first_key
    )
    for where, group in itertools.groupby(ranked, key=lambda name: _where(known[name])):
        names = list(group)
        yield f"{join_texts(names)} {place}, which {'was' if len(names) == 1 else 'were'} {verdict} {where}"
        place = "next" if verdict == "faster" else place


def _where(effect: KnownEffect) -> str:
    return "on this processor" if effect.here else f"on {effect.agreeing} of {effect.machines} machines"


def _work(workload: Workload, folder: Path) -> str:
    """Return the digest of a workload as its run stores it; of a built-in one, whose data set is unknown, none does."""
    placed = pass_available_variables(resolve_program_folder(workload, folder), silent)
    stored = Workload.model_validate(local_anonymizer(folder).run(placed.model_dump(exclude_defaults=True)))
    return work_digest(stored, program_files(placed))
