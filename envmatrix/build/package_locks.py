"""Choose the exact packages of an image and its libraries: from the committed lock, or from one made on the fly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from envmatrix.build.cache import Cache, json_digest
from envmatrix.build.debian.packages import Apt, lock_name_of_distribution
from envmatrix.build.lockfile import Lock, PinnedPackage, Section, find_section, read_lock, request_text
from envmatrix.build.python.interpreters import Python, find_python_cached
from envmatrix.build.python.pip import ResolveRequest, cached_pip, is_reachable
from envmatrix.build.python.source_builds import check_python_for_builds
from envmatrix.build.python.torch_companion_packages import local_version, resolve_one_build, strangers
from envmatrix.build.python.venvs import BasePython, overlay_pip
from envmatrix.build.python.wheelhouse import Wheelhouse
from envmatrix.errors import EngineError, InputError, SkipEnvironmentError, Where
from envmatrix.plan.environment import Image, Library, exists_for
from envmatrix.system.architectures import PACKAGE_NAMES, this_architecture
from envmatrix.system.progress import ProgressCallback, report_once, silent

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


def _system_section(packages: Sequence[str], base: str) -> Section:
    system_text = request_text((*packages, f"on {base}"))
    return Section("system", json_digest(system_text)[:12], system_text)


@dataclass(frozen=True)
class _Request:
    """A section without its packages, how to resolve these, and the committed lock that may have them."""

    committed: Path
    section: Section
    resolve: Callable[[], tuple[PinnedPackage, ...]]

    def pinned(self) -> Section:
        """Resolve the packages now."""
        return replace(self.section, packages=self.resolve())


@dataclass(frozen=True)
class Locks:
    """Locks of a project: committed ones in ``folder``, others in the cache."""

    folder: Path
    cache: Cache
    progress: ProgressCallback = silent

    def __post_init__(self) -> None:
        object.__setattr__(self, "progress", report_once(self.progress))  # libraries share a lock file

    def image_file(self, image: Image, python: Python) -> Path:
        """Return the path of an image's committed lock."""
        return self.folder / f"{image.name}.{python.tag}.txt"

    def library_wheels_file(self, python: Python) -> Path:
        """Return the lock of the libraries installed from wheels, on the platform of ``python``."""
        return self.folder / f"{LIBRARIES}.{python.wheel_platform}.txt"

    def library_debian_file(self, apt: Apt | None = None) -> Path:
        """Return the lock of libraries from Debian packages of this machine's distribution, or of ``apt``'s suite."""
        name = apt.lists if apt else lock_name_of_distribution()
        if name is None:
            raise EngineError("apt is not installed on this machine")
        return self.folder / f"{LIBRARIES}.{name}.txt"

    def image_lock(self, image: Image, python: Python) -> Section:
        """Return the lock's section for ``image``; resolve it now if no lock matches.

        Without its unreachable indexes, if only those have some of its packages; then the lock is in the cache.
        """
        section = self._find(self._image_request(image, python))
        unreachable = self._unreachable_packages(section, image, python)
        if not unreachable:
            return section
        message = (
            f"image {image.name}: cannot get {', '.join(unreachable)} of {section.lock.name}, because "
            f"{', '.join(image.index)} is unreachable; locking other packages without it, in the cache: "
            "results may differ from those of the lock"
        )
        return self._ensure_lock(self._image_request(replace(image, index=()), python), message)

    def _unreachable_packages(self, section: Section, image: Image, python: Python) -> list[str]:
        """Return the packages available only from the image's indexes, if none of those is reachable.

        These have a local version (2.13.0+cpu), which PyPI does not accept, and are in no folder known to pip.
        """
        house = Wheelhouse(self.cache)
        missing = [str(pin) for pin in section.packages if local_version(pin.version) and house.held(pin) is None]
        if not missing or not image.index or any(map(is_reachable, image.index)):
            return []
        unreachable = []
        for name in missing:
            try:
                self._resolve(ResolveRequest((name,), dependencies=False), python)
            except EngineError:
                unreachable.append(name)
        return unreachable

    def overlay_lock(self, image: Image, python: Python, base: BasePython) -> Section:
        """Return the lock's section for the requirements of ``image`` that a given Python lacks."""
        asked = request_text([image_request_text(image), f"over {base.digest}"])

        def resolve() -> tuple[PinnedPackage, ...]:
            with self.cache.scratch("lock") as scratch:
                pip = overlay_pip(self.cache, python, base)
                request = ResolveRequest(image.requirements, image.index)
                torch = dict(base.packages).get("torch")
                return resolve_one_build(partial(pip.resolve, scratch=scratch), request, self.progress, torch)

        request = _Request(self.folder / f"overlay.{python.tag}.txt", Section("image", "overlay", asked), resolve)
        return self._ensure_lock(request, f"locking, in the cache, the requirements that {python.path} lacks")

    def system_lock(
        self, suite: str, packages: Sequence[str], base: str, resolve: Callable[[], tuple[PinnedPackage, ...]]
    ) -> Section:
        """Return the lock's section for the Debian packages that an image adds to ``base``."""
        return self._find(_Request(self._system_file(suite), _system_section(packages, base), resolve))

    def _system_file(self, suite: str) -> Path:
        return self.folder / f"system.{suite}.txt"

    def pin_system(self, suite: str, packages: Sequence[str], base: str, pins: tuple[PinnedPackage, ...]) -> Path:
        """Write the pins for ``packages`` on ``base`` to the suite's lock; keep its other sections."""
        section = replace(_system_section(packages, base), packages=pins)
        path = self._system_file(suite)
        lock = read_lock(path)
        other_sections = [other for other in (lock.sections if lock else ()) if other.name != section.name]
        return self._write(path, [*other_sections, section])[0]

    def library_locks(self, library: Library, python: Python, apt: Apt | None = None) -> list[Section]:
        """Return the sections of the locks for a library: wheels, Debian packages, or both.

        ``apt`` selects a suite other than this machine's distribution.
        """
        wheels = [self._find(self._wheels_request(library, python))] if library.requirements else []
        return [*wheels, *([self._find(self._debian_request(library, apt))] if library.apt else [])]

    def _image_request(self, image: Image, python: Python) -> _Request:
        def resolve() -> tuple[PinnedPackage, ...]:
            check_python_for_builds(image, python)  # pip can get a source's metadata only with its own Python
            sources = tuple(build.name for build in image.builds)
            variables = dict(pair for build in image.builds for pair in build.env)
            request = ResolveRequest(image.requirements, image.index, sources=sources, env=variables)
            return resolve_one_build(partial(self._resolve, python=python), request, self.progress)

        section = Section("image", image.name, image_request_text(image))
        return _Request(self.image_file(image, python), section, resolve)

    def _wheels_request(self, library: Library, python: Python) -> _Request:
        request = ResolveRequest(library.requirements, dependencies=False)
        section = Section("library", library.key, request_text(library.requirements))
        return _Request(self.library_wheels_file(python), section, lambda: self._resolve(request, python))

    def _debian_request(self, library: Library, apt: Apt | None) -> _Request:
        section = Section("library", library.key, request_text(library.apt))
        packages = apt or Apt(self.cache)
        return _Request(self.library_debian_file(apt), section, lambda: tuple(map(packages.find, library.apt)))

    def _resolve(self, request: ResolveRequest, python: Python) -> tuple[PinnedPackage, ...]:
        if not request.requirements:
            return ()
        with self.cache.scratch("lock") as scratch:
            return cached_pip(self.cache, python).resolve(request, scratch)

    def _find(self, request: _Request) -> Section:
        """Return the section of a request in the committed lock, otherwise in one of the cache."""
        committed = request.committed
        if section := find_section(committed, request.section):
            return section
        is_for_all = request.section.kind == "library" and not committed.exists()
        subject = "" if is_for_all else f"{request.section.kind} {request.section.name}: "
        why = "does not match matrix.yaml" if committed.exists() else "does not exist"
        message = f"{subject}{committed.name} {why}; locking it now, in the cache (write it with `envmatrix lock`)"
        return self._ensure_lock(request, message)

    def _ensure_lock(self, request: _Request, message: str) -> Section:
        """Return the section of a lock in the cache, named like the committed one; create it if it is absent."""
        wanted = request.section
        digest = json_digest(wanted.kind, wanted.name, wanted.asked)[:12]
        lock_file = self.cache.root / "locks" / f"{request.committed.stem}.{digest}.txt"
        section = find_section(lock_file, wanted)
        if section is None:
            self.progress(message)
            self.cache.write(lock_file, Lock(lock_file, (request.pinned(),)).text())
            section = find_section(lock_file, wanted)
        if section is None:
            raise InputError(
                f"cannot lock {wanted.kind} {wanted.name} as written: {wanted.asked!r}", where=Where(lock_file)
            )
        return section

    def make(
        self, images: Sequence[Image], libraries: Sequence[Library], architecture: str | None = None
    ) -> list[Path]:
        """Resolve every lock of an architecture (None: this machine's) again; return the files written.

        An image keeps its lock, with a message, if its Python is missing here or its packages mix builds of torch.
        So does all of another architecture that cannot be resolved here.
        """
        architecture = architecture or this_architecture()
        python = find_python_cached(self.cache, None).for_architecture(architecture)
        existing = [library for library in libraries if exists_for(library.architectures, architecture)]
        written = [path for image in images for path in self._make_image(image, architecture)]
        wheels = [self._wheels_request(library, python) for library in existing if library.requirements]
        written += self._make_libraries(wheels, f"not locked for {architecture}" if python.architecture else "")
        if lock_name_of_distribution() is not None:
            apt = Apt(self.cache, lock_name_of_distribution(architecture) or "", architecture=python.architecture)
            packages = [self._debian_request(library, apt) for library in existing if library.apt]
            written += self._make_libraries(packages, "not locked")
        return written

    def architectures(self) -> list[str]:
        """Return this machine's architecture, then others that the folder has locks of."""
        names = [path.stem for path in self.folder.glob("*.txt")]
        others = [known for known in PACKAGE_NAMES if any(name.endswith(known) for name in names)]
        return list(dict.fromkeys([this_architecture(), *others]))

    def _make_image(self, image: Image, architecture: str) -> list[Path]:
        if not image.requirements or image.on_host or not exists_for(image.architectures, architecture):
            return []
        elsewhere = architecture != this_architecture()
        tolerated = (SkipEnvironmentError, EngineError) if elsewhere else SkipEnvironmentError
        try:
            python = find_python_cached(self.cache, image.python).for_architecture(architecture)
            if elsewhere:
                _check_resolvable_elsewhere(image)
            section = self._image_request(image, python).pinned()
        except tolerated as error:
            self.progress(f"not locked{f' for {architecture}' if elsewhere else ''}: {image.name}: {error.message}")
            return []
        if strangers(section.packages):  # a committed lock must work on every machine
            self.progress(f"not locked: {image.name}: its packages are from different builds of torch")
            return []
        return self._write(self.image_file(image, python), [section])

    def _make_libraries(self, requests: Sequence[_Request], note: str) -> list[Path]:
        """Resolve the requests of one lock; with a ``note``, one that cannot be resolved keeps its section."""
        sections = []
        for request in requests:
            try:
                sections.append(request.pinned())
            except EngineError as error:
                if not note:
                    raise
                self.progress(f"{note}: {request.section.name}: {error.message}")
                section = find_section(request.committed, request.section)
                sections += [section] if section else []
        return self._write(requests[0].committed, sections) if sections else []

    def _write(self, path: Path, sections: Sequence[Section]) -> list[Path]:
        self.cache.write(path, Lock(path, tuple(sections)).text())
        self.progress(f"wrote {path}")
        return [path]
