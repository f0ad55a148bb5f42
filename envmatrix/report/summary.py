"""One Summary of a results folder; every report is made from it and from nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from envmatrix.plan import Arm, Plan
from envmatrix.report.attributed import attributions, ladders
from envmatrix.report.caution import Caution
from envmatrix.report.cautions import find_cautions
from envmatrix.report.engine_table import engine_table
from envmatrix.report.formatting import count, ratio, reference_name
from envmatrix.report.operators import OperatorTable, operator_tables
from envmatrix.report.plain_table import PlainTable
from envmatrix.report.workload_table import workload_table
from envmatrix.stats.analysis import Analysis, estimate
from envmatrix.stats.attribution import Attribution, Rung
from envmatrix.stats.effects import Effect, Flag
from envmatrix.stats.measurements import Measurements, read_measurements
from envmatrix.stats.metrics import MEMORY, Metric
from envmatrix.stats.nodes import NodeReport, compare_nodes
from envmatrix.stats.pairing import group_of
from envmatrix.stats.racing import Race
from envmatrix.store import Run, RunFolder


@dataclass(frozen=True)
class Row:
    """One arm in a table. ``value``, ``memory`` and ``accuracy`` are medians over ok trials, None without any."""

    arm: Arm
    effect: Effect | None
    memory_effect: Effect | None
    value: float | None
    memory: float | None
    outcomes: Mapping[str, int]
    levels: Mapping[str, str]
    description: str
    skipped: str
    accuracy: float | None = None
    reference_value: str = ""


@dataclass(frozen=True)
class Group:
    """All arms of one workload on one engine. ``rows`` are best first, without baseline and control."""

    workload: str
    engine: str
    metric: Metric
    baseline: Row | None
    control: Row | None
    rows: tuple[Row, ...]
    stand_in: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Workload, engine, and the data when they are not the real ones."""
        data = f", data: {', '.join(self.stand_in)} (not the real data set)" if self.stand_in else ""
        return f"{self.workload} on {self.engine}{data}"

    @property
    def best(self) -> Row | None:
        """The fastest environment that is shown to be faster and did equal work."""
        for row in self.rows:
            if row.effect and row.effect.verdict == "faster" and Flag.UNEQUAL_WORK not in row.effect.flags:
                return row
        return None

    @property
    def all_rows(self) -> tuple[Row, ...]:
        """Baseline, the environments best first, then the control."""
        return tuple(row for row in (self.baseline, *self.rows, self.control) if row)

    @property
    def headline(self) -> str:
        """The answer in one sentence, with its interval."""
        best = self.best
        if best and best.effect and self.baseline:
            effect = best.effect
            return (
                f"{best.arm.environment} is {ratio(effect.ratio)} times as fast as "
                f"{reference_name(effect)} (95 % interval {ratio(effect.low)} to {ratio(effect.high)}, "
                f"{count(effect.blocks, 'block')})."
            )
        if not any(row.effect and row.effect.low is not None for row in self.rows):
            return "Too little was measured for any claim."
        return f"No environment is shown to be faster than {self.baseline_name}."

    @property
    def baseline_name(self) -> str:
        """Name of the environment that the others are compared with."""
        return self.baseline.arm.environment if self.baseline else "the baseline"


@dataclass(frozen=True)
class Summary:
    """All that a report says. ``data`` counts trials by data set; ``stand_in`` names those made up."""

    run: Run
    measured: Measurements
    analysis: Analysis
    groups: tuple[Group, ...]
    outcomes: Mapping[str, int]
    data: Mapping[str, int]
    stand_in: tuple[str, ...]
    cautions: tuple[Caution, ...]
    attributions: tuple[Attribution, ...] = ()
    ladders: Mapping[str, tuple[Rung, ...]] = field(default_factory=dict)
    operators: tuple[OperatorTable, ...] = ()
    workload_table: PlainTable | None = None
    engine_table: PlainTable | None = None
    nodes: tuple[NodeReport, ...] = ()

    @property
    def plan(self) -> Plan:
        """The plan of the run."""
        return self.run.plan

    @property
    def race(self) -> Race | None:
        """How the run raced, None where it did not."""
        return self.analysis.race

    @property
    def trials(self) -> int:
        """Number of trials on disk that belong to the plan."""
        return sum(self.outcomes.values())


