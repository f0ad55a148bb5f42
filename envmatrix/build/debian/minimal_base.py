"""Debian suites for images: a minimal base and pinned packages, all fetched on the host."""

from __future__ import annotations

import os
import re
import shutil
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from envmatrix.build.cache import Cache, disk_errors, json_digest, tool_error
from envmatrix.build.debian.packages import Apt, parse_pins
from envmatrix.build.lockfile import PinnedPackage
from envmatrix.errors import EngineError, InputError, Where
from envmatrix.system.architectures import package_name, this_architecture
from envmatrix.system.host import os_release
from envmatrix.system.process import Finished, run
from envmatrix.system.progress import ProgressCallback

#: The Python of each suite; an image's `python:` selects the suite.
PYTHONS = {"bookworm": "3.11", "trixie": "3.13"}
DEFAULT_SUITE = "bookworm"
#: The glibc of each suite, to check packages built on the host.
GLIBC = {"bookworm": (2, 36), "trixie": (2, 41)}
#: Pinned official images, used if a registry is reachable.
BASES = {
    "bookworm": "debian:bookworm-slim@sha256:3783cc01769c7b2b1b83a5c5ad96c815348e28ed7da68e2e3687004faa906251",
    "trixie": "debian:trixie-slim@sha256:3a39a0592364683e6bab97937b72cad5a8fa6dcbbee90edb3bb48c7f8e94f258",
}
#: Files that mmdebstrap copies from this machine or derives from it. They are emptied: a mirror's URI may contain a
#: password, engines mount over the first three, and containers fetch nothing.
_MACHINE_FILES = ("hostname", "hosts", "resolv.conf", "apt/sources.list")
_SUITE = re.compile(r"[a-z][a-z0-9-]*\Z")
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_BOOTSTRAP_S = 1800.0
#: 2025-01-01: the time of all files in a base, so that two builds of it are bit-identical.
SOURCE_DATE_EPOCH = "1735689600"
VARIABLE = "ENVMATRIX_DEBIAN_MIRROR"
_APT = Path("/etc/apt")
_STANZA_URI = re.compile(r"^URIs:\s*(\S+)", re.MULTILINE | re.IGNORECASE)
_LINE_URI = re.compile(r"^deb\s+(?:\[[^\]]*\]\s+)?(\S+)\s+\S+\s.*\bmain\b", re.MULTILINE)


def suite_for_python(suite: str | None, python: str | None) -> str:
    """Return the suite of an image: the one it names, or the one that has its Python."""
    if suite:
        if not _SUITE.match(suite):
            raise InputError(f"suite: {suite!r} is not a Debian suite", remedy="write bookworm, trixie or sid")
        return suite
    if python is None:
        return DEFAULT_SUITE
    minor = ".".join(python.split(".")[:2])
    suite_name = next((name for name, has in PYTHONS.items() if has == minor), None)
    if suite_name is None:
        suites = ", ".join(f"{name} ({has})" for name, has in PYTHONS.items())
        raise EngineError(
            f"no Debian suite has Python {python}; containers use the Python of their suite: {suites}",
            remedy="use one of these versions, or `--engine local`",
        )
    return suite_name


@dataclass(frozen=True)
class Suite:
    """One Debian suite, with all its downloads in the cache."""

    name: str
    cache: Cache

    @property
    def name_with_architecture(self) -> str:
        """Name of the suite as used in lock names."""
        return f"debian-{self.name}-{this_architecture()}"

    @property
    def apt(self) -> Apt:
        """Packages of this suite."""
        return Apt(self.cache, self.name_with_architecture, self.sources())

    def sources(self) -> str:
        """Return the suite's apt sources."""
        mirror = debian_mirror()
        signed = f"Signed-By: {_KEYRING}\n" if _KEYRING.exists() else ""
        stanza = f"Types: deb\nURIs: {mirror}\nSuites: {self.name}\nComponents: main\n{signed}"
        if self.name in {"sid", "unstable", "experimental"}:
            return stanza
        updates = f"Types: deb\nURIs: {mirror}\nSuites: {self.name}-updates\nComponents: main\n{signed}"
        return f"{stanza}\n{updates}"

    def bootstrap(self, progress: ProgressCallback) -> Path:
        """Create or reuse a base made with mmdebstrap; return its tar."""
        mirror = debian_mirror()
        recipe = json_digest(bootstrap_argv(self.name, Path("base.tar"), mirror))
        folder = self.cache.root / "bases" / f"{self.name}-{recipe[:12]}"

        def build(place: Path) -> None:
            if shutil.which("mmdebstrap") is None:
                raise EngineError(
                    "cannot get a base image: no registry is reachable, and mmdebstrap is not installed",
                    remedy="apt-get install mmdebstrap, or give the engine access to a registry",
                )
            progress(f"building a {self.name} base image with mmdebstrap")
            program, *arguments = bootstrap_argv(self.name, place / "base.tar", mirror)
            result = run(
                [program, *options_for_old_lists(), *arguments],
                limit_s=_BOOTSTRAP_S,
                env={**os.environ, "SOURCE_DATE_EPOCH": SOURCE_DATE_EPOCH, "LC_ALL": "C.UTF-8"},
            )
            _check_finished(result, f"mmdebstrap could not build a {self.name} base image", place)

        self.cache.folder(folder, build)
        return folder / "base.tar"

    def closure(self, packages: Sequence[str], status: str) -> tuple[PinnedPackage, ...]:
        """Return ``packages`` and their dependencies that are missing from a base's dpkg ``status`` file."""
        with self.cache.scratch("closure") as scratch:
            file = scratch / "status"
            file.write_text(status, encoding="utf-8")
            apt = self.apt
            with self.cache.exclusive_lock("apt"):
                apt.update()
            argv = [
                "apt-get", *apt.options(), "-o", f"Dir::State::status={file}", "-o", "Debug::NoLocking=1", "--quiet=2",
                "-o", "Acquire::ForceHash=SHA256", "--yes", "--no-install-recommends", "--print-uris", "install", "--",
                *packages,
            ]  # fmt: skip
            result = run(argv, limit_s=300.0)
        _check_finished(result, f"{self.name} cannot install {', '.join(packages)}", self.cache.root)
        return tuple(sorted(parse_pins(result.stdout), key=lambda pin: pin.name))


