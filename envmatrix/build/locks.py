"""Choose the exact packages of an image and its libraries: from the committed lock, or from one made on the fly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from envmatrix.build.builds_of_torch import local_version, resolve_one_build, strangers
from envmatrix.build.cache import Cache, json_digest
from envmatrix.build.debian_packages import Apt, distribution_name
from envmatrix.build.lockfile import Lock, PinnedPackage, Section, read_lock, request_text
from envmatrix.build.overlays import BasePython, overlay_pip_command
from envmatrix.build.pip import ResolveRequest, is_reachable, pip_command, resolve
from envmatrix.build.pythons import Python, cached_python
from envmatrix.build.source_builds import check_python
from envmatrix.build.wheelhouse import Wheelhouse
from envmatrix.errors import EngineError, InputError, SkipEnvironmentError, Where
from envmatrix.plan.environment import Image, Library, exists_for
from envmatrix.system.architectures import PACKAGE_NAMES, this_architecture
from envmatrix.system.progress import ProgressCallback

LIBRARIES = "libraries"


def image_request_text(image: Image) -> str:
    """Return an image's pip request as it is written in its lock."""
    sources = (f"--no-binary={build.name}" for build in image.builds)
    return request_text((*image.requirements, *sources, *(f"--extra-index-url {url}" for url in image.index)))


def _for_target(request: ResolveRequest, python: Python) -> ResolveRequest:
    return replace(request, target=python.target, architecture=python.architecture)


def _check_resolvable_elsewhere(image: Image) -> None:
    """Raise SkipEnvironmentError if another architecture's packages of an image cannot be resolved on this machine."""
    if image.builds:
        raise SkipEnvironmentError("it is built from source, so lock it on a machine with that architecture")
    unreachable = [url for url in image.index if not is_reachable(url)]
    if unreachable:  # without its index, PyPI's CUDA build would replace a build for CPUs
        raise SkipEnvironmentError(f"{', '.join(unreachable)} is unreachable")


def _existing_section(path: Path, name: str, asked: str) -> Section | None:
    lock = read_lock(path)
    return lock.find("library", name, asked) if lock else None


