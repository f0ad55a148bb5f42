"""Write the report of a search on disk again."""

from __future__ import annotations

from pathlib import Path

from envmatrix.api.tuning.search import ANSWER_FILE, TuneResult
from envmatrix.system.atomic_files import read_text
from envmatrix.system.json_text import parse_json


def report_study(folder: Path) -> TuneResult:
    """Rewrite tune.json and report.html of a search from its trials, and return its result.

    An unfinished search is reported as interrupted, without a conclusion. Raises InputError if none of it was run yet,
    StoreError if its folder cannot be read or written.
    """
    loaded = TuneResult(folder)
    result = loaded if _is_finished(loaded) else TuneResult(folder, interrupted=True)
    result.write()
    return result


def _is_finished(result: TuneResult) -> bool:
    """Return whether a search is finished: its tune.json counts the same trials as are on disk now."""
    file = result.folder / ANSWER_FILE
    if not file.exists():
        return False
    document = parse_json(read_text(file), file)
    trial_counts = isinstance(document, dict) and not document.get("interrupted") and document.get("trials")
    return bool(trial_counts == dict(result.answer.phases))
