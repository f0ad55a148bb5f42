"""A search that is on disk, shown again."""

from __future__ import annotations

from pathlib import Path

from envmatrix.api.tunes import ANSWER_FILE, TuneResult
from envmatrix.system.atomic_files import read_text
from envmatrix.system.json_text import parse_json


def report_study(folder: Path) -> TuneResult:
    """Write tune.json and report.html of a search again from its trials, and return what it found.

    One that goes on, or that was stopped, claims nothing. Raises InputError where nothing of it was run yet, StoreError
    where its folder cannot be read or written.
    """
    loaded = TuneResult(folder)
    result = loaded if _is_finished(loaded) else TuneResult(folder, interrupted=True)
    result.write()
    return result


def _is_finished(result: TuneResult) -> bool:
    """Say whether a search came to its end: what it wrote there tells of the trials that are on disk now."""
    file = result.folder / ANSWER_FILE
    if not file.exists():
        return False
    document = parse_json(read_text(file), file)
    trial_counts = isinstance(document, dict) and not document.get("interrupted") and document.get("trials")
    return bool(trial_counts == dict(result.answer.phases))
