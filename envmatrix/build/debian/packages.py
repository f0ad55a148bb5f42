"""Find and fetch Debian packages of the host's distribution without root."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from envmatrix.build.cache import Cache, tool_error
from envmatrix.build.lockfile import PinnedPackage
from envmatrix.build.shared_library_extraction import unpack_libraries
from envmatrix.errors import EngineError, Where
from envmatrix.system.architectures import package_name, this_architecture
from envmatrix.system.host import os_release
from envmatrix.system.process import Order, run, run_logged

_APT_S = 300.0
_DOWNLOAD_S = 3600.0
#: Seconds before package lists are requested again, whether or not the update succeeded.
_ASK_AGAIN_S = 600.0
APT_OPTIONS = ("-o", "APT::Sandbox::User=root", "-o", "Acquire::http::Timeout=15", "-o", "Acquire::Retries=1")
_URI_LINE = re.compile(r"'(?P<uri>[^']+)' (?P<file>\S+) (?P<size>\d+) SHA256:(?P<sha256>[0-9a-f]{64})")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+\Z")


def lock_name_of_distribution(architecture: str = "") -> str | None:
    """Return this machine's distribution as used in lock names (debian-bookworm-x86_64); None without apt.

    ``architecture``: another one than this machine's.
    """
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        return None
    release = os_release()
    if not release:
        return None
    codename = release.get("VERSION_CODENAME") or release.get("VERSION_ID") or "unknown"
    return f"{release.get('ID', 'linux')}-{codename}-{architecture or this_architecture()}"


def print_uris_argv(options: Sequence[str], package: str) -> list[str]:
    """Return the command that prints the URI, file name and hash of a package ('name' or 'name=version')."""
    return ["apt-get", *options, "download", "--print-uris", "--", package]


def parse_pins(text: str) -> list[PinnedPackage]:
    """Return the packages in the output of ``--print-uris``."""
    pins = []
    for match in _URI_LINE.finditer(text):
        name, version, _ = match["file"].rsplit("_", 2)
        pins.append(PinnedPackage(name, unquote(version), match["sha256"], match["file"]))
    return pins


@dataclass(frozen=True)
class Apt:
    """apt-get for an ordinary user: uses the machine's package lists, or its own if those are empty or old.

    With ``sources`` (text of a .sources file) it uses only these, and ``lists`` is their name. With ``architecture``
    it finds the packages of another architecture in lists of its own.
    """

    cache: Cache
    lists: str = ""
    sources: str = ""
    architecture: str = ""

    @property
    def _own_lists(self) -> Path:
        return self.cache.root / "apt" / (self.lists or lock_name_of_distribution() or "none")

    def options(self) -> list[str]:
        """Return the options of every apt command."""
        uses_own_lists = self.sources or self.architecture or (self._own_lists / "complete").exists()
        return [*APT_OPTIONS, *(self._own_options() if uses_own_lists else [])]

    def _own_options(self) -> list[str]:
        folder = self._own_lists
        list_options = ["-o", f"Dir::State::Lists={folder}/lists", "-o", f"Dir::Cache={folder}/cache"]
        if self.architecture:
            name = package_name(self.architecture)
            list_options += ["-o", f"APT::Architecture={name}", "-o", f"APT::Architectures={name}"]
            list_options += ["-o", f"Dir::State::status={folder}/status"]
        if self.sources:
            list_options += ["-o", "Dir::Etc::SourceList=/dev/null", "-o", f"Dir::Etc::SourceParts={folder}/parts"]
        return list_options

    def update(self) -> None:
        """Update the cache's own package lists, at most once in ``_ASK_AGAIN_S`` seconds."""
        folder = self._own_lists
        (folder / "lists" / "partial").mkdir(parents=True, exist_ok=True)
        (folder / "cache" / "archives" / "partial").mkdir(parents=True, exist_ok=True)
        if self.sources:
            (folder / "parts").mkdir(exist_ok=True)
            (folder / "parts" / "suite.sources").write_text(self.sources, encoding="utf-8")
        if self.architecture:
            (folder / "status").touch()
        attempt_marker = folder / "tried"
        if attempt_marker.exists() and time.time() - attempt_marker.stat().st_mtime < _ASK_AGAIN_S:
            return
        result = run(["apt-get", *APT_OPTIONS, *self._own_options(), "--quiet=2", "update"], limit_s=_APT_S)
        attempt_marker.touch()
        if result.exit.ok:
            (folder / "complete").touch()

    def find(self, alternatives: str) -> PinnedPackage:
        """Return the first package of 'a | b' that exists. Raises EngineError if there is none."""
        names = [name.strip() for name in alternatives.split("|")]
        for _ in self._attempts_around_update():
            for name in filter(_PACKAGE.match, names):
                result = run(print_uris_argv(self.options(), name), limit_s=_APT_S)
                if result.exit.ok and (pins := parse_pins(result.stdout)):
                    return pins[0]
        raise EngineError(
            f"no package {alternatives} in "
            f"{self.lists or lock_name_of_distribution() or 'any distribution (apt is not installed)'}"
        )

    def _attempts_around_update(self) -> Iterator[None]:
        """Yield, update the package lists, and yield again."""
        yield
        with self.cache.exclusive_lock("apt"):
            self.update()
        yield

    def download(self, pins: Sequence[PinnedPackage], folder: Path) -> list[Path]:
        """Download exactly these versions to ``folder``; return the files in the order of ``pins``.

        Raises EngineError if a version is no longer available.
        """
        package_versions = [f"{pin.name}={pin.version}" for pin in pins]
        for _ in self._attempts_around_update():
            argv = ["apt-get", *self.options(), "--quiet=2", "download", "--", *package_versions]
            result = run(argv, limit_s=_DOWNLOAD_S, cwd=folder)
            files = [folder / pin.file for pin in pins]
            if result.exit.ok and all(file.exists() for file in files):
                return files
        message = f"apt could not download {', '.join(package_versions[:4])}: {result.last_words(1)}"
        remedy = "check the network and /etc/apt/sources.list; if a version no longer exists, run `envmatrix lock`"
        raise tool_error(result.stderr, folder, message, remedy)


def extract_libraries_of_deb(deb: Path, folder: Path, scratch: Path) -> list[str]:
    """Extract the shared objects of a Debian package to ``folder``; return their names."""
    tar = scratch / "package.tar"
    with tar.open("wb") as log:
        argv = ["dpkg-deb", "--fsys-tarfile", str(deb)]
        exit_status = run_logged(Order(argv, {"PATH": "/usr/bin:/bin"}, scratch, _APT_S), log)
    if not exit_status.ok:
        raise EngineError(
            f"dpkg-deb {exit_status} on {deb.name}", where=Where(deb), remedy=f"remove {deb} and try again"
        )
    return unpack_libraries(tar, folder)
