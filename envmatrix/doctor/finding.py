"""What a check of doctor says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

State = Literal["good", "note", "bad"]


@dataclass(frozen=True)
class Finding:
    """One thing looked at: ``bad`` spoils figures or stops a run, ``note`` is worth knowing."""

    subject: str
    state: State
    found: str
    remedy: str = ""


def read_system_file(path: str, root: Path) -> str:
    """Return what a file of /proc or /sys below ``root`` holds, '' where it cannot be read."""
    try:
        return (root / path.lstrip("/")).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
