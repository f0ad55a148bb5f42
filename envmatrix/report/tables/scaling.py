"""Scaling: the efficiency of more processes, from the effects of a factor called ``processes``."""

from __future__ import annotations

from dataclasses import dataclass

from envmatrix.report.group import Group, Row

FACTOR = "processes"


@dataclass(frozen=True)
class Scaling:
    """One row's number of processes and its efficiency relative to the baseline.

    ``efficiency`` is speed-up / (processes / the baseline's processes): 1 is perfect. ``low`` and ``high`` are its 95 %
    interval. All three are None without an effect.
    """

    environment: str
    processes: int
    efficiency: float | None
    low: float | None
    high: float | None


def _process_count(row: Row | None) -> int | None:
    text = row.levels.get(FACTOR, "") if row else ""
    return int(text) if text.isdecimal() and int(text) else None


def _other_levels(row: Row) -> dict[str, str]:
    return {factor: level for factor, level in row.levels.items() if factor != FACTOR}


def scaling(group: Group) -> tuple[Scaling, ...]:
    """Return the rows that differ from the baseline only in their number of processes, fewest first."""
    base = _process_count(group.baseline)
    if base is None or group.baseline is None:
        return ()
    scaling_rows = []
    for row in group.rows:
        count = _process_count(row)
        if count is None or count == base or _other_levels(row) != _other_levels(group.baseline):
            continue
        effect = row.effect
        values = (effect.ratio, effect.low, effect.high) if effect else (None, None, None)
        share = [None if value is None else value * base / count for value in values]
        scaling_rows.append(Scaling(row.arm.environment, count, *share))
    return tuple(sorted(scaling_rows, key=lambda item: item.processes))


def scaling_sentence(group: Group) -> str | None:
    """Return the efficiencies as one line, None if the number of processes does not vary."""
    rows = scaling(group)
    if not rows:
        return None
    parts = [f"{row.processes} process{'' if row.processes == 1 else 'es'} {_share(row)}" for row in rows]
    return f"efficiency (speed-up per process, {_process_count(group.baseline)} is 100 %): " + ", ".join(parts)


def _share(row: Scaling) -> str:
    if row.efficiency is None:
        return "not measured"
    text = f"{row.efficiency:.0%}"
    return text if row.low is None or row.high is None else f"{text} [{row.low:.0%}, {row.high:.0%}]"
