"""One Summary of a results folder; every report is made from it and from nothing else."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from envmatrix.plan import Arm, Plan
from envmatrix.report.attributed import attributions, cumulative
from envmatrix.report.caution import Caution
from envmatrix.report.cautions import find_cautions
from envmatrix.report.engine_table import engine_table
from envmatrix.report.formatting import bounds, count, listed, percent, reference_name, sure_ratio
from envmatrix.report.operators import OperatorTable, operator_tables
from envmatrix.report.own_table import own_table
from envmatrix.report.plain_table import PlainTable
from envmatrix.report.shown import (
    barred,
    busy_machine,
    explained,
    is_faster_by_little,
    of_control,
    percent_of,
    under_quota,
    why_recommended,
    without_contention,
)
from envmatrix.report.start_table import start_cautions, start_table
from envmatrix.report.workload_table import workload_table
from envmatrix.stats.analysis import Analysis, estimate
from envmatrix.stats.attribution import Attribution, CumulativeStep
from envmatrix.stats.contention import quota_around
from envmatrix.stats.effects import Effect
from envmatrix.stats.equal_work import unchecked, unstable_checks
from envmatrix.stats.failures import BROKEN
from envmatrix.stats.longrun import told_short
from envmatrix.stats.measurements import Measurements, read_measurements
from envmatrix.stats.metrics import MEMORY, Metric
from envmatrix.stats.nodes import NodeReport, compare_nodes
from envmatrix.stats.pairing import group_of
from envmatrix.stats.racing import Race
from envmatrix.stats.selection import Choice, choose
from envmatrix.stats.slow_trials import SlowTrials, described
from envmatrix.stats.starts import Start, starts, told_first
from envmatrix.store import Run, RunFolder, Trial
from envmatrix.units import QUIET_FIRST


@dataclass(frozen=True)
class Row:
    """One arm in a table, of its ok trials; None without any.

    ``value`` is the geometric mean, of which the speed-up is made; ``median``, ``memory`` and ``accuracy`` are medians.
    ``cv`` is the standard deviation of its values over their mean; ``slow`` is None where no trial is slow.
    ``disturbed`` is the share of the time that its threads could have run in which they had no CPU.
    """

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
    median: float | None = None
    cv: float | None = None
    slow: SlowTrials | None = None
    disturbed: float | None = None


@dataclass(frozen=True)
class Group:
    """All arms of one workload on one engine. ``rows`` are best first, without baseline and its second copies.

    ``alone`` are the copies of references that take no turns, for the environments that take none either.

    ``choice`` is the best set and which of it is recommended, None where none is shown to be faster.
    """

    workload: str
    engine: str
    metric: Metric
    baseline: Row | None
    control: Row | None
    rows: tuple[Row, ...]
    alone: tuple[Row, ...] = ()
    stand_in: tuple[str, ...] = ()
    choice: Choice | None = None
    unchecked: bool = False
    short: str = ""
    first: str = ""
    quota: str = ""
    margin: float = 0.03

    @property
    def title(self) -> str:
        """Workload, engine, and the data when they are not the real ones."""
        data = f", data: {', '.join(self.stand_in)} (not the real data set)" if self.stand_in else ""
        return f"{self.workload} on {self.engine}{data}"

    @property
    def best(self) -> Row | None:
        """The recommended environment: of the best set, shown to be faster, and simple."""
        return next((row for row in self.rows if self.choice and row.arm.name == self.choice.arm), None)

    @property
    def best_set(self) -> tuple[str, ...]:
        """The environments of which none is shown to be worse than another, the fastest first."""
        names = {row.arm.name: row.arm.environment for row in self.rows}
        return tuple(names[arm] for arm in self.choice.best_set) if self.choice else ()

    @property
    def all_rows(self) -> tuple[Row, ...]:
        """Baseline, the environments best first, then the second copies of the baseline."""
        return tuple(row for row in (self.baseline, *self.rows, self.control, *self.alone) if row)

    @property
    def headline(self) -> str:
        """The answer: who is recommended, and what it gains with that choice allowed for, with what weakens it."""
        best = self.best.effect if self.best else None
        effects = [row.effect for row in self.rows if row.effect]
        control, gain = self.control.effect if self.control else None, self.choice.gain if self.choice else 1.0
        busy, answer = busy_machine(effects, best, self.baseline_name), self._answer
        if busy and not best:
            answer = f"{answer[0].lower()}{answer[1:]} {QUIET_FIRST[0].upper()}{QUIET_FIRST[1:]}."
        doubt = of_control(control, best, gain, self.baseline_name)
        return "".join((self.quota, busy, answer, doubt, " Equal work not checked." if self.unchecked else ""))

    @property
    def _answer(self) -> str:
        best = self.best
        if best and best.effect and self.baseline and self.choice:
            effect = best.effect
            own = {row.arm.name for row in (self.baseline, *self.alone)}
            reference = self.baseline_name if effect.reference in own else reference_name(effect)
            return (
                f"{best.arm.environment} is {sure_ratio(self.choice.gain)} times "
                f"{self.metric.as_fast_as(reference)}, its choice allowed for (95 % interval "
                f"{bounds(effect.low, effect.high)}, {count(effect.blocks, 'block')})."
                + (f" {best.slow} than its others." if best.slow else "")
                + without_contention(effect)
            )
        if not any(row.effect for row in self.rows):
            return f"Nothing was compared with {self.baseline_name}."
        if not any(row.effect and row.effect.low is not None for row in self.rows):
            return self._unknown
        effects = [row.effect for row in self.rows if row.effect]
        conditions, reasons = barred(effects)
        small = [effect.environment for effect in effects if is_faster_by_little(effect)]
        little = " by more than the design's margin" if small else ""
        reasons += [f"{', '.join(small)} {'is' if len(small) == 1 else 'are'} by less"] if small else []
        held = explained(effects, self.metric.as_fast_as(self.baseline_name))
        reasons += [held] if held else []
        also = "".join(f"{', and' if number else ' and'} {text}" for number, text in enumerate(conditions))
        said = f": {'; '.join(reasons)}" if reasons else ""
        faster = self.metric.said("faster")
        return f"No environment is shown to be {faster} than {self.baseline_name}{little}{also}{said}."

    @property
    def _unknown(self) -> str:
        """Why nothing can be said of any environment."""
        if self.baseline and _never_well(self.baseline):
            return f"Nothing can be compared with {self.baseline_name}: no trial of it ended well."
        if all(map(_never_well, self.rows)):
            return f"Nothing can be said: no trial of {', '.join(row.arm.environment for row in self.rows)} ended well."
        return "Too little was measured for any claim."

    @property
    def best_set_sentence(self) -> str:
        """What is said of the best set; '' where it is what is recommended, or nothing is."""
        best, choice = self.best, self.choice
        if not best or not choice or choice.best_set == (choice.arm,):
            return ""
        several = " (tied: none is shown to be worse)" if len(self.best_set) > 1 else ""
        return (
            f"Best set: {', '.join(self.best_set)}{several}; {best.arm.environment} is recommended, "
            f"{why_recommended(choice, self.metric.said('faster'), self.margin)}.{self._ahead(choice)}"
        )

    def _ahead(self, choice: Choice) -> str:
        """Say what choosing the recommended one may cost; '' if it measured best."""
        if not choice.ahead or choice.ahead[1] <= 1.0:
            return ""
        name, lead = choice.ahead
        faster = next(row.arm.environment for row in self.rows if row.arm.name == name)
        slower = self.metric.said("slower")
        share = math.ceil(1000 * (1.0 - 1.0 / lead)) / 1000
        return f" For all that is known it may be up to {percent_of(share)} {slower} than {faster}."

    @property
    def sentences(self) -> tuple[str, ...]:
        """What is said below the headline."""
        claims = any(row.effect and row.effect.low is not None for row in self.rows)
        limits = (self.short, self.first) if claims else ()
        return tuple(text for text in (self.best_set_sentence, *limits) if text)

    @property
    def baseline_name(self) -> str:
        """Name of the environment that the others are compared with, and its workload where theirs differ."""
        if not self.baseline:
            return "the baseline"
        name = self.baseline.arm.environment
        return f"{name} ({self.workload})" if self.several_workloads else name

    @property
    def several_workloads(self) -> bool:
        """Whether some rows are workloads beside the reference's: programs are compared, not environments alone."""
        return any(row.arm.workload != self.workload for row in self.rows)


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
    cumulative: Mapping[str, tuple[CumulativeStep, ...]] = field(default_factory=dict)
    operators: tuple[OperatorTable, ...] = ()
    workload_table: PlainTable | None = None
    engine_table: PlainTable | None = None
    own_table: PlainTable | None = None
    nodes: tuple[NodeReport, ...] = ()
    starts: tuple[Start, ...] = ()
    start_table: PlainTable | None = None

    @property
    def plan(self) -> Plan:
        """The plan of the run."""
        return self.run.plan

    @property
    def took_turns(self) -> bool:
        """Whether any trial did."""
        turns = self.run.design.schedule == "turns"
        return turns and any(fact.in_turns for fact in self.measured.facts.values())

    @property
    def schedule(self) -> str:
        """How trials took turns, '' where one was run after the other."""
        design, facts = self.run.design, self.measured.facts.values()
        if design.schedule == "sequential":
            return ""
        turns, most = sum(fact.in_turns for fact in facts), max((fact.together for fact in facts), default=0)
        beside = any(fact.in_one_go for fact in facts)
        if not turns:
            how = f"each trial took its steps in one go, {most} processes alive at once"
            return f"turns were asked for, but {how if beside else 'one trial ran after the other'}"
        parted = sum(fact.in_waves for fact in facts)
        smaller = f"; {parted} of them in smaller groups, each with its reference, for want of memory" if parted else ""
        own = ", ".join(dict.fromkeys(arm.environment for arm in self.plan.arms if arm.is_alone))
        against = f" and against {own}" if own else ""
        works = {arm.workload for arm in self.plan.arms if self.measured.facts[arm.name].in_turns}
        kinds = {own is None or own.tells_steps for own in map(self.run.workloads.get, works)}
        steps = f"{design.turn} timed steps and {design.turn_apart} before them"
        length = {True: steps, False: f"{design.turn / 10:g} s"}
        long = " or ".join(length[kind] for kind in sorted(kinds, reverse=True))
        others = f", the others {'in one go' if beside else 'one after the other'}{against}"
        which = f"{turns} of {self.trials} trials{others if turns < self.trials else ''}"
        return f"turns of {long}, {most} processes alive at once; {which}{smaller}"

    @property
    def race(self) -> Race | None:
        """How the run raced, None where it did not."""
        return self.analysis.race

    @property
    def looks_sentence(self) -> str:
        """What several looks at a run cost; '' where this is the first."""
        *before, _ = looks = self.analysis.looks
        if not before:
            return ""
        return (
            f"It was read before, after {listed(before)} blocks: intervals are computed at "
            f"{percent(self.analysis.level)}, so that all {len(looks)} looks together err in 5 % of runs at most."
        )

    @property
    def race_sentence(self) -> str:
        """Which arms left a race, and why; '' where none did."""
        if not self.race or not self.race.stopped:
            return ""
        several = len(self.groups) > 1
        names = {arm.name: arm.shown if several else arm.environment for arm in self.plan.arms}
        left = (f"{names[item.arm]} after {item.block} blocks ({item.reason})" for item in self.race.stopped)
        return f"Left the race: {', '.join(left)}. What left is given at a confidence above 95 %."

    @property
    def processors(self) -> str:
        """Which processors the trials saw, else what is known of the machine; '' where neither is."""
        seen = {name for facts in self.measured.facts.values() for name in facts.evidence.get("cpu.model", ())}
        return ", ".join(sorted(seen)) or self.run.host.cpu_model or ""

    @property
    def trials(self) -> int:
        """Number of trials on disk that belong to the plan."""
        return sum(self.outcomes.values())


