"""Map environment variables to the libraries that read them: without its reader a setting has no effect."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import yaml

#: Start of a message that nothing in the process reads a setting.
NOT_IN_EFFECT = "not in effect: "


class PresenceTest(Enum):
    """What, besides the mapped libraries, decides whether a reader is present."""

    OPENMP = "the runtime in use, and those with running threads"
    MALLOC = "the library that provides malloc"
    MKL = "PyTorch may contain it"
    ONEDNN = "PyTorch may contain it, too"
    INDUCTOR = "something was compiled"
    GPU = "there is a GPU"
    MAPPED = "nothing else"


@dataclass(frozen=True)
class Reader:
    """A library that reads variables: its common ``name``, and parts of the paths of its files."""

    name: str
    libraries: tuple[str, ...]
    presence_test: PresenceTest = PresenceTest.MAPPED


def _read_readers() -> dict[str, Reader | None]:
    """Return name prefix -> reader; the longest matching prefix wins. None: every process reads it."""
    readers: dict[str, Reader | None] = {}
    for entry in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")):
        test = PresenceTest[entry.get("present", "MAPPED")]
        reader = Reader(entry["name"], tuple(entry["libraries"]), test) if "name" in entry else None
        readers |= dict.fromkeys(entry["prefixes"], reader)
    return readers


_READERS = _read_readers()


def has_known_reader(name: str) -> bool:
    """Return whether the reader of a variable is known."""
    return _longest_prefix(name) is not None


def find_reader(name: str) -> Reader | None:
    """Return the reader of a variable; None if every process reads it, or if it is unknown."""
    return _READERS.get(_longest_prefix(name) or "")


def _longest_prefix(name: str) -> str | None:
    return max((start for start in _READERS if name.startswith(start)), key=len, default=None)
