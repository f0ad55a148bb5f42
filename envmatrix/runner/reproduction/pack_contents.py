"""The contents of a pack: everything needed to repeat a run on another machine and compare the results.

Images come with what starts them without a build; preloaded libraries with their packages and the locks that pin them,
so that `reproduce` needs no network.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from envmatrix.build.cache import Cache, file_stamp
from envmatrix.build.images.definitions import LIBRARIES
from envmatrix.build.images.file_listing import listing_file
from envmatrix.build.libraries import LibraryBuilder
from envmatrix.build.lockfile import Lock, PinnedPackage, Section, read_lock
from envmatrix.build.package_locks import Locks
from envmatrix.build.paths import BuildPaths
from envmatrix.build.python.interpreters import find_python_cached
from envmatrix.build.python.wheelhouse import Wheelhouse
from envmatrix.engines.base import Engine, HasBills, HasImageFiles, Prepared
from envmatrix.engines.build_record import prepared_fields, prepared_from
from envmatrix.engines.catalog import ENGINES, find_engine
from envmatrix.errors import EnvmatrixError, InputError, StoreError, Where
from envmatrix.plan.environment import Image, Library
from envmatrix.report.catalog import report_files
from envmatrix.results import Run, RunFolder
from envmatrix.runner.reproduction.pack_archive import Content, Entry, Manifest, make_entry
from envmatrix.runner.reproduction.pack_programs import PROGRAM_FOLDER
from envmatrix.system.progress import ProgressCallback, silent
from envmatrix.system.reading_with_retries import exists
from envmatrix.system.regular_files import packed, read_bytes
from envmatrix.trials.experiment_setup import Experiment
from envmatrix.trials.images import Images
from envmatrix.version import __version__

#: The folder of libraries in a pack.
FOLDER = "libraries"
#: What is left out of the definitions of containers, locks and SBOMs.
_MAX_DEFINITION_BYTES = 16 * 2**20
_SKIPPED_SUFFIXES = frozenset({".sif", ".img", ".sqsh", ".tar", ".pyc"})


def single_file_images(engines: Mapping[str, Engine], prepared: Images) -> dict[str, Path]:
    """Return the images that are single files (SIF, squashfs) as 'image@engine' -> file."""
    files = {}
    for (image, name), image_prepared in prepared.items():
        engine = engines[name]
        if isinstance(engine, HasImageFiles) and (file := engine.image_file(image_prepared)).is_file():
            files[f"{image}@{name}"] = file
    return files


def image_name(key: str, path: Path) -> str:
    """Return the name of an image file inside a pack."""
    return f"images/{key.replace('/', '_')}{path.suffix}"


def image_contents(engines: Mapping[str, Engine], prepared: Images) -> dict[str, Content]:
    """Return the image files by name, each with a JSON document that describes how to start it."""
    contents: dict[str, Content] = {}
    for key, path in single_file_images(engines, prepared).items():
        image, _, engine = key.rpartition("@")
        name = image_name(key, path)
        contents[name] = path
        body = prepared_fields(replace(prepared[image, engine], reference=name, stamp=""))
        contents[f"{name}.json"] = (json.dumps(body, indent=1) + "\n").encode()
    return contents


def load_packed_images(manifest: Manifest, folder: Path) -> dict[tuple[str, str], Prepared]:
    """Return the images of a pack unpacked into ``folder``, ready to start."""
    images = {}
    for key, bits in manifest.images.items():
        image, _, engine = key.rpartition("@")
        if "file" in bits and _starts_packed(engine):
            images[image, engine] = _load_packed_image(folder, bits["file"], image, engine)
    return images


def _starts_packed(name: str) -> bool:
    engine = find_engine(name) if name in ENGINES.names() else None
    return isinstance(engine, HasImageFiles) and engine.has_portable_images


def _load_packed_image(folder: Path, name: str, image: str, engine: str) -> Prepared:
    file = folder / f"{name}.json"
    try:
        body: object = json.loads(read_bytes(file).decode())
    except (OSError, ValueError, RecursionError):
        body = None
    prepared = prepared_from(body)
    if prepared is None or (prepared.image, prepared.engine) != (image, engine) or prepared.reference != name:
        raise StoreError(
            f"{name} has no start command",
            where=Where(file),
            remedy="build the images on this machine instead: --rebuild",
        )
    path = (folder / name).resolve()
    return replace(prepared, reference=str(path), stamp=file_stamp(path))


def collect_files(folder: RunFolder, run: Run, matrix: Path, places: BuildPaths) -> dict[str, Content]:
    """Return the files of a pack by name: results, matrix, container definitions, locks and bench/."""
    if not (exists(folder.trials_file) or exists(packed(folder.trials_file))):
        raise InputError(f"run {run.name} has no trials yet", remedy=f"`envmatrix resume {run.name}`")
    if run.sides:
        raise InputError(
            f"run {run.name} compares two matrices, and a pack can contain only one",
            remedy="pack a run of one of them, or copy the run's folder, which contains both",
        )
    contents: dict[str, Content] = {"matrix.yaml": folder.names.matrix(folder.matrix()).encode()}
    for name in ("run.json", "history.jsonl", "trials.jsonl", "looks.jsonl", *report_files(silent)):
        for file in (folder.path / name, packed(folder.path / name)):
            if exists(file):
                contents[f"run/{file.name}"] = file
                break
    contents |= _folder_files(places.bench, "bench")
    contents |= _folder_files(matrix.resolve().parent / "containers", "containers")
    return contents | _folder_files(places.locks, "containers/locks")


def _folder_files(folder: Path, name: str) -> dict[str, Content]:
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()) if folder.is_dir() else ()
    return {
        f"{name}/{path.relative_to(folder).as_posix()}": path
        for path in files
        if path.suffix not in _SKIPPED_SUFFIXES
        and "__pycache__" not in path.parts
        and path.stat().st_size <= _MAX_DEFINITION_BYTES
    }


def sbom_contents(experiment: Experiment) -> dict[str, Content]:
    """Return the SBOMs of the images, from the engines that write them."""
    sboms: dict[str, Content] = {}
    for (image, engine), prepared in experiment.prepared.items():
        builder = experiment.engines[engine]
        if isinstance(builder, HasBills) and (path := builder.bill_file(prepared)).is_file():
            sboms[f"sbom/{image}@{engine}.json"] = path
    return sboms


def file_listing_contents(experiment: Experiment, cache: Cache) -> dict[str, Content]:
    """Return the file listings of the images; a reproduction uses them to name the files that differ."""
    digests = {prepared.facts.get("files_digest") for prepared in experiment.prepared.values()}
    files = [listing_file(cache, digest) for digest in digests if digest]
    return {f"listings/{file.name}": file for file in files if file.is_file()}


def _file_entry(name: str, content: Content) -> Entry:
    """Return the manifest entry of a file; files of user programs keep their executable bit."""
    is_own_program = isinstance(content, Path) and name.startswith(f"{PROGRAM_FOLDER}/")
    return replace(make_entry(content), executable=is_own_program and os.access(str(content), os.X_OK))


def make_manifest(
    run: Run, contents: Mapping[str, Content], images: Mapping[str, Path], left_out: Sequence[str] = ()
) -> Manifest:
    """Return the manifest; an image that is not packed is listed with its digest only."""
    files = {name: _file_entry(name, content) for name, content in contents.items()}
    bits = {}
    for key, path in images.items():
        name = image_name(key, path)
        bits[key] = {"sha256": make_entry(path).sha256, **({"file": name} if name in contents else {})}
    return Manifest(run.name, run.created, __version__, files, bits, tuple(left_out))


def library_contents(run: Run, locks: Locks, progress: ProgressCallback) -> tuple[dict[str, Content], list[str]]:
    """Return the packages with the libraries that a run preloads, as libraries/SHA256/FILE, and locks for them.

    Locks are those that the project's own folder lacks. Also return what cannot be packed, each as a sentence.
    """
    wheelhouse, keys = Wheelhouse(locks.cache), {key for env in run.environments.values() for key, _ in env.preload}
    contents: dict[str, Content] = {}
    sections: dict[Path, list[Section]] = {}
    left_out: list[str] = []
    for library in (candidate for candidate in run.libraries or () if candidate.key in keys):
        pinned = _pinned_sections(library, locks, progress)
        pins = [pin for section in pinned.values() for pin in section.packages]
        files = {pin.sha256: file for pin in pins if (file := wheelhouse.held(pin))}
        if len(files) < len(pins) or not pins:
            left_out.append(f"library {library.key} is not packed: this machine uses a copy that no lock pins")
            continue
        contents |= {f"{FOLDER}/{digest}/{file.name}": file for digest, file in files.items()}
        for path, section in pinned.items():
            lock = read_lock(path)
            if not lock or section not in lock.sections:
                sections.setdefault(path, []).append(section)
    contents |= {f"containers/locks/{path.name}": _lock_with(path, more) for path, more in sections.items()}
    return contents, left_out


def _pinned_sections(library: Library, locks: Locks, progress: ProgressCallback) -> Mapping[Path, Section]:
    """Return a library's sections by the committed lock that each belongs to, even if it is in the cache; {}: none."""
    python = find_python_cached(locks.cache, None)
    try:
        sections = locks.library_locks(library, python)
        return {
            locks.library_debian_file() if _is_debian(one) else locks.library_wheels_file(python): one
            for one in sections
        }
    except EnvmatrixError as error:
        progress(f"library {library.key}: {error.message}")
        return {}


