"""The tables of operators: which ones an environment made faster, by the median of their own time per step.

The profile is a separate pass after the timed part (``profile_steps``). The figures include the profiler's cost and
have no interval: they show which operators changed, not how much an environment gains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from envmatrix.plan import Arm
from envmatrix.report.formatting import format_ratio
from envmatrix.report.tables.plain import PlainTable, TableSection
from envmatrix.stats.arm_facts import ArmFacts
from envmatrix.stats.measurements import Measurements
from envmatrix.stats.metrics import show_seconds

_MOST = 12
#: Operators below this share of the reference's time are noise.
_LEAST_SHARE = 0.005


@dataclass(frozen=True)
class OperatorTable:
    """Operators of the environments that share a reference, most expensive first."""

    reference: Arm
    table: PlainTable

    def section(self, most: int | None = None) -> TableSection:
        """Return the table of the (``most``) expensive operators, with its title and note."""
        arm = self.reference
        return TableSection(
            f"Operators: {arm.workload} on {arm.engine}, speed-up over {arm.environment}",
            PlainTable(self.table.head, self.table.rows[:most]),
            (f"Share and time are those of {arm.environment}. A separate, profiled pass measured them: no intervals.",),
        )


def _medians(facts: ArmFacts) -> dict[str, float]:
    """Return each operator's own seconds per step, the median over the arm's trials (0 for trials without it)."""
    trials = max((len(times) for times in facts.operators.values()), default=0)
    return {name: median([*times, *[0.0] * (trials - len(times))]) for name, times in facts.operators.items()}


def operator_tables(arms: Sequence[Arm], measured: Measurements) -> tuple[OperatorTable, ...]:
    """Return a table for every reference with profiled trials and at least one profiled environment to compare."""
    tables = []
    for reference in arms:
        reference_s = _medians(measured.facts[reference.name])
        others = {
            arm.environment: _medians(measured.facts[arm.name])
            for arm in arms
            if arm.reference == reference.name and not arm.is_control and measured.facts[arm.name].operators
        }
        if not reference_s or not others:
            continue
        total = sum(reference_s.values())
        rows = []
        for name in sorted(reference_s, key=lambda name: -reference_s[name])[:_MOST]:
            seconds = reference_s[name]
            if seconds > _LEAST_SHARE * total:
                ratios = [seconds / times[name] if times.get(name) else None for times in others.values()]
                rows.append((name, f"{seconds / total:.1%}", show_seconds(seconds), *map(format_ratio, ratios)))
        head = ("operator", "share", "time a step", *others)
        tables.append(OperatorTable(reference, PlainTable(head, tuple(rows))))
    return tuple(tables)
