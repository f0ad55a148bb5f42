"""The tables of operators: which ones an environment made faster, by the median of their own time per step.

The profile is a separate pass after the timed part (``profile_steps``). The figures include the profiler's cost and
have no interval: they show which operators changed, not how much an environment gains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from envmatrix.plan import Arm
from envmatrix.report.formatting import format_ratio
from envmatrix.report.tables.plain import PlainTable
from envmatrix.stats.arm_facts import ArmFacts
from envmatrix.stats.measurements import Measurements
from envmatrix.stats.metrics import show_seconds

_MOST = 12
#: Operators below this share of the reference's time are noise.
_LEAST_SHARE = 0.005


@dataclass(frozen=True)
class OperatorRow:
    """One operator.

    ``share`` is its fraction of the reference's time, ``reference_s`` the reference's own seconds per step.
    ``speedups`` are by environment (None: it did not run there).
    """

    name: str
    share: float
    reference_s: float
    speedups: Mapping[str, float | None]


@dataclass(frozen=True)
class OperatorTable:
    """Operators of the environments that share ``reference``, most expensive first."""

    workload: str
    engine: str
    reference: str
    environments: tuple[str, ...]
    rows: tuple[OperatorRow, ...]

    @property
    def title(self) -> str:
        """Return the heading of the table."""
        return f"Operators: {self.workload} on {self.engine}, speed-up over {self.reference}"

    @property
    def note(self) -> str:
        """Return the note below the table."""
        return f"Share and time are those of {self.reference}. A separate, profiled pass measured them: no intervals."

    def table(self, most: int = _MOST) -> PlainTable:
        """Return the ``most`` expensive operators as texts."""
        head = ("operator", "share", "time a step", *self.environments)
        rows = (
            (
                row.name,
                f"{row.share:.1%}",
                show_seconds(row.reference_s),
                *(format_ratio(row.speedups[name]) for name in self.environments),
            )
            for row in self.rows[:most]
        )
        return PlainTable(head, tuple(rows))


def _medians(facts: ArmFacts) -> dict[str, float]:
    """Return each operator's own seconds per step, the median over the arm's trials (0 for trials without it)."""
    trials = max((len(times) for times in facts.operators.values()), default=0)
    return {name: median([*times, *[0.0] * (trials - len(times))]) for name, times in facts.operators.items()}


def operator_tables(arms: Sequence[Arm], measured: Measurements) -> tuple[OperatorTable, ...]:
    """Return a table for every reference with profiled trials and at least one profiled environment to compare."""
    tables = []
    for reference in arms:
        reference_medians = _medians(measured.facts[reference.name])
        others = {
            arm.environment: _medians(measured.facts[arm.name])
            for arm in arms
            if arm.reference == reference.name and not arm.is_control and measured.facts[arm.name].operators
        }
        if reference_medians and others:
            table = OperatorTable(
                reference.workload,
                reference.engine,
                reference.environment,
                tuple(others),
                _rows(reference_medians, others),
            )
            tables.append(table)
    return tuple(tables)


def _rows(reference_medians: Mapping[str, float], others: Mapping[str, Mapping[str, float]]) -> tuple[OperatorRow, ...]:
    total = sum(reference_medians.values())
    costly = sorted(
        (name for name in reference_medians if reference_medians[name] > _LEAST_SHARE * total),
        key=lambda name: -reference_medians[name],
    )
    return tuple(
        OperatorRow(
            name,
            reference_medians[name] / total,
            reference_medians[name],
            {who: reference_medians[name] / times[name] if times.get(name) else None for who, times in others.items()},
        )
        for name in costly[:_MOST]
    )
