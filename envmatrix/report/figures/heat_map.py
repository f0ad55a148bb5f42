"""The heat map: environments by workloads and engines."""

from __future__ import annotations

import math
from dataclasses import dataclass

from envmatrix.report.report_data import Summary
from envmatrix.stats.effects import DISQUALIFYING_FLAGS, Effect


@dataclass(frozen=True)
class HeatMap:
    """``rows`` are (environment, effect or None per column); ``columns`` are the workloads and engines."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Effect | None, ...]], ...]


def heat_map(summary: Summary) -> HeatMap | None:
    """Return environments by workloads, best mean first; None for one group, or for baselines only."""
    names = dict.fromkeys(row.arm.environment for group in summary.groups for row in group.rows)
    if len(summary.groups) < 2 or not names:
        return None
    effects = {(row.arm.environment, n): row.effect for n, group in enumerate(summary.groups) for row in group.rows}
    columns = tuple(f"{group.workload} on {group.engine}" for group in summary.groups)
    rows = [(name, tuple(effects.get((name, n)) for n in range(len(columns)))) for name in names]
    return HeatMap(columns, tuple(sorted(rows, key=_mean_gain)))


def _mean_gain(row: tuple[str, tuple[Effect | None, ...]]) -> float:
    gains = [effect.ratio for effect in row[1] if effect and effect.ratio]
    return -sum(gains) / len(gains) if gains else 0.0


def heat_style(effect: Effect) -> str:
    """Return the style of a cell: green or red, stronger the further from 1; disqualified cells have no colour."""
    if not DISQUALIFYING_FLAGS.isdisjoint(effect.flags):
        return "color:var(--soft)"
    # Stronger colours would leave the text of the dark page less contrast than 4.5:1 (WCAG 2.2, 1.4.3).
    share = round(min(45.0, 160.0 * abs(math.log(effect.ratio or 1.0))))
    colour = "good" if (effect.ratio or 1.0) >= 1.0 else "bad"
    return f"background:color-mix(in srgb,var(--{colour}) {share}%,transparent)"