def _row(arm: Arm, run: Run, measured: Measurements, analysis: Analysis, slow: Mapping[str, SlowTrials]) -> Row:
    metric = analysis.primary[arm.workload]
    entry = run.environments.get(arm.runs)
    return Row(
        arm=arm,
        effect=analysis.find(arm.name),
        memory_effect=analysis.find(arm.name, MEMORY.name),
        value=measured.mean(arm.name, metric.name),
        median=measured.median(arm.name, metric.name),
        memory=measured.median(arm.name, MEMORY.name),
        outcomes=dict(measured.facts[arm.name].outcomes),
        levels=entry.levels if entry else {},
        description=entry.description if entry else "",
        skipped=run.skipped.get(arm.name, ""),
        accuracy=measured.median(arm.name, "accuracy"),
        cv=measured.cv(arm.name, metric.name),
        disturbed=measured.usually_disturbed(arm.name),
        slow=slow.get(arm.name),
        reference_value=run.design.reference_values.get(arm.environment, ""),
    )


def _best_first(row: Row) -> tuple[bool, float]:
    value = row.effect.ratio if row.effect else None
    return (value is None, -(value or 0.0))


def stand_in_data(measured: Measurements, arms: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the data sets that were made up because the real one could not be had."""
    facts = [measured.facts[name] for name in arms]
    return tuple(sorted({name for fact in facts if fact.stand_in for name in fact.data}))


def _never_well(row: Row) -> bool:
    """Whether trials of an arm ran, and not one of them ended well."""
    return not row.outcomes.get("ok") and any(row.outcomes.get(name) for name in BROKEN)


def _group(workload: str, engine: str, rows: list[Row], run: Run, measured: Measurements, analysis: Analysis) -> Group:
    stand_in = stand_in_data(measured, (row.arm.name for row in rows))
    references = {row.arm.reference for row in rows}
    named = [row for row in rows if row.arm.name in references and not row.arm.is_control]
    baseline = next((row for row in named if row.arm.reference is None), named[0] if named else None)
    control = next((row for row in rows if row.arm.is_control), None)
    alone = tuple(row for row in rows if row.arm.is_alone)
    others = [row for row in rows if row not in (baseline, control, *alone)]
    choice = choose(analysis, measured, [row.arm for row in others], run.environments)
    metric, ranked = analysis.primary[workload], tuple(sorted(others, key=_best_first))
    own = run.workloads.get(workload)
    first = told_first(baseline.arm, measured, own) if baseline and own else ""
    return Group(
        workload, engine, metric, baseline, control, ranked, alone, stand_in, choice,
        unchecked(own, unstable_checks(measured, run.plan, workload)),
        told_short(measured.apart), first, under_quota(quota_around(run, measured)), run.plan.margin,
    )  # fmt: skip


def _groups(run: Run, measured: Measurements, analysis: Analysis) -> tuple[Group, ...]:
    collected: dict[tuple[str, str], list[Row]] = {}
    slow = described(run.plan, measured, analysis.primary, analysis.slow)
    for arm in run.plan.arms:
        collected.setdefault(group_of(arm, run.plan), []).append(_row(arm, run, measured, analysis, slow))
    return tuple(
        _group(workload, engine, rows, run, measured, analysis) for (workload, engine), rows in collected.items()
    )


def summarise_measured(run: Run, measured: Measurements, looks: Iterable[Trial] = ()) -> Summary:
    """Make the Summary of trials already folded, and of long looks."""
    found = starts(run.plan.arms, measured, run.workloads, looks)
    analysis = estimate(run.plan, measured, workloads=run.workloads, environments=run.environments)
    facts = measured.facts.values()
    outcomes = sum((fact.outcomes for fact in facts), Counter[str]())
    groups = _groups(run, measured, analysis)
    recommended = [group.choice.arm for group in groups if group.choice]
    return Summary(
        run=run,
        measured=measured,
        analysis=analysis,
        groups=groups,
        outcomes=dict(outcomes),
        data=dict(sum((fact.data for fact in facts), Counter[str]())),
        stand_in=stand_in_data(measured, measured.facts),
        cautions=(*find_cautions(run, measured, analysis), *start_cautions(found)),
        attributions=attributions(run, measured, analysis, recommended),
        cumulative=cumulative(run, measured, analysis),
        operators=operator_tables(run.plan.arms, measured),
        workload_table=workload_table(run.plan, measured),
        engine_table=engine_table(run.plan, measured, analysis),
        own_table=own_table(run, measured, analysis),
        nodes=compare_nodes(run.plan, measured, analysis.primary),
        starts=found,
        start_table=start_table(found),
    )


def summarise(folder: RunFolder) -> Summary:
    """Read a results folder, finished or not, and summarise it. Raises StoreError when unreadable."""
    run = folder.load()
    return summarise_measured(run, read_measurements(folder, run.plan), folder.looks(run.plan))
