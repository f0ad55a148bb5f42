"""Read and write lock files: exact versions with a sha256 per package, in pip's requirements format.

Wheels are ``name==version``, Debian packages ``name=version file``; the hash is on the next line. Sections allow two
versions of a package in one file, for two library folders: ``# library: KEY``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from envmatrix.build.cache import json_digest
from envmatrix.errors import InputError, Where
from envmatrix.system.regular_files import MAX_TEXT_BYTES, decode_error_position, read_bytes

_HEADER = "# envmatrix lock 1: made by `envmatrix lock` from matrix.yaml; edit matrix.yaml and make it again\n"
_RELOCK_REMEDY = "run `envmatrix lock` to lock again"
_ENTRY = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._+-]*)(?P<sep>==?)(?P<version>[A-Za-z0-9][A-Za-z0-9.!+~:_-]*)"
    r"(?: (?P<file>[A-Za-z0-9][A-Za-z0-9.+~%_-]*))? --hash=sha256:(?P<sha256>[0-9a-f]{64})\Z"
)
#: A comment with a meaning; others are for readers.
_COMMENT = re.compile(r"# ?(?P<kind>image|library|system|asked): (?P<value>.*)\Z")


@dataclass(frozen=True)
class PinnedPackage:
    """A package pinned by its sha256, in a line of a lock (0: not written yet)."""

    name: str
    version: str
    sha256: str
    file: str = ""
    lock: Path = Path()
    line: int = 0

    @property
    def lock_file_and_line(self) -> Where:
        """Where it is pinned, for error messages."""
        return Where(self.lock, self.line or None)

    @property
    def is_debian(self) -> bool:
        """Whether this is a Debian package rather than a wheel."""
        return self.file.endswith(".deb")

    def __str__(self) -> str:
        return f"{self.name}={self.version}" if self.is_debian else f"{self.name}=={self.version}"

    def text(self) -> str:
        """Return the package's lines in a lock."""
        file = f" {self.file}" if self.file else ""
        return f"{self}{file} \\\n    --hash=sha256:{self.sha256}\n"


@dataclass(frozen=True)
class Section:
    """The packages pinned for one request, in a lock file; ``asked`` is the request's text from matrix.yaml."""

    kind: str
    name: str
    asked: str
    packages: tuple[PinnedPackage, ...] = ()
    lock: Path = Path()

    @property
    def digest(self) -> str:
        """Digest of the pinned packages, for run.json."""
        return f"sha256:{json_digest([[pin.sha256 for pin in self.packages]])}"

    def text(self) -> str:
        """Return the section's lines in a lock."""
        head = f"# {self.kind}: {self.name}\n# asked: {self.asked}\n"
        return head + "".join(pin.text() for pin in self.packages)


@dataclass(frozen=True)
class Lock:
    """The content of a lock file at ``path``."""

    path: Path
    sections: tuple[Section, ...]

    def find(self, kind: str, name: str, asked: str) -> Section | None:
        """Return the section for exactly this request; None if it is absent or matrix.yaml has changed."""
        section_key = (kind, name, asked)
        return next((s for s in self.sections if (s.kind, s.name, s.asked) == section_key), None)

    def text(self) -> str:
        """Return the text of the file; the same packages always give the same text."""
        return _HEADER + "".join("\n" + section.text() for section in self.sections)


def request_text(words: Iterable[str]) -> str:
    """Return a request as one line, to compare it with a lock."""
    return " ; ".join(plain for word in words if (plain := " ".join(word.split())))


def _logical_lines(text: str) -> Iterable[tuple[int, str]]:
    start, joined = 0, ""
    for number, line in enumerate(text.split("\n"), 1):
        start = start if joined else number
        joined = " ".join(f"{joined} {line}".split())
        if joined.endswith("\\") and not joined.startswith("#"):  # as in pip, comments are not continued
            joined = joined[:-1]
            continue
        yield start, joined
        joined = ""
    if joined:
        yield start, joined


def _parse_pin(line: str, number: int, path: Path) -> PinnedPackage:
    match = _ENTRY.match(line)
    if not match or (match["sep"] == "=") != bool(match["file"]):
        raise InputError(
            f"not a valid lock line: {line[:80]!r} (name==version --hash=sha256:<64 hexadecimal digits>)",
            where=Where(path, number),
            remedy=_RELOCK_REMEDY,
        )
    return PinnedPackage(match["name"], match["version"], match["sha256"], match["file"] or "", path, number)


def parse_lock(text: str, path: Path) -> Lock:
    """Parse the text of a lock. Raises InputError with file and line if it is invalid."""
    sections: list[Section] = []
    for number, line in _logical_lines(text):
        if comment := _COMMENT.match(line):
            if comment["kind"] != "asked":
                sections.append(Section(comment["kind"], comment["value"], "", lock=path))
            elif sections:
                sections[-1] = replace(sections[-1], asked=comment["value"])
        elif line and not line.startswith("#"):
            pin = _parse_pin(line, number, path)
            if not sections:
                message = "a package before the first section"
                raise InputError(message, where=Where(path, number), remedy=_RELOCK_REMEDY)
            sections[-1] = replace(sections[-1], packages=(*sections[-1].packages, pin))
    return Lock(path, tuple(sections))


def read_lock(path: Path) -> Lock | None:
    """Read a lock file; None if it does not exist."""
    try:
        return parse_lock(read_bytes(path, MAX_TEXT_BYTES).decode(), path)
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise InputError(
            "the lock file is not UTF-8 text", where=decode_error_position(error, path), remedy=_RELOCK_REMEDY
        ) from error
    except OSError as error:
        raise InputError(f"cannot read the lock file ({error})", where=Where(path)) from error


def find_section(path: Path, wanted: Section) -> Section | None:
    """Return the section of a lock file for exactly the request of ``wanted``; None if it has none."""
    lock = read_lock(path)
    return lock.find(wanted.kind, wanted.name, wanted.asked) if lock else None
