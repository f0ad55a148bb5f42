"""Order environments by what an atlas knows of them: the faster ones first, those that were slower everywhere last."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from envmatrix.api.places import PathLike
from envmatrix.errors import InputError
from envmatrix.matrix import Design, Matrix
from envmatrix.matrix.model import Workload
from envmatrix.matrix.parse import parse
from envmatrix.matrix.template import MatrixTemplate
from envmatrix.plan.environment import resolve_environment
from envmatrix.report.formatting import join_texts
from envmatrix.results.anonymize import local_anonymizer
from envmatrix.results.atlas import AtlasEntry, read_entries
from envmatrix.stats.meta_analysis.atlas import this_processor, work_digest
from envmatrix.stats.meta_analysis.known_effects import KnownEffect, Situation, known_effects
from envmatrix.system.printable import printable_line
from envmatrix.system.progress import ProgressCallback, silent
from envmatrix.trials.feasibility import resolve_program_folder
from envmatrix.trials.program.files import program_files
from envmatrix.trials.program.variables import pass_available_variables


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


def read_order_atlas(folder: PathLike | None, progress: ProgressCallback) -> OrderAtlas | None:
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
    ranks = {name: effect.rank for name, effect in by_name.items()}
    names = sorted(starter.environments, key=lambda name: ranks.get(name, (0, 0.0)))
    return replace(starter, environments=names, description=text if names != list(starter.environments) else "")


def order_search(
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
    ranked = sorted((name for name in known if known[name].verdict == verdict), key=lambda name: known[name].rank)
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
