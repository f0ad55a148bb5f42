"""The evidence table: what was read back inside the processes, and what differs between environments."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from envmatrix.report.formatting import NONE
from envmatrix.report.summary import Summary
from envmatrix.stats.measurements import EVIDENCE


@dataclass(frozen=True)
class EvidenceTable:
    """``rows`` are (environment, one cell a path); ``common`` the paths with one value in all trials."""

    paths: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    common: tuple[tuple[str, str], ...]


def _cell(values: Counter[str] | None) -> str:
    if not values:
        return NONE
    if len(values) == 1:
        return next(iter(values))
    return ", ".join(f"{value} ({number})" for value, number in values.most_common())


def evidence_table(summary: Summary) -> EvidenceTable:
    """Return the evidence of every arm that has some; what all share is told once."""
    facts = {name: fact.evidence for name, fact in summary.measured.facts.items() if fact.evidence}
    cells = {path: [_cell(evidence.get(path)) for evidence in facts.values()] for path in EVIDENCE}
    shown = [path for path in EVIDENCE if len(set(cells[path])) > 1]
    common = [(path, cells[path][0]) for path in EVIDENCE if len(set(cells[path])) == 1 and cells[path][0] != NONE]
    several = len(summary.groups) > 1
    names = [name if several else name.partition(":")[0] for name in facts]
    rows = [(name, tuple(cells[path][index] for path in shown)) for index, name in enumerate(names)]
    return EvidenceTable(tuple(shown), tuple(rows), tuple(common))
