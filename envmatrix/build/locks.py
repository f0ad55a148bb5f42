"""Choose the exact packages of an image and its libraries: from the committed lock, or from one made on the fly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from envmatrix.build.cache import Cache, json_digest
from envmatrix.build.debian.packages import Apt, distribution_name
from envmatrix.build.lockfile import Lock, PinnedPackage, Section, find_section, read_lock, request_text
from envmatrix.build.python.builds_of_torch import local_version, resolve_one_build, strangers
from envmatrix.build.python.interpreters import Python, cached_python
from envmatrix.build.python.overlays import BasePython, overlay_pip_command
from envmatrix.build.python.pip import ResolveRequest, is_reachable, pip_command, resolve
from envmatrix.build.python.source_builds import check_python
from envmatrix.build.python.wheelhouse import Wheelhouse
from envmatrix.errors import EngineError, InputError, SkipEnvironmentError, Where
from envmatrix.plan.environment import Image, Library, exists_for
from envmatrix.system.architectures import PACKAGE_NAMES, this_architecture
from envmatrix.system.progress import ProgressCallback

LIBRARIES = "libraries"


def image_request_text(image: Image) -> str:
    """Return an image's pip request as it is written in its lock."""
    sources = (f"--no-binary={build.name}" for build in image.builds)
    return request_text((*image.requirements, *sources, *(f"--extra-index-url {url}" for url in image.index)))


def _check_resolvable_elsewhere(image: Image) -> None:
    """Raise SkipEnvironmentError if another architecture's packages of an image cannot be resolved on this machine."""
    if image.builds:
        raise SkipEnvironmentError("it is built from source, so lock it on a machine with that architecture")
    unreachable = [url for url in image.index if not is_reachable(url)]
    if unreachable:  # without its index, PyPI's CUDA build would replace a build for CPUs
        raise SkipEnvironmentError(f"{', '.join(unreachable)} is unreachable")


def _library_section(library: Library, words: Sequence[str]) -> Section:
    return Section("library", library.key, request_text(words))


def _system_section(packages: Sequence[str], base: str) -> Section:
    system_text = request_text((*packages, f"on {base}"))
    return Section("system", json_digest(system_text)[:12], system_text)


def _pinned(
    wanted: Section, make: Callable[[], tuple[PinnedPackage, ...]], path: Path, note: str, progress: ProgressCallback
) -> Section | None:
    """Return a section with its packages; with a ``note``, one that cannot be resolved is that of the lock ``path``."""
    try:
        return replace(wanted, packages=make())
    except EngineError as error:
        if not note:
            raise
        progress(f"{note}: {wanted.name}: {error.message}")
        return find_section(path, wanted)


