"""Scaling: the efficiency of more processes, from the effects of a factor called ``processes``."""

from __future__ import annotations

from envmatrix.report.group import Group, Row

FACTOR = "processes"


def _process_count(row: Row | None) -> int | None:
    text = row.levels.get(FACTOR, "") if row else ""
    return int(text) if text.isdecimal() and int(text) else None


def _other_levels(row: Row) -> dict[str, str]:
    return {factor: level for factor, level in row.levels.items() if factor != FACTOR}


def scaling_sentence(group: Group) -> str | None:
    """Return the efficiency of each number of processes as one line, None if it does not vary.

    Rows count that differ from the baseline only in their number of processes. Efficiency is the speed-up divided by
    the number of processes for each of the baseline's.
    """
    base, baseline = _process_count(group.baseline), group.baseline
    if base is None or baseline is None:
        return None
    rows = [(_process_count(row) or base, row) for row in group.rows if _other_levels(row) == _other_levels(baseline)]
    parts = [
        f"{count} process{'' if count == 1 else 'es'} {_efficiency(row, base / count)}"
        for count, row in sorted(rows, key=lambda item: item[0])
        if count != base
    ]
    return f"efficiency (speed-up per process, {base} is 100 %): " + ", ".join(parts) if parts else None


def _efficiency(row: Row, share: float) -> str:
    effect = row.effect
    if effect is None or effect.ratio is None:
        return "not measured"
    text = f"{effect.ratio * share:.0%}"
    if effect.low is None or effect.high is None:
        return text
    return f"{text} [{effect.low * share:.0%}, {effect.high * share:.0%}]"
