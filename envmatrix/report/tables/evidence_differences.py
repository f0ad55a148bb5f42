"""The evidence table: values verified at run time inside the processes, and how environments differ."""

from __future__ import annotations

from collections import Counter

from envmatrix.plan import shown_name
from envmatrix.report.formatting import NONE
from envmatrix.report.report_data import Summary
from envmatrix.stats.evidence_text_cache import EVIDENCE


def _cell(values: Counter[str] | None) -> str:
    if not values:
        return NONE
    if len(values) == 1:
        return next(iter(values))
    return ", ".join(f"{value} ({number})" for value, number in values.most_common())


def differing_and_shared_evidence(summary: Summary) -> tuple[dict[str, dict[str, list[str]]], dict[str, str]]:
    """Return path -> value -> its environments where values differ, and path -> value of what all arms share.

    There is one row per value, so that the width of the table does not depend on the number of arms.
    """
    facts = {name: fact.evidence for name, fact in summary.measured.facts.items() if fact.evidence}
    several = len(summary.groups) > 1
    differs: dict[str, dict[str, list[str]]] = {}
    common: dict[str, str] = {}
    for path in EVIDENCE:
        names_by_value: dict[str, list[str]] = {}
        for name, evidence in facts.items():
            label = shown_name(name) if several else name.partition(":")[0]
            names_by_value.setdefault(_cell(evidence.get(path)), []).append(label)
        if len(names_by_value) > 1:
            differs[path] = names_by_value
        elif names_by_value and NONE not in names_by_value:
            common[path] = next(iter(names_by_value))
    return differs, common