def bootstrap_argv(suite: str, tar: Path, mirror: str) -> list[str]:
    """Return the command that makes a minimal base without device nodes, which only real root can unpack."""
    return [
        "mmdebstrap", "--quiet", "--variant=minbase", f"--architectures={package_name(this_architecture())}",
        "--format=tar", "--skip=output/dev", *(f'--customize-hook=: >"$1/etc/{name}"' for name in _MACHINE_FILES),
        "--", suite, str(tar), mirror,
    ]  # fmt: skip


def options_for_old_lists() -> list[str]:
    """Return mmdebstrap's options to accept old package lists, if this machine's apt accepts them.

    mmdebstrap writes the setting to the base, and the hook removes it, so the base does not change.
    """
    result = run(["apt-config", "dump", "--format=%v", "Acquire::Check-Valid-Until"], limit_s=60.0)
    if result.stdout.strip().lower() not in {"false", "no", "0", "off", "without", "disable"}:
        return []
    return ['--aptopt=Acquire::Check-Valid-Until "false"', '--customize-hook=rm "$1/etc/apt/apt.conf.d/99mmdebstrap"']


def _check_finished(result: Finished, task: str, place: Path) -> None:
    if result.exit.ok:
        return
    error_lines = [line for line in result.stderr.splitlines() if line.startswith("E:")]
    message = f"{task}: {'; '.join(error_lines[:3]) or result.last_words(2)}"
    remedy = "check the package names in matrix.yaml, the suite, and that Debian's mirror is reachable and up to date"
    raise tool_error(result.stderr + result.stdout, place, message, remedy)


def dpkg_status(tar: Path) -> str:
    """Return the dpkg status file of a base's tar."""
    with disk_errors(tar), tarfile.open(tar) as archive:
        for member in archive:
            if member.name.removeprefix("./") == "var/lib/dpkg/status" and (file := archive.extractfile(member)):
                return file.read().decode()
    raise EngineError(
        "this base image has no dpkg status file", where=Where(tar), remedy="use a Debian image as `base:`"
    )


def mirrors_in(texts: Iterable[str]) -> list[str]:
    """Return the archives in apt's source files, without security archives, which are incomplete suites."""
    uris = [uri for text in texts for pattern in (_STANZA_URI, _LINE_URI) for uri in pattern.findall(text)]
    return [uri.rstrip("/") for uri in uris if "security" not in uri]


def debian_mirror() -> str:
    """Return $ENVMATRIX_DEBIAN_MIRROR, or this Debian machine's own mirror. Raises EngineError if there is none."""
    if configured := os.environ.get(VARIABLE):
        return configured.rstrip("/")
    files = (
        [_APT / "sources.list", *sorted(_APT.glob("sources.list.d/*"))] if os_release().get("ID") == "debian" else []
    )
    texts = [file.read_text(encoding="utf-8", errors="replace") for file in files if file.is_file()]
    mirrors = mirrors_in(texts)
    if not mirrors:
        raise EngineError(
            "no Debian mirror was found on this machine, and containers need Debian packages",
            remedy=f"set {VARIABLE} to a Debian archive (the URI in the apt sources of a Debian machine)",
        )
    return mirrors[0]
