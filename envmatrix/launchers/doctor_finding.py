"""The finding of one ``envmatrix doctor`` check, and the reader of system files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

State = Literal["good", "note", "bad"]


@dataclass(frozen=True)
class Finding:
    """The result of one check: ``bad`` distorts timings or stops a run, ``note`` is for information."""

    subject: str
    state: State
    found: str
    remedy: str = ""


def good(subject: str, found: str) -> Finding:
    """Return that something is as it should be."""
    return Finding(subject, "good", found)


def note(subject: str, found: str, remedy: str = "") -> Finding:
    """Return something to know."""
    return Finding(subject, "note", found, remedy)


def bad(subject: str, found: str, remedy: str = "") -> Finding:
    """Return something that distorts timings or stops a run."""
    return Finding(subject, "bad", found, remedy)


def read_system_file(path: str, root: Path) -> str:
    """Return the text of a file of /proc or /sys below ``root``, '' if it cannot be read."""
    try:
        return (root / path.lstrip("/")).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
