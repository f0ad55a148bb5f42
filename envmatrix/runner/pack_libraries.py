"""The preloaded libraries of a pack: packages and the locks that pin them, so that `reproduce` needs no network."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from envmatrix.build.images.definitions import LIBRARIES
from envmatrix.build.libraries import LibraryBuilder
from envmatrix.build.lockfile import Lock, PinnedPackage, Section, read_lock
from envmatrix.build.locks import Locks
from envmatrix.build.python.interpreters import cached_python
from envmatrix.build.python.wheelhouse import Wheelhouse
from envmatrix.engines.base import Prepared
from envmatrix.errors import EnvmatrixError
from envmatrix.plan.environment import Image, Library
from envmatrix.results import Run
from envmatrix.runner.pack_archive import Content
from envmatrix.system.progress import ProgressCallback

FOLDER = "libraries"


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
    python = cached_python(locks.cache, None)
    try:
        sections = locks.library_locks(library, python)
        return {locks.debian_file() if _is_debian(one) else locks.wheels_file(python): one for one in sections}
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


def add_packed_libraries(folder: Path, house: Wheelhouse) -> None:
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
    built = LibraryBuilder(locks, cached_python(locks.cache, None)).build(mounted, image)
    return replace(
        prepared,
        libraries={key: inside for key, inside in prepared.libraries.items() if key in built.folders},
        mounted={f"{LIBRARIES}/{key}": folder for key, folder in built.folders.items()},
        missing={**prepared.missing, **built.missing},
    )
