"""A search that is on disk, shown again."""

from __future__ import annotations

from pathlib import Path

from envmatrix.api.tunes import TOLD, TuneResult
from envmatrix.results.json_text import json_of
from envmatrix.system.atomic_files import read_text


def report_study(folder: Path) -> TuneResult:
    """Write tune.json and report.html of a search again from its trials, and return what it found.

    One that goes on, or that was stopped, claims nothing. Raises InputError where nothing of it was run yet, StoreError
    where its folder cannot be read or written.
    """
    over = TuneResult(folder)
    result = over if _is_over(over) else TuneResult(folder, interrupted=True)
    result.write()
    return result


def _is_over(result: TuneResult) -> bool:
    """Say whether a search came to its end: what it wrote there tells of the trials that are on disk now."""
    file = result.folder / TOLD
    if not file.exists():
        return False
    told = json_of(read_text(file), file)
    found = isinstance(told, dict) and not told.get("interrupted") and told.get("trials")
    return bool(found == dict(result.answer.phases))