def _row(arm: Arm, run: Run, measured: Measurements, analysis: Analysis) -> Row:
    metric = analysis.primary[arm.workload]
    entry = run.environments.get(arm.runs)
    return Row(
        arm=arm,
        effect=analysis.find(arm.name),
        memory_effect=analysis.find(arm.name, MEMORY.name),
        value=measured.median(arm.name, metric.name),
        memory=measured.median(arm.name, MEMORY.name),
        outcomes=dict(measured.facts[arm.name].outcomes),
        levels=entry.levels if entry else {},
        description=entry.description if entry else "",
        skipped=run.skipped.get(arm.name, ""),
        accuracy=measured.median(arm.name, "accuracy"),
        reference_value=run.design.reference_values.get(arm.environment, ""),
    )


def _best_first(row: Row) -> tuple[bool, float]:
    value = row.effect.ratio if row.effect else None
    return (value is None, -(value or 0.0))


def stand_in_data(measured: Measurements, arms: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the data sets that were made up because the real one could not be had."""
    facts = [measured.facts[name] for name in arms]
    return tuple(sorted({name for fact in facts if fact.stand_in for name in fact.data}))


def _group(workload: str, engine: str, rows: list[Row], metric: Metric, measured: Measurements) -> Group:
    stand_in = stand_in_data(measured, (row.arm.name for row in rows))
    references = {row.arm.reference for row in rows}
    named = [row for row in rows if row.arm.name in references and not row.arm.is_control]
    baseline = next((row for row in named if row.arm.reference is None), named[0] if named else None)
    control = next((row for row in rows if row.arm.is_control), None)
    others = [row for row in rows if row is not baseline and row is not control]
    return Group(workload, engine, metric, baseline, control, tuple(sorted(others, key=_best_first)), stand_in)


def _groups(run: Run, measured: Measurements, analysis: Analysis) -> tuple[Group, ...]:
    collected: dict[tuple[str, str], list[Row]] = {}
    for arm in run.plan.arms:
        collected.setdefault(group_of(arm, run.plan), []).append(_row(arm, run, measured, analysis))
    return tuple(
        _group(workload, engine, rows, analysis.primary[workload], measured)
        for (workload, engine), rows in collected.items()
    )


def summarise_measured(run: Run, measured: Measurements) -> Summary:
    """Make the Summary of trials already folded."""
    analysis = estimate(run.plan, measured, workloads=run.workloads, environments=run.environments)
    facts = measured.facts.values()
    outcomes = sum((fact.outcomes for fact in facts), Counter[str]())
    return Summary(
        run=run,
        measured=measured,
        analysis=analysis,
        groups=_groups(run, measured, analysis),
        outcomes=dict(outcomes),
        data=dict(sum((fact.data for fact in facts), Counter[str]())),
        stand_in=stand_in_data(measured, measured.facts),
        cautions=find_cautions(run, measured, analysis),
        attributions=attributions(run, measured, analysis),
        ladders=ladders(run, measured, analysis),
        operators=operator_tables(run.plan.arms, measured),
        workload_table=workload_table(run.plan, measured),
        engine_table=engine_table(run.plan, measured, analysis),
        nodes=compare_nodes(run.plan, measured, analysis.primary),
    )


def summarise(folder: RunFolder) -> Summary:
    """Read a results folder, finished or not, and summarise it. Raises StoreError when unreadable."""
    run = folder.load()
    return summarise_measured(run, read_measurements(folder, run.plan))