def _is_debian(section: Section) -> bool:
    return any(pin.is_debian for pin in section.packages)


def _lock_with(path: Path, sections: list[Section]) -> bytes:
    """Return the text of a committed lock with these sections in place of its own for the same libraries."""
    lock, names = read_lock(path), {section.name for section in sections}
    others = [section for section in (lock.sections if lock else ()) if section.name not in names]
    return Lock(path, (*others, *sections)).text().encode()


def add_pack_to_wheelhouse(folder: Path, house: Wheelhouse) -> None:
    """Add the packages of a pack unpacked into ``folder`` to the wheelhouse, which verifies their digests."""
    for file in sorted((folder / FOLDER).glob("*/*")):
        pin = PinnedPackage(file.name, "packed", file.parent.name, lock=file)
        if house.held(pin) is None:
            with house.cache.scratch("pack") as scratch:
                house.add(Path(shutil.copy2(file, scratch)), pin)


def mount_libraries(prepared: Prepared, libraries: Iterable[Library], locks: Locks) -> Prepared:
    """Return a packed image with the libraries that were mounted into it mounted from this machine's folders."""
    mounted = [library for library in libraries if f"{LIBRARIES}/{library.key}" in prepared.mounted]
    if not mounted:
        return prepared
    image = Image(prepared.image)
    built = LibraryBuilder(locks, find_python_cached(locks.cache, None)).build(mounted, image)
    return replace(
        prepared,
        libraries={key: inside for key, inside in prepared.libraries.items() if key in built.folders},
        mounted={f"{LIBRARIES}/{key}": folder for key, folder in built.folders.items()},
        missing={**prepared.missing, **built.missing},
    )
