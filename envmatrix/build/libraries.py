"""Build library folders: the shared libraries to preload, each in its own folder.

They come from wheels, from Debian packages, or are installed on this machine; missing ones are named with commands that
install them.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from envmatrix.build.cache import Cache, disk_errors, json_digest
from envmatrix.build.debian.packages import Apt, extract_libraries_of_deb
from envmatrix.build.lockfile import PinnedPackage
from envmatrix.build.package_locks import Locks
from envmatrix.build.python.interpreters import Python
from envmatrix.build.python.wheelhouse import Wheelhouse
from envmatrix.build.shared_library_extraction import extract_libraries_of_wheel
from envmatrix.errors import EnvmatrixError, InputError
from envmatrix.plan.environment import Image, Library
from envmatrix.system.architectures import this_architecture
from envmatrix.system.process import run
from envmatrix.system.progress import ProgressCallback

_LDCONFIG_LINE = re.compile(r"^\s+(\S+) \(([^)]*)\) => (\S+)$", re.MULTILINE)
_FOLDERS = ("/usr/lib64", "/usr/local/lib", "/usr/local/lib64", "/usr/lib", "/opt/intel/oneapi/compiler/latest/lib")
_PACKAGES = Path(__file__).with_suffix(".yaml")


def loader_cache() -> dict[str, str]:
    """Return the loader's cache (ldconfig -p) as file name -> path; empty without ldconfig."""
    program = shutil.which("ldconfig", path="/sbin:/usr/sbin:/bin:/usr/bin")
    if not program:
        return {}
    try:
        result = run([program, "-p"], limit_s=20.0)
    except EnvmatrixError:
        return {}
    architecture = {"x86_64": "x86-64", "aarch64": "AArch64"}.get(os.uname().machine, "")
    entries = [(name, path) for name, kind, path in _LDCONFIG_LINE.findall(result.stdout) if architecture in kind]
    return dict(reversed(entries))


def _library_folders() -> Iterable[Path]:
    yield from (Path(folder) for folder in _FOLDERS)
    yield Path(f"/usr/lib/{os.uname().machine}-linux-gnu")
    yield from sorted(Path("/usr/lib").glob("llvm-*/lib"), reverse=True)
    for prefix in (os.environ.get("CONDA_PREFIX"), sys.prefix):
        if prefix:
            yield Path(prefix) / "lib"


def find_system_library(file: str) -> Path | None:
    """Return this machine's library with that name or its unversioned name; None if there is none."""
    cached = loader_cache()
    for name in (file, file.split(".so")[0] + ".so"):
        if name in cached:
            return Path(cached[name])
        library_path = next((folder / name for folder in _library_folders() if (folder / name).is_file()), None)
        if library_path:
            return library_path
    return None


def install_hints(library: Library) -> str:
    """Return commands that install a library with apt, dnf and conda."""
    stems = [file.split(".so")[0] for file in library.files]
    known = yaml.safe_load(_PACKAGES.read_text(encoding="utf-8"))
    table = [packages for start, packages in known.items() if any(stem.startswith(start) for stem in stems)]
    names = {tool: [packages[tool] for packages in table] for tool in ("apt", "dnf", "conda")}
    if library.apt:
        names["apt"] = [alternatives.split("|")[0].strip() for alternatives in library.apt]
    commands = {"apt": "apt-get install", "dnf": "dnf install", "conda": "conda install -c conda-forge"}
    lines = [f"{commands[tool]} {' '.join(dict.fromkeys(packages))}" for tool, packages in names.items() if packages]
    return f"install it: {' | '.join(lines)}" if lines else "install it manually"


@dataclass(frozen=True)
class LibraryFolders:
    """Library folders of this machine: key -> folder, the missing ones with reasons, and their sources.

    ``pins`` are the packages that the folders were unpacked from.
    """

    folders: Mapping[str, str]
    missing: Mapping[str, str]
    facts: Mapping[str, str]
    pins: tuple[PinnedPackage, ...] = ()


