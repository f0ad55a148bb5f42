"""The wheelhouse: each wheel stored once by its sha256, fetched with the host's pip."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from envmatrix.build.cache import Cache, disk_errors, file_digest
from envmatrix.build.lockfile import PinnedPackage
from envmatrix.build.python.interpreters import Python
from envmatrix.build.python.pip import ResolveRequest, cached_pip, wrong_hash_error
from envmatrix.durations_and_sizes import as_packages
from envmatrix.errors import EngineError
from envmatrix.system.progress import ProgressCallback

#: Folder of wheels built on this machine, each in a folder of its own.
BUILT_FOLDER = "built"


@dataclass(frozen=True)
class EnvironmentWheels:
    """The wheels of an environment and their files; ``facts`` describes those built from source."""

    pins: tuple[PinnedPackage, ...]
    files: tuple[Path, ...]
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Wheelhouse:
    """Wheels and Debian packages in the cache, by sha256. Nothing is fetched twice."""

    cache: Cache

    def held(self, pin: PinnedPackage) -> Path | None:
        """Return the file of a pinned package; None if it has not been fetched yet."""
        folder = self.cache.root / "packages" / pin.sha256
        try:
            return next(iter(sorted(folder.iterdir())), None)
        except OSError:
            return None

    def add(self, file: Path, pin: PinnedPackage) -> None:
        """Add a fetched file. Raises InputError if its hash differs from the lock."""
        actual_digest = file_digest(file)
        if actual_digest != pin.sha256:
            raise wrong_hash_error(pin, actual_digest)
        folder = self.cache.root / "packages" / pin.sha256
        self.cache.folder(folder, lambda place: file.rename(place / file.name))

    def fill(
        self,
        pins: Sequence[PinnedPackage],
        python: Python,
        index: Sequence[str],
        progress: ProgressCallback,
        sources: Sequence[str] = (),
    ) -> list[Path]:
        """Fetch missing wheels, and source distributions of ``sources``; return the file of each of ``pins``."""
        with self.cache.exclusive_lock("wheelhouse"):
            missing = [pin for pin in pins if self.held(pin) is None]
            if missing:
                names = tuple(map(str, missing))
                listed = ", ".join(names[:4]) + (" ..." if len(names) > 4 else "")
                size = cuda_size_note(missing, self.cache.root)
                progress(f"downloading {as_packages(len(names))} of {missing[0].lock.name}: {listed}{size}")
                self._download(ResolveRequest(names, tuple(index), sources=tuple(sources)), missing, python)
        return list(map(self._require_file, pins))

    def _download(self, request: ResolveRequest, missing: Sequence[PinnedPackage], python: Python) -> None:
        pip = cached_pip(self.cache, python)
        by_digest = {pin.sha256: pin for pin in missing}
        with self.cache.scratch("download") as scratch, disk_errors(scratch):
            folder = scratch / "wheels"
            folder.mkdir()
            pip.download(request, missing, folder)
            for file in sorted(folder.iterdir()):
                pin = by_digest.get(file_digest(file))
                if pin:
                    self.add(file, pin)

    def _require_file(self, pin: PinnedPackage) -> Path:
        file = self.held(pin)
        if file is None:
            raise EngineError(f"pip did not download {pin}", where=pin.lock_file_and_line, remedy="`envmatrix lock`")
        return file


def cuda_size_note(pins: Sequence[PinnedPackage], folder: Path) -> str:
    """Return what a CUDA build of PyTorch takes and the free disk space of ``folder``; '' for other packages."""
    names = {pin.name for pin in pins}
    if "torch" not in names or not any(name.startswith("nvidia-") for name in names):
        return ""
    free_gb = shutil.disk_usage(folder).free / 1e9
    return f" (a CUDA build: about 4 GB, and up to 25 GB of disk while it is built; {free_gb:.0f} GB are free)"


def find_links_folders(cache: Cache, files: Sequence[Path]) -> list[Path]:
    """Hard-link files to the few folders used for --find-links, and return those folders.

    The folders are permanent, because uv keeps an unpacked copy per wheel and folder. Wheels with the same name go to
    different folders. A wheel built on this machine has its own folder, because uv uses the first match for a name.
    """
    folders: list[Path] = []
    with cache.exclusive_lock("shelves"), disk_errors(cache.root):
        for file in files:
            built_folder = file.parent if file.is_relative_to(cache.root / BUILT_FOLDER) else None
            shelves = (cache.root / "wheelhouse" / str(number) for number in itertools.count())
            shelf = built_folder or next(shelf for shelf in shelves if _link_into(file, shelf))
            folders += [] if shelf in folders else [shelf]
    return folders


def _link_into(file: Path, shelf: Path) -> bool:
    target = shelf / file.name
    if target.exists():
        return target.samefile(file) or file_digest(target) == file.parent.name
    shelf.mkdir(parents=True, exist_ok=True)
    link_or_copy(file, target)
    return True


def link_or_copy(file: Path, target: Path) -> None:
    """Hard-link a file, or copy it if that fails."""
    try:
        target.hardlink_to(file)
    except OSError:
        shutil.copy2(file, target)
