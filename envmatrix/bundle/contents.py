"""What goes into a pack: all that is needed to repeat a run elsewhere, and to compare with it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from envmatrix.build.cache import Cache
from envmatrix.build.file_listing import listing_file
from envmatrix.bundle.archive import Content, entry_of
from envmatrix.bundle.images import image_name
from envmatrix.bundle.manifest import Entry, Manifest
from envmatrix.bundle.programs import FOLDER
from envmatrix.engines.base import HasBills
from envmatrix.errors import InputError
from envmatrix.report.catalog import report_files
from envmatrix.results import Run, RunFolder
from envmatrix.system.progress import silent
from envmatrix.system.regular_files import packed
from envmatrix.system.shared_files import exists
from envmatrix.trials.experiment import Experiment
from envmatrix.version import __version__

#: Folders of a checkout that hold definitions and bills of material, as far as they are there.
_DEFINITIONS = ("containers",)
_LARGEST_DEFINITION = 16 * 2**20
_SKIPPED = frozenset({".sif", ".img", ".sqsh", ".tar", ".pyc"})


def collect(folder: RunFolder, run: Run, matrix: Path, bench: Path) -> dict[str, Content]:
    """Return the files of a pack by name: results, matrix, locks and definitions, SBOMs, and bench/ itself."""
    if not (exists(folder.trials_file) or exists(packed(folder.trials_file))):
        raise InputError(f"run {run.name} has no trials yet", remedy=f"`envmatrix resume {run.name}`")
    if run.sides:
        raise InputError(
            f"run {run.name} compares two matrices, and a pack holds one",
            remedy="pack a run of one of them; its folder, copied as it is, holds both",
        )
    found: dict[str, Content] = {"matrix.yaml": folder.names.matrix(folder.matrix()).encode()}
    for name in ("run.json", "history.jsonl", "trials.jsonl", "looks.jsonl", *report_files(silent)):
        for file in (folder.path / name, packed(folder.path / name)):
            if exists(file):
                found[f"run/{file.name}"] = file
                break
    found |= _tree(bench, "bench")
    for name in _DEFINITIONS:
        found |= _tree(matrix.resolve().parent / name, name)
    return found


def _tree(folder: Path, name: str) -> dict[str, Content]:
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()) if folder.is_dir() else ()
    return {
        f"{name}/{path.relative_to(folder).as_posix()}": path
        for path in files
        if path.suffix not in _SKIPPED and "__pycache__" not in path.parts
        and path.stat().st_size <= _LARGEST_DEFINITION
    }  # fmt: skip


def bills(experiment: Experiment) -> dict[str, Content]:
    """Return the bills of material of the images, from the engines that write them."""
    found: dict[str, Content] = {}
    for (image, engine), prepared in experiment.prepared.items():
        known = experiment.engines[engine]
        if isinstance(known, HasBills) and (path := known.bill_file(prepared)).is_file():
            found[f"sbom/{image}@{engine}.json"] = path
    return found


def listings(experiment: Experiment, cache: Cache) -> dict[str, Content]:
    """Return the listings of the images' files: with them a reproduction says which files differ."""
    digests = {done.facts.get("files_digest") for done in experiment.prepared.values()}
    files = [listing_file(cache, digest) for digest in digests if digest]
    return {f"listings/{file.name}": file for file in files if file.is_file()}


def _entry(name: str, content: Content) -> Entry:
    """Return the entry of a file; of a program's own files it says which can be started."""
    own = isinstance(content, Path) and name.startswith(f"{FOLDER}/")
    return replace(entry_of(content), executable=own and os.access(str(content), os.X_OK))


def make_manifest(
    run: Run, contents: Mapping[str, Content], images: Mapping[str, Path], left: Sequence[str] = ()
) -> Manifest:
    """Make the manifest; an image that is not among the contents is named by its digest alone."""
    files = {name: _entry(name, content) for name, content in contents.items()}
    bits = {}
    for key, path in images.items():
        name = image_name(key, path)
        bits[key] = {"sha256": entry_of(path).sha256, **({"file": name} if name in contents else {})}
    return Manifest(run.name, run.created, __version__, files, bits, tuple(left))
