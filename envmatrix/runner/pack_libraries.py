"""The preloaded libraries of a pack: the packages that its locks pin, so that `reproduce` needs no network for them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from envmatrix.build.libraries import library_pins
from envmatrix.build.lockfile import PinnedPackage
from envmatrix.build.locks import Locks
from envmatrix.build.wheelhouse import Wheelhouse
from envmatrix.errors import EnvmatrixError
from envmatrix.results import Run
from envmatrix.runner.pack_archive import Content
from envmatrix.system.progress import ProgressCallback

FOLDER = "libraries"


def library_contents(run: Run, locks: Locks, progress: ProgressCallback) -> dict[str, Content]:
    """Return the packages with the libraries that a run preloads, as libraries/SHA256/FILE."""
    house = Wheelhouse(locks.cache)
    contents: dict[str, Content] = {}
    for key, pins in _needed_pins(run, locks, progress):
        files = {pin.sha256: file for pin in pins if (file := house.held(pin))}
        if len(files) < len(pins) or not pins:
            progress(f"library {key} is not packed: this machine uses a copy that no lock pins")
        contents |= {f"{FOLDER}/{digest}/{file.name}": file for digest, file in files.items()}
    return contents


def _needed_pins(run: Run, locks: Locks, progress: ProgressCallback) -> Iterator[tuple[str, list[PinnedPackage]]]:
    wanted = {key for environment in run.environments.values() for key, _ in environment.preload}
    for library in run.libraries or ():
        if library.key in wanted:
            try:
                yield library.key, library_pins(library, locks, progress)
            except EnvmatrixError as error:
                progress(f"library {library.key}: {error.message}")
                yield library.key, []


def add_packed_libraries(folder: Path, house: Wheelhouse) -> None:
    """Add the packages of a pack unpacked into ``folder`` to the wheelhouse, which verifies their digests."""
    for file in sorted((folder / FOLDER).glob("*/*")):
        pin = PinnedPackage(file.name, "packed", file.parent.name)
        if house.held(pin) is None:
            with house.cache.scratch("pack") as scratch:
                house.add(Path(shutil.copy2(file, scratch)), pin, file)
