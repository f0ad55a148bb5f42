"""Which exact packages an image and its libraries are made of: the committed lock, else one made on the fly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from envmatrix.build.builds_of_torch import local_version, resolve_one_build, strangers
from envmatrix.build.cache import Cache, digest_of
from envmatrix.build.debian_packages import Apt, distribution
from envmatrix.build.lockfile import Lock, Pinned, Section, asked_text, read_lock
from envmatrix.build.overlays import Base, pip_over
from envmatrix.build.pip import Request, host_platform, pip_of, reachable, resolve
from envmatrix.build.pythons import Python, remembered_python
from envmatrix.build.source_builds import check_python
from envmatrix.build.wheelhouse import Wheelhouse
from envmatrix.errors import EngineError, InputError, SkipEnvironmentError, Where
from envmatrix.plan.environment import Image, Library
from envmatrix.system.progress import ProgressCallback

LIBRARIES = "libraries"


def image_asked(image: Image) -> str:
    """Return what an image asks of pip, as its lock must have it."""
    sources = (f"--no-binary={build.name}" for build in image.builds)
    return asked_text((*image.requirements, *sources, *(f"--extra-index-url {url}" for url in image.index)))


def _system_asked(packages: Sequence[str], base: str) -> tuple[str, str]:
    asked = asked_text((*packages, f"on {base}"))
    return digest_of(asked)[:12], asked


@dataclass(frozen=True)
class Locks:
    """The committed locks of a project (``folder``), and those made on the fly (in the cache)."""

    folder: Path
    cache: Cache

    def image_file(self, image: Image, python: Python) -> Path:
        """Return where the committed lock of an image lies."""
        return self.folder / f"{image.name}.{python.tag}.txt"

    def of_image(self, image: Image, python: Python, progress: ProgressCallback) -> tuple[Path, Section]:
        """Return the lock's path and its section for ``image``; made on the fly when none fits."""
        committed = self.image_file(image, python)
        path, section = self._find(
            committed, "image", image.name, image_asked(image), progress, lambda: self._pip(image, python, progress)
        )
        lost = self._out_of_reach(section, image, python)
        return self._without_index(path, image, python, lost, progress) if lost else (path, section)

    def _out_of_reach(self, section: Section, image: Image, python: Python) -> tuple[str, ...]:
        """Return what only the image's own indexes have, where none of them can be reached.

        That is what has a local version (2.13.0+cpu), which PyPI takes none of, and lies in no folder that pip knows.
        """
        house = Wheelhouse(self.cache)
        local = (pin for pin in section.packages if local_version(pin.version))
        missing = tuple(str(pin) for pin in local if house.held(pin) is None)
        if not missing or not image.index or any(map(reachable, image.index)):
            return ()
        lost = []
        for name in missing:
            try:
                self._resolve(Request((name,), dependencies=False), python)
            except EngineError:
                lost.append(name)
        return tuple(lost)

    def _without_index(
        self, path: Path, image: Image, python: Python, lost: Sequence[str], progress: ProgressCallback
    ) -> tuple[Path, Section]:
        """Return a lock of the cache for an image whose indexes cannot be reached: what else can be had here."""
        bare = replace(image, index=())
        asked = image_asked(bare)
        said = (
            f"image {image.name}: {', '.join(lost)} of {path.name} cannot be had, as {', '.join(image.index)} cannot "
            "be reached; locking, in the cache, what can be had without it: other packages than the lock names"
        )
        fresh = self._fresh(self.image_file(image, python), "image", image.name, asked)
        empty = Section("image", image.name, asked)
        return self._made(fresh, empty, lambda: self._pip(bare, python, progress), lambda: progress(said))

    def of_overlay(self, image: Image, python: Python, base: Base, progress: ProgressCallback) -> tuple[Path, Section]:
        """Return the lock's path and its section for what ``image`` lacks of its requirements on a Python's own."""
        asked = asked_text([image_asked(image), f"over {base.digest}"])
        request = Request(image.requirements, image.index, over=True)

        def make() -> tuple[Pinned, ...]:
            with self.cache.scratch("lock") as scratch:
                pip = pip_over(self.cache, python, base)
                there = dict(base.packages).get("torch")
                return resolve_one_build(lambda one: resolve(pip, one, scratch), request, progress, there)

        fresh = self._fresh(self.folder / f"overlay.{python.tag}.txt", "image", "overlay", asked)
        said = f"locking, in the cache, what {python.path} lacks of the requirements"
        return self._made(fresh, Section("image", "overlay", asked), make, lambda: progress(said))

    def of_system(
        self,
        suite: str,
        packages: Sequence[str],
        base: str,
        progress: ProgressCallback,
        make: Callable[[], tuple[Pinned, ...]],
    ) -> tuple[Path, Section]:
        """Return the lock of the Debian packages that an image adds to ``base``."""
        name, asked = _system_asked(packages, base)
        return self._find(self.system_file(suite), "system", name, asked, progress, make)

    def system_file(self, suite: str) -> Path:
        """Return where the committed lock of a suite's packages lies."""
        return self.folder / f"system.{suite}.txt"

    def pin_system(
        self, suite: str, packages: Sequence[str], base: str, pins: tuple[Pinned, ...], progress: ProgressCallback
    ) -> Path:
        """Write what ``packages`` on ``base`` come to into the suite's lock, its other sections kept."""
        name, asked = _system_asked(packages, base)
        path = self.system_file(suite)
        lock = read_lock(path)
        others = [section for section in (lock.sections if lock else ()) if section.name != name]
        return self._write(path, [*others, Section("system", name, asked, pins)], progress)[0]

    def of_library(
        self, library: Library, python: Python, progress: ProgressCallback, apt: Apt | None = None
    ) -> list[tuple[Path, Section]]:
        """Return the locks' paths and sections for a library: wheels, Debian packages, or both.

        ``apt`` knows another suite than this machine's own distribution.
        """
        found = []
        if library.requirements:
            asked = asked_text(library.requirements)
            request = Request(library.requirements, dependencies=False)
            found.append(
                self._find(
                    self.wheels_file, "library", library.key, asked, progress, lambda: self._resolve(request, python)
                )
            )
        if library.apt:
            asked = asked_text(library.apt)
            found.append(
                self._find(
                    self.debian_file(apt), "library", library.key, asked, progress, lambda: self._apt(library.apt, apt)
                )
            )
        return found

    @property
    def wheels_file(self) -> Path:
        """Lock of the libraries that come in wheels."""
        return self.folder / f"{LIBRARIES}.{host_platform()}.txt"

    def debian_file(self, apt: Apt | None = None) -> Path:
        """Lock of the libraries that come in packages of this machine's distribution, or of ``apt``'s suite."""
        name = apt.lists if apt else distribution()
        if name is None:
            raise EngineError("there is no apt on this machine")
        return self.folder / f"{LIBRARIES}.{name}.txt"

    def _find(
        self,
        committed: Path,
        kind: str,
        name: str,
        asked: str,
        progress: ProgressCallback,
        make: Callable[[], tuple[Pinned, ...]],
    ) -> tuple[Path, Section]:
        lock = read_lock(committed)
        section = lock.find(kind, name, asked) if lock else None
        if section:
            return committed, section
        why = "was made for something else than matrix.yaml asks now" if lock else "does not exist"
        said = f"{kind} {name}: {committed.name} {why}; locking it now, in the cache (`envmatrix lock` writes it)"
        fresh = self._fresh(committed, kind, name, asked)
        return self._made(fresh, Section(kind, name, asked), make, lambda: progress(said))

    def _fresh(self, committed: Path, kind: str, name: str, asked: str) -> Path:
        return self.cache.root / "locks" / f"{committed.stem}.{digest_of(kind, name, asked)[:12]}.txt"

    def _made(
        self, fresh: Path, empty: Section, make: Callable[[], tuple[Pinned, ...]], tell: Callable[[], None]
    ) -> tuple[Path, Section]:
        """Return a lock of the cache and its section, made now where it is not there."""
        lock = read_lock(fresh)
        section = lock.find(empty.kind, empty.name, empty.asked) if lock else None
        if section:
            return fresh, section
        tell()
        self.cache.write(fresh, Lock(fresh, (replace(empty, packages=make()),)).text())
        return fresh, self._again(fresh, empty.kind, empty.name, empty.asked)

    def _again(self, path: Path, kind: str, name: str, asked: str) -> Section:
        lock = read_lock(path)
        section = lock.find(kind, name, asked) if lock else None
        if section is None:
            raise InputError(f"{kind} {name} cannot be locked as it is written: {asked!r}", where=Where(path))
        return section

    def _pip(self, image: Image, python: Python, progress: ProgressCallback) -> tuple[Pinned, ...]:
        check_python(image, python)  # pip makes metadata of a source with its own Python alone
        sources = tuple(build.name for build in image.builds)
        variables = dict(pair for build in image.builds for pair in build.env)
        request = Request(image.requirements, image.index, sources=sources, env=variables)
        return resolve_one_build(lambda one: self._resolve(one, python), request, progress)

    def _resolve(self, request: Request, python: Python) -> tuple[Pinned, ...]:
        with self.cache.scratch("lock") as scratch:
            return (
                resolve(pip_of(self.cache, python), replace(request, target=python.target), scratch)
                if request.requirements
                else ()
            )

    def _apt(self, words: Sequence[str], suite: Apt | None = None) -> tuple[Pinned, ...]:
        apt = suite or Apt(self.cache)
        return tuple(apt.find(word) for word in words)

    def make(self, images: Sequence[Image], libraries: Sequence[Library], progress: ProgressCallback) -> list[Path]:
        """Make every lock anew and write it into ``folder``; return the files written.

        An image whose Python is not on this machine, or whose packages cannot be had in one build of torch, keeps the
        lock it has, and that is said.
        """
        written = [path for image in images if (path := self._make_image(image, progress))]
        python = remembered_python(self.cache, None)
        wheels = [self._wheel_section(item, python) for item in libraries if item.requirements]
        written += self._write(self.wheels_file, wheels, progress)
        if distribution() is not None:
            written += self._write(self.debian_file(), self._debian_sections(libraries, progress), progress)
        return written

    def _wheel_section(self, library: Library, python: Python) -> Section:
        request = Request(library.requirements, dependencies=False)
        return Section("library", library.key, asked_text(library.requirements), self._resolve(request, python))

    def _debian_sections(self, libraries: Sequence[Library], progress: ProgressCallback) -> list[Section]:
        sections = []
        for item in libraries:
            try:
                sections += (
                    [Section("library", item.key, asked_text(item.apt), self._apt(item.apt))] if item.apt else []
                )
            except EngineError as error:
                progress(f"not locked: {item.key}: {error.message}")
        return sections

    def _make_image(self, image: Image, progress: ProgressCallback) -> Path | None:
        if not image.requirements or image.on_host:
            return None
        try:
            python = remembered_python(self.cache, image.python)
            section = Section("image", image.name, image_asked(image), self._pip(image, python, progress))
        except SkipEnvironmentError as error:
            progress(f"not locked: {image.name}: {error.message}")
            return None
        if strangers(section.packages):  # a lock is for every machine; it was said
            progress(f"not locked: {image.name}: its packages are of more than one build of torch")
            return None
        written = self._write(self.image_file(image, python), [section], progress)
        return written[0] if written else None

    def _write(self, path: Path, sections: Sequence[Section], progress: ProgressCallback) -> list[Path]:
        if not sections:
            return []
        self.cache.write(path, Lock(path, tuple(sections)).text())
        progress(f"wrote {path}")
        return [path]