@dataclass(frozen=True)
class LibraryBuilder:
    """Builds library folders from the wheelhouse and from the distribution's packages."""

    locks: Locks
    python: Python
    apt: Apt | None = None

    @property
    def cache(self) -> Cache:
        """The cache that has the folders."""
        return self.locks.cache

    def build(self, libraries: Sequence[Library], image: Image) -> LibraryFolders:
        """Build, or find, the folder of every library of an image; one that cannot be had is in ``missing``."""
        folders: dict[str, str] = {}
        missing: dict[str, str] = {}
        facts: dict[str, str] = {}
        pins: list[PinnedPackage] = []
        for library in (item for item in libraries if item.is_for(image, this_architecture())):
            try:
                folders[library.key], library_pins = self._build_library(library)
                facts[f"library {library.key}"] = " ".join(map(str, library_pins))
                pins += library_pins
            except InputError:  # a wrong hash must always be reported
                raise
            except EnvmatrixError as error:
                linked = None if self.apt else self._link_installed(library)
                if linked:
                    folders[library.key], facts[f"library {library.key}"] = linked
                else:
                    missing[library.key] = f"{error.message}\n  -> {install_hints(library)}"
        return LibraryFolders(folders, missing, facts, tuple(pins))

    def _build_library(self, library: Library, *, partly: bool = False) -> tuple[str, list[PinnedPackage]]:
        """Return a library's folder and packages; ``partly``: they need not have all of its files."""
        sections = self.locks.library_locks(library, self.python, self.apt)
        pins = list(dict.fromkeys(pin for section in sections for pin in section.packages))
        folder = self._library_folder(library, [pin.sha256 for pin in pins])
        if not folder.is_dir():
            files = list(map(self._fetch, pins))
            self.cache.folder(folder, lambda place: self._unpack(library, files, place, partly=partly))
        return str(folder), pins

    def _library_folder(self, library: Library, identity: object) -> Path:
        return self.cache.root / "libraries" / json_digest(library.key, library.files, identity)[:24] / library.key

    def _fetch(self, pin: PinnedPackage) -> Path:
        if pin.is_debian:
            return fetch_packages(self.cache, self.apt or Apt(self.cache), [pin], self.locks.progress)[0]
        house = Wheelhouse(self.cache)
        return house.held(pin) or house.fill([pin], self.python, (), self.locks.progress)[0]

    def _unpack(self, library: Library, files: Sequence[Path], place: Path, *, partly: bool) -> None:
        unpacked: list[str] = []
        with self.cache.scratch("unpack") as scratch:
            for file in files:
                is_debian = file.suffix == ".deb"
                unpacked += (
                    extract_libraries_of_deb(file, place, scratch)
                    if is_debian
                    else extract_libraries_of_wheel(file, place, library.files)
                )
        missing = [name for name in library.files if name not in unpacked]
        if missing and not partly:
            packages = " ".join((*library.requirements, *library.apt))
            raise InputError(
                f"{library.key}: {packages} does not contain {', '.join(missing)}",
                remedy=f"`preload:` one of {', '.join(sorted(set(unpacked))[:12]) or '(it has no shared library)'}",
            )

    def _link_installed(self, library: Library) -> tuple[str, str] | None:
        """Return a folder of links to installed libraries and to files from wheels, and their sources."""
        wheel_folder = self._unpack_wheels(library)
        paths: dict[str, Path] = {}
        for name in library.files:
            from_wheel = wheel_folder / name if wheel_folder else None
            path = from_wheel if from_wheel and from_wheel.exists() else find_system_library(name)
            if path is None:
                return None
            paths[name] = path

        def link(place: Path) -> None:
            for name, path in paths.items():
                (place / name).symlink_to(path)

        if not paths:
            return None
        folder = self._library_folder(library, sorted(map(str, paths.values())))
        self.cache.folder(folder, link)
        return str(folder), "the system's own " + " ".join(str(path.resolve()) for path in paths.values())

    def _unpack_wheels(self, library: Library) -> Path | None:
        """Return a folder with the libraries that wheels provide, for when Debian packages are unavailable."""
        if not (library.requirements and library.apt):
            return None
        try:
            return Path(self._build_library(replace(library, apt=()), partly=True)[0])
        except EnvmatrixError:
            return None


def fetch_packages(cache: Cache, apt: Apt, pins: Sequence[PinnedPackage], progress: ProgressCallback) -> list[Path]:
    """Fetch missing Debian packages; return the file of each of ``pins``."""
    house = Wheelhouse(cache)
    missing = [pin for pin in pins if house.held(pin) is None]
    if missing:
        ellipsis = " ..." if len(missing) > 4 else ""
        progress(f"fetching {len(missing)} Debian packages: {', '.join(map(str, missing[:4]))}{ellipsis}")
        with cache.scratch("apt") as scratch, disk_errors(scratch):
            for pin, file in zip(missing, apt.download(missing, scratch), strict=True):
                house.add(file, pin)
    return [held for pin in pins if (held := house.held(pin))]