@dataclass(frozen=True)
class Locks:
    """Locks of a project: committed ones in ``folder``, others in the cache."""

    folder: Path
    cache: Cache

    def image_file(self, image: Image, python: Python) -> Path:
        """Return the path of an image's committed lock."""
        return self.folder / f"{image.name}.{python.tag}.txt"

    def image_lock(self, image: Image, python: Python, progress: ProgressCallback) -> tuple[Path, Section]:
        """Return the path and section of the lock for ``image``; resolve it now if no lock matches."""
        wanted = Section("image", image.name, image_request_text(image))
        path, section = self._find(
            self.image_file(image, python), wanted, progress, lambda: self._pip(image, python, progress)
        )
        lost = self._unreachable_packages(section, image, python)
        return self._lock_without_indexes(path, image, python, lost, progress) if lost else (path, section)

    def _unreachable_packages(self, section: Section, image: Image, python: Python) -> tuple[str, ...]:
        """Return the packages available only from the image's indexes, if none of those is reachable.

        These have a local version (2.13.0+cpu), which PyPI does not accept, and are in no folder known to pip.
        """
        house = Wheelhouse(self.cache)
        local = (pin for pin in section.packages if local_version(pin.version))
        missing = tuple(str(pin) for pin in local if house.held(pin) is None)
        if not missing or not image.index or any(map(is_reachable, image.index)):
            return ()
        lost = []
        for name in missing:
            try:
                self._resolve(ResolveRequest((name,), dependencies=False), python)
            except EngineError:
                lost.append(name)
        return tuple(lost)

    def _lock_without_indexes(
        self, path: Path, image: Image, python: Python, unreachable: Sequence[str], progress: ProgressCallback
    ) -> tuple[Path, Section]:
        """Return a lock in the cache for an image with unreachable indexes, resolved without them."""
        image_without_index = replace(image, index=())
        wanted = Section("image", image.name, image_request_text(image_without_index))
        message = (
            f"image {image.name}: cannot get {', '.join(unreachable)} of {path.name}, because "
            f"{', '.join(image.index)} is unreachable; locking other packages without it, in the cache: "
            "results may differ from those of the lock"
        )
        return self._ensure_lock(
            self.image_file(image, python),
            wanted,
            lambda: self._pip(image_without_index, python, progress),
            lambda: progress(message),
        )

    def overlay_lock(
        self, image: Image, python: Python, base: BasePython, progress: ProgressCallback
    ) -> tuple[Path, Section]:
        """Return the path and section of the lock for the requirements of ``image`` that a given Python lacks."""
        wanted = Section("image", "overlay", request_text([image_request_text(image), f"over {base.digest}"]))
        request = ResolveRequest(image.requirements, image.index, over=True)

        def make() -> tuple[PinnedPackage, ...]:
            with self.cache.scratch("lock") as scratch:
                pip = overlay_pip_command(self.cache, python, base)
                there = dict(base.packages).get("torch")
                return resolve_one_build(lambda one: resolve(pip, one, scratch), request, progress, there)

        message = f"locking, in the cache, the requirements that {python.path} lacks"
        overlay_file = self.folder / f"overlay.{python.tag}.txt"
        return self._ensure_lock(overlay_file, wanted, make, lambda: progress(message))

    def system_lock(
        self,
        suite: str,
        packages: Sequence[str],
        base: str,
        progress: ProgressCallback,
        make: Callable[[], tuple[PinnedPackage, ...]],
    ) -> tuple[Path, Section]:
        """Return the lock of the Debian packages that an image adds to ``base``."""
        return self._find(self.system_file(suite), _system_section(packages, base), progress, make)

    def system_file(self, suite: str) -> Path:
        """Return the path of the committed lock of a suite's packages."""
        return self.folder / f"system.{suite}.txt"

    def pin_system(
        self,
        suite: str,
        packages: Sequence[str],
        base: str,
        pins: tuple[PinnedPackage, ...],
        progress: ProgressCallback,
    ) -> Path:
        """Write the pins for ``packages`` on ``base`` to the suite's lock; keep its other sections."""
        section = replace(_system_section(packages, base), packages=pins)
        path = self.system_file(suite)
        lock = read_lock(path)
        other_sections = [one for one in (lock.sections if lock else ()) if one.name != section.name]
        return self._write(path, [*other_sections, section], progress)[0]

    def library_locks(
        self, library: Library, python: Python, progress: ProgressCallback, apt: Apt | None = None
    ) -> list[tuple[Path, Section]]:
        """Return the paths and sections of the locks for a library: wheels, Debian packages, or both.

        ``apt`` selects a suite other than this machine's distribution.
        """
        locks = []
        if library.requirements:
            wanted, file = _library_section(library, library.requirements), self.wheels_file(python)
            locks.append(self._find(file, wanted, progress, lambda: self._wheels(library, python)))
        if library.apt:
            wanted, file = _library_section(library, library.apt), self.debian_file(apt)
            locks.append(self._find(file, wanted, progress, lambda: self._debs(library, apt)))
        return locks

    def wheels_file(self, python: Python) -> Path:
        """Return the lock of the libraries installed from wheels, on the platform of ``python``."""
        return self.folder / f"{LIBRARIES}.{python.platform}.txt"

    def debian_file(self, apt: Apt | None = None) -> Path:
        """Return the lock of libraries from Debian packages of this machine's distribution, or of ``apt``'s suite."""
        name = apt.lists if apt else distribution_name()
        if name is None:
            raise EngineError("apt is not installed on this machine")
        return self.folder / f"{LIBRARIES}.{name}.txt"

    def _find(
        self,
        committed: Path,
        wanted: Section,
        progress: ProgressCallback,
        make: Callable[[], tuple[PinnedPackage, ...]],
    ) -> tuple[Path, Section]:
        section = find_section(committed, wanted)
        if section:
            return committed, section
        why = "does not match matrix.yaml" if committed.exists() else "does not exist"
        message = (
            f"{wanted.kind} {wanted.name}: {committed.name} {why}; locking it now, in the cache "
            "(write it with `envmatrix lock`)"
        )
        return self._ensure_lock(committed, wanted, make, lambda: progress(message))

    def _ensure_lock(
        self,
        committed: Path,
        wanted: Section,
        make: Callable[[], tuple[PinnedPackage, ...]],
        tell: Callable[[], None],
    ) -> tuple[Path, Section]:
        """Return a lock in the cache, named like the ``committed`` one, and its section; create it if it is absent."""
        digest = json_digest(wanted.kind, wanted.name, wanted.asked)[:12]
        lock_file = self.cache.root / "locks" / f"{committed.stem}.{digest}.txt"
        section = find_section(lock_file, wanted)
        if section is None:
            tell()
            self.cache.write(lock_file, Lock(lock_file, (replace(wanted, packages=make()),)).text())
            section = find_section(lock_file, wanted)
        if section is None:
            raise InputError(
                f"cannot lock {wanted.kind} {wanted.name} as written: {wanted.asked!r}", where=Where(lock_file)
            )
        return lock_file, section

    def _pip(self, image: Image, python: Python, progress: ProgressCallback) -> tuple[PinnedPackage, ...]:
        check_python(image, python)  # pip can get a source's metadata only with its own Python
        sources = tuple(build.name for build in image.builds)
        variables = dict(pair for build in image.builds for pair in build.env)
        request = ResolveRequest(image.requirements, image.index, sources=sources, env=variables)
        return resolve_one_build(lambda one: self._resolve(one, python), request, progress)

    def _resolve(self, request: ResolveRequest, python: Python) -> tuple[PinnedPackage, ...]:
        if not request.requirements:
            return ()
        with self.cache.scratch("lock") as scratch:
            request = replace(request, target=python.target, architecture=python.architecture)
            return resolve(pip_command(self.cache, python), request, scratch)

    def _wheels(self, library: Library, python: Python) -> tuple[PinnedPackage, ...]:
        return self._resolve(ResolveRequest(library.requirements, dependencies=False), python)

    def _debs(self, library: Library, suite: Apt | None) -> tuple[PinnedPackage, ...]:
        apt = suite or Apt(self.cache)
        return tuple(apt.find(word) for word in library.apt)

    def make(
        self,
        images: Sequence[Image],
        libraries: Sequence[Library],
        progress: ProgressCallback,
        architecture: str | None = None,
    ) -> list[Path]:
        """Resolve every lock of an architecture (None: this machine's) again; return the files written.

        An image keeps its lock, with a message, if its Python is missing here or its packages mix builds of torch.
        So does all of another architecture that cannot be resolved here.
        """
        wanted = architecture or this_architecture()
        python = cached_python(self.cache, None).for_architecture(wanted)
        there = [item for item in libraries if exists_for(item.architectures, wanted)]
        written = [path for image in images if (path := self._make_image(image, wanted, progress))]
        file, note = self.wheels_file(python), f"not locked for {wanted}" if python.architecture else ""
        wheels = [
            _pinned(
                _library_section(item, item.requirements), partial(self._wheels, item, python), file, note, progress
            )
            for item in there
            if item.requirements
        ]
        written += self._write(file, wheels, progress)
        if distribution_name() is not None:
            apt = Apt(self.cache, distribution_name(wanted) or "", architecture=python.architecture)
            file, note = self.debian_file(apt), "not locked"
            packages = [
                _pinned(_library_section(item, item.apt), partial(self._debs, item, apt), file, note, progress)
                for item in there
                if item.apt
            ]
            written += self._write(file, packages, progress)
        return written

    def architectures(self) -> list[str]:
        """Return this machine's architecture, then others that the folder has locks of."""
        names = [path.stem for path in self.folder.glob("*.txt")]
        others = [one for one in PACKAGE_NAMES if any(name.endswith(one) for name in names)]
        return list(dict.fromkeys([this_architecture(), *others]))

    def _make_image(self, image: Image, architecture: str, progress: ProgressCallback) -> Path | None:
        if not image.requirements or image.on_host or not exists_for(image.architectures, architecture):
            return None
        elsewhere = architecture != this_architecture()
        tolerated = (SkipEnvironmentError, EngineError) if elsewhere else SkipEnvironmentError
        try:
            python = cached_python(self.cache, image.python).for_architecture(architecture)
            if elsewhere:
                _check_resolvable_elsewhere(image)
            section = Section("image", image.name, image_request_text(image), self._pip(image, python, progress))
        except tolerated as error:
            progress(f"not locked{f' for {architecture}' if elsewhere else ''}: {image.name}: {error.message}")
            return None
        if strangers(section.packages):  # a committed lock must work on every machine
            progress(f"not locked: {image.name}: its packages are from different builds of torch")
            return None
        written_files = self._write(self.image_file(image, python), [section], progress)
        return written_files[0] if written_files else None

    def _write(self, path: Path, sections: Sequence[Section | None], progress: ProgressCallback) -> list[Path]:
        existing_sections = tuple(section for section in sections if section)
        if not existing_sections:
            return []
        self.cache.write(path, Lock(path, existing_sections).text())
        progress(f"wrote {path}")
        return [path]