def _system_request(packages: Sequence[str], base: str) -> tuple[str, str]:
    system_text = request_text((*packages, f"on {base}"))
    return json_digest(system_text)[:12], system_text


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
        committed = self.image_file(image, python)
        path, section = self._find(
            committed,
            "image",
            image.name,
            image_request_text(image),
            progress,
            lambda: self._pip(image, python, progress),
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
        image_request = image_request_text(image_without_index)
        message = (
            f"image {image.name}: cannot get {', '.join(unreachable)} of {path.name}, because "
            f"{', '.join(image.index)} is unreachable; locking other packages without it, in the cache: "
            "results may differ from those of the lock"
        )
        lock_file = self._cached_lock_file(self.image_file(image, python), "image", image.name, image_request)
        empty_section = Section("image", image.name, image_request)
        return self._ensure_lock(
            lock_file,
            empty_section,
            lambda: self._pip(image_without_index, python, progress),
            lambda: progress(message),
        )

    def overlay_lock(
        self, image: Image, python: Python, base: BasePython, progress: ProgressCallback
    ) -> tuple[Path, Section]:
        """Return the path and section of the lock for the requirements of ``image`` that a given Python lacks."""
        overlay_request = request_text([image_request_text(image), f"over {base.digest}"])
        request = ResolveRequest(image.requirements, image.index, over=True)

        def make() -> tuple[PinnedPackage, ...]:
            with self.cache.scratch("lock") as scratch:
                pip = overlay_pip_command(self.cache, python, base)
                there = dict(base.packages).get("torch")
                return resolve_one_build(lambda one: resolve(pip, one, scratch), request, progress, there)

        lock_file = self._cached_lock_file(
            self.folder / f"overlay.{python.tag}.txt", "image", "overlay", overlay_request
        )
        message = f"locking, in the cache, the requirements that {python.path} lacks"
        return self._ensure_lock(
            lock_file, Section("image", "overlay", overlay_request), make, lambda: progress(message)
        )

    def system_lock(
        self,
        suite: str,
        packages: Sequence[str],
        base: str,
        progress: ProgressCallback,
        make: Callable[[], tuple[PinnedPackage, ...]],
    ) -> tuple[Path, Section]:
        """Return the lock of the Debian packages that an image adds to ``base``."""
        name, system_request = _system_request(packages, base)
        return self._find(self.system_file(suite), "system", name, system_request, progress, make)

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
        name, system_request = _system_request(packages, base)
        path = self.system_file(suite)
        lock = read_lock(path)
        other_sections = [section for section in (lock.sections if lock else ()) if section.name != name]
        return self._write(path, [*other_sections, Section("system", name, system_request, pins)], progress)[0]

    def library_locks(
        self, library: Library, python: Python, progress: ProgressCallback, apt: Apt | None = None
    ) -> list[tuple[Path, Section]]:
        """Return the paths and sections of the locks for a library: wheels, Debian packages, or both.

        ``apt`` selects a suite other than this machine's distribution.
        """
        locks = []
        if library.requirements:
            library_request = request_text(library.requirements)
            request = ResolveRequest(library.requirements, dependencies=False)
            locks.append(
                self._find(
                    self.wheels_file(python),
                    "library",
                    library.key,
                    library_request,
                    progress,
                    lambda: self._resolve(request, python),
                )
            )
        if library.apt:
            library_request = request_text(library.apt)
            locks.append(
                self._find(
                    self.debian_file(apt),
                    "library",
                    library.key,
                    library_request,
                    progress,
                    lambda: self._resolve_debian(library.apt, apt),
                )
            )
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
        kind: str,
        name: str,
        asked: str,
        progress: ProgressCallback,
        make: Callable[[], tuple[PinnedPackage, ...]],
    ) -> tuple[Path, Section]:
        lock = read_lock(committed)
        section = lock.find(kind, name, asked) if lock else None
        if section:
            return committed, section
        why = "does not match matrix.yaml" if lock else "does not exist"
        message = (
            f"{kind} {name}: {committed.name} {why}; locking it now, in the cache (write it with `envmatrix lock`)"
        )
        lock_file = self._cached_lock_file(committed, kind, name, asked)
        return self._ensure_lock(lock_file, Section(kind, name, asked), make, lambda: progress(message))

    def _cached_lock_file(self, committed: Path, kind: str, name: str, asked: str) -> Path:
        return self.cache.root / "locks" / f"{committed.stem}.{json_digest(kind, name, asked)[:12]}.txt"

    def _ensure_lock(
        self,
        lock_file: Path,
        empty_section: Section,
        make: Callable[[], tuple[PinnedPackage, ...]],
        tell: Callable[[], None],
    ) -> tuple[Path, Section]:
        """Return a lock in the cache and its section; create it if it does not exist."""
        lock = read_lock(lock_file)
        section = lock.find(empty_section.kind, empty_section.name, empty_section.asked) if lock else None
        if section:
            return lock_file, section
        tell()
        self.cache.write(lock_file, Lock(lock_file, (replace(empty_section, packages=make()),)).text())
        return lock_file, self._read_new_section(lock_file, empty_section.kind, empty_section.name, empty_section.asked)

    def _read_new_section(self, path: Path, kind: str, name: str, asked: str) -> Section:
        lock = read_lock(path)
        section = lock.find(kind, name, asked) if lock else None
        if section is None:
            raise InputError(f"cannot lock {kind} {name} as written: {asked!r}", where=Where(path))
        return section

    def _pip(self, image: Image, python: Python, progress: ProgressCallback) -> tuple[PinnedPackage, ...]:
        check_python(image, python)  # pip can get a source's metadata only with its own Python
        sources = tuple(build.name for build in image.builds)
        variables = dict(pair for build in image.builds for pair in build.env)
        request = ResolveRequest(image.requirements, image.index, sources=sources, env=variables)
        return resolve_one_build(lambda one: self._resolve(one, python), request, progress)

    def _resolve(self, request: ResolveRequest, python: Python) -> tuple[PinnedPackage, ...]:
        with self.cache.scratch("lock") as scratch:
            return (
                resolve(pip_command(self.cache, python), _for_target(request, python), scratch)
                if request.requirements
                else ()
            )

    def _resolve_debian(self, alternatives: Sequence[str], suite: Apt | None = None) -> tuple[PinnedPackage, ...]:
        apt = suite or Apt(self.cache)
        return tuple(apt.find(word) for word in alternatives)

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
        wheels = [self._wheel_section(item, python, progress) for item in there]
        written += self._write(self.wheels_file(python), wheels, progress)
        if distribution_name() is not None:
            apt = Apt(self.cache, distribution_name(wanted) or "", architecture=python.architecture)
            packages = [self._debian_section(item, apt, progress) for item in there]
            written += self._write(self.debian_file(apt), packages, progress)
        return written

    def architectures(self) -> list[str]:
        """Return this machine's architecture, then others that the folder has locks of."""
        names = [path.stem for path in self.folder.glob("*.txt")]
        others = [one for one in PACKAGE_NAMES if any(name.endswith(one) for name in names)]
        return list(dict.fromkeys([this_architecture(), *others]))

    def _wheel_section(self, library: Library, python: Python, progress: ProgressCallback) -> Section | None:
        if not library.requirements:
            return None
        request, asked = ResolveRequest(library.requirements, dependencies=False), request_text(library.requirements)
        try:
            return Section("library", library.key, asked, self._resolve(request, python))
        except EngineError as error:
            if not python.architecture:
                raise
            progress(f"not locked for {python.architecture}: {library.key}: {error.message}")
            return _existing_section(self.wheels_file(python), library.key, asked)

    def _debian_section(self, library: Library, apt: Apt, progress: ProgressCallback) -> Section | None:
        if not library.apt:
            return None
        asked = request_text(library.apt)
        try:
            return Section("library", library.key, asked, self._resolve_debian(library.apt, apt))
        except EngineError as error:
            progress(f"not locked: {library.key}: {error.message}")
            return _existing_section(self.debian_file(apt), library.key, asked)

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
