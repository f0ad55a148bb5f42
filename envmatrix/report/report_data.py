"""The Summary of a results folder; every report is made from it alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from envmatrix.plan import Plan
from envmatrix.report.attribution import attributions, cumulative
from envmatrix.report.formatting import format_confidence, list_numbers
from envmatrix.report.group import Group, Row
from envmatrix.report.headline import under_quota
from envmatrix.report.tables.further import FurtherTable, OperatorTable, further_tables, operator_tables
from envmatrix.report.tables.starts import start_warnings
from envmatrix.report.warning import RunWarning, merge_warnings_by_cause
from envmatrix.report.warnings import find_warnings
from envmatrix.results import Run, RunFolder, Trial
from envmatrix.stats.attribution.explanation import explain
from envmatrix.stats.attribution.main_effects import Attribution, CumulativeStep
from envmatrix.stats.best_environment import choose_best_set
from envmatrix.stats.cost import CostReader
from envmatrix.stats.effect_estimation import Analysis, estimate
from envmatrix.stats.effects import Flag
from envmatrix.stats.inference.standard_errors import slow_phases_note
from envmatrix.stats.measurements import Measurements, read_measurements
from envmatrix.stats.metrics import MEMORY
from envmatrix.stats.nodes import NodeReport, compare_nodes
from envmatrix.stats.pairing import table_identity
from envmatrix.stats.quality.contention import outer_quota
from envmatrix.stats.quality.equal_work import unchecked, unstable_checks
from envmatrix.stats.quality.slow_trials import describe_slow_trials
from envmatrix.stats.steady_state.effect import steady_effects, which_steps_text
from envmatrix.stats.steady_state.startup import Start, only_first_seconds_note, starts
from envmatrix.stats.stopping.racing import Race
from envmatrix.system.verdict_and_warning_terms import explained_topics


@dataclass(frozen=True)
class Summary:
    """All data of a report. ``data`` counts trials by data set; ``stand_in`` names generated data sets."""

    run: Run
    measured: Measurements
    analysis: Analysis
    groups: tuple[Group, ...]
    outcomes: Mapping[str, int]
    data: Mapping[str, int]
    stand_in: tuple[str, ...]
    cautions: tuple[RunWarning, ...]
    attributions: tuple[Attribution, ...] = ()
    cumulative: Mapping[str, tuple[CumulativeStep, ...]] = field(default_factory=dict)
    operators: tuple[OperatorTable, ...] = ()
    tables: Mapping[str, FurtherTable] = field(default_factory=dict)
    nodes: tuple[NodeReport, ...] = ()
    starts: tuple[Start, ...] = ()

    @property
    def plan(self) -> Plan:
        """The plan of the run."""
        return self.run.plan

    @property
    def took_turns(self) -> bool:
        """Whether any trials were interleaved."""
        turns = self.run.design.schedule == "turns"
        return turns and any(fact.in_turns for fact in self.measured.facts.values())

    @property
    def schedule(self) -> str:
        """How trials were interleaved, '' for a sequential design."""
        design, facts = self.run.design, self.measured.facts.values()
        if design.schedule == "sequential":
            return ""
        turns, most_together = sum(fact.in_turns for fact in facts), max((fact.together for fact in facts), default=0)
        has_uninterrupted = any(fact.in_one_go for fact in facts)
        if not turns:
            how = f"each trial ran uninterrupted, {most_together} processes alive at once"
            return f"interleaving was requested, but {how if has_uninterrupted else 'one trial ran after the other'}"
        batched = sum(fact.in_waves for fact in facts)
        smaller = (
            f"; {batched} of them in smaller groups, each with its reference, as memory was short" if batched else ""
        )
        own = ", ".join(dict.fromkeys(arm.environment for arm in self.plan.arms if arm.is_uninterrupted_copy))
        against = f" and against {own}" if own else ""
        works = {arm.workload for arm in self.plan.arms if self.measured.facts[arm.name].in_turns}
        kinds = {own is None or own.tells_steps for own in map(self.run.workloads.get, works)}
        steps = f"{design.turn} timed steps and {design.turn_apart} before them"
        length = {True: steps, False: f"{design.turn / 10:g} s"}
        long = " or ".join(length[kind] for kind in sorted(kinds, reverse=True))
        others = f", the others {'uninterrupted' if has_uninterrupted else 'one after the other'}{against}"
        which = f"{turns} of {self.trials} trials{others if turns < self.trials else ''}"
        return f"turns of {long}, {most_together} processes alive at once; {which}{smaller}"

    @property
    def race(self) -> Race | None:
        """The race of the run, None without one."""
        return self.analysis.race

    @property
    def looks_sentence(self) -> str:
        """The effect of repeated interim analyses on the intervals; '' for the first analysis."""
        *before, _ = looks = self.analysis.looks
        if not before:
            return ""
        return (
            f"This run was analysed before, after {list_numbers(before)} blocks: intervals are computed at "
            f"{format_confidence(self.analysis.level)}, so that all {len(looks)} analyses together are wrong in 5 % of "
            "runs at most."
        )

    @property
    def race_sentence(self) -> str:
        """The environments that left a race, with reasons; '' if none did."""
        if not self.race or not self.race.stopped:
            return ""
        several = len(self.groups) > 1
        names = {arm.name: arm.shown if several else arm.environment for arm in self.plan.arms}
        stopped_texts = (f"{names[item.arm]} after {item.block} blocks ({item.reason})" for item in self.race.stopped)
        return f"Dropped from the race: {', '.join(stopped_texts)}. Their intervals have a confidence above 95 %."

    @property
    def processors(self) -> str:
        """The processors that trials reported, otherwise that of the host; '' if unknown."""
        models = {name for facts in self.measured.facts.values() for name in facts.evidence.get("cpu.model", ())}
        return ", ".join(sorted(models)) or self.run.host.cpu_model or ""

    @property
    def trials(self) -> int:
        """The number of trials on disk that belong to the plan."""
        return sum(self.outcomes.values())

    def at_price(self, price_per_h: float) -> Summary:
        """Return the summary with the cost of each environment."""
        return replace(self, groups=tuple(self._group_at_price(group, price_per_h) for group in self.groups))

    def _group_at_price(self, group: Group, price_per_h: float) -> Group:
        reader = CostReader(self.measured, price_per_h, [row.arm.name for row in group.all_rows])

        def priced(rows: Iterable[Row | None]) -> Iterator[Row]:
            for row in filter(None, rows):
                workload = row.arm.workload
                metric, settings = self.analysis.primary[workload], self.run.workloads.get(workload)
                yield replace(row, cost=reader.cost(row.arm.name, row.effect, metric, settings))

        baseline, control = (next(priced([row]), None) for row in (group.baseline, group.control))
        rows, alone = tuple(priced(group.rows)), tuple(priced(group.alone))
        return replace(group, baseline=baseline, control=control, rows=rows, alone=alone)


def _rows(run: Run, measured: Measurements, analysis: Analysis) -> Iterator[Row]:
    """Yield the row of each arm."""
    slow = describe_slow_trials(run.plan, measured, analysis.primary, analysis.slow)
    why, steady = explain(run, measured, analysis), steady_effects(run.plan, measured, analysis)
    for arm in run.plan.arms:
        name, metric = arm.name, analysis.primary[arm.workload].name
        facts, environment = measured.facts[name], run.environments.get(arm.runs)
        yield Row(
            arm=arm,
            effect=analysis.find(name),
            memory_effect=analysis.find(name, MEMORY.name),
            value=measured.geometric_mean(name, metric),
            median=measured.median(name, metric),
            memory=measured.median(name, MEMORY.name),
            outcomes=dict(facts.outcomes),
            levels=environment.levels if environment else {},
            description=environment.description if environment else "",
            settings=environment.variable_assignments() if environment else (),
            skipped=run.skipped.get(name, ""),
            accuracy=measured.median(name, "accuracy"),
            cv=measured.cv(name, metric),
            disturbed=measured.median_contention(name),
            slow=slow.get(name),
            reference_value=run.design.reference_values.get(arm.environment, ""),
            why=why.get(name),
            steady=steady.get(name),
            later_failed=next(iter(facts.later_failed), ""),
        )


def stand_in_data_sets(measured: Measurements, arms: Iterable[str]) -> tuple[str, ...]:
    """Return the names of data sets that were generated because the real ones were not available."""
    facts = [measured.facts[name] for name in arms]
    return tuple(sorted({name for fact in facts if fact.stand_in for name in fact.data}))


def _group(workload: str, engine: str, rows: list[Row], run: Run, measured: Measurements, analysis: Analysis) -> Group:
    references = {row.arm.reference for row in rows}
    reference_rows = [row for row in rows if row.arm.name in references and not row.arm.is_control]
    baseline = next((row for row in reference_rows if row.arm.reference is None), next(iter(reference_rows), None))
    control = next((row for row in rows if row.arm.is_control), None)
    alone = tuple(row for row in rows if row.arm.is_uninterrupted_copy)
    others = [row for row in rows if row not in (baseline, control, *alone)]
    steady = {row.arm.name: row.steady for row in others if row.steady}
    settings = run.workloads.get(workload)
    return Group(
        workload,
        engine,
        analysis.primary[workload],
        baseline,
        control,
        rows=tuple(sorted(others, key=lambda row: -(row.effect.ratio or 0.0) if row.effect else 0.0)),
        alone=alone,
        stand_in=stand_in_data_sets(measured, (row.arm.name for row in rows)),
        choice=choose_best_set(analysis, measured, [row.arm for row in others], run.environments, steady),
        unchecked=unchecked(settings, unstable_checks(measured, run.plan, workload)),
        short=slow_phases_note(measured.block_gaps),
        first=only_first_seconds_note(baseline.arm, measured, settings) if baseline and settings else "",
        quota=under_quota(outer_quota(run, measured)),
        margin=run.plan.margin,
        steps=which_steps_text(settings),
    )


def _groups(run: Run, measured: Measurements, analysis: Analysis) -> tuple[Group, ...]:
    tables: dict[tuple[str, str], list[Row]] = {}
    for row in _rows(run, measured, analysis):
        tables.setdefault(table_identity(row.arm, run.plan), []).append(row)
    return tuple(_group(*key, rows, run, measured, analysis) for key, rows in tables.items())


def summarise_measurements(run: Run, measured: Measurements, looks: Iterable[Trial] = ()) -> Summary:
    """Return the Summary of trials already aggregated, and of steady-state runs (``looks``)."""
    arm_starts = starts(run.plan.arms, measured, run.workloads, looks)
    analysis = estimate(run.plan, measured, workloads=run.workloads, environments=run.environments)
    facts = measured.facts.values()
    outcomes = sum((fact.outcomes for fact in facts), Counter[str]())
    groups = _groups(run, measured, analysis)
    recommended = [group.choice.arm for group in groups if group.choice]
    ending = f":{groups[0].workload}@{groups[0].engine}" if len(groups) == 1 else ""
    return Summary(
        run=run,
        measured=measured,
        analysis=analysis,
        groups=groups,
        outcomes=dict(outcomes),
        data=dict(sum((fact.data for fact in facts), Counter[str]())),
        stand_in=stand_in_data_sets(measured, measured.facts),
        cautions=merge_warnings_by_cause(
            (*find_warnings(run, measured, analysis), *start_warnings(arm_starts)), ending
        ),
        attributions=attributions(run, measured, analysis, recommended),
        cumulative=cumulative(run, measured, analysis),
        operators=operator_tables(run.plan.arms, measured),
        tables=further_tables(run, measured, analysis, arm_starts),
        nodes=compare_nodes(run.plan, measured, analysis.primary),
        starts=arm_starts,
    )


def summarise(folder: RunFolder, measured: Measurements | None = None) -> Summary:
    """Read a results folder, finished or not, and summarise it. Raises StoreError if unreadable.

    ``measured``: its trials, if they were just read.
    """
    run = folder.load()
    return summarise_measurements(
        run, measured or read_measurements(folder, run.plan), folder.steady_state_runs(run.plan)
    )


def glossary_words(summary: Summary) -> tuple[str, ...]:
    """Return the explained words that the report uses, in the order of the page that explains them."""
    rows = [(group.metric, row.effect) for group in summary.groups for row in group.all_rows if row.effect]
    flags = [flag for _, effect in rows for flag in effect.flags if flag != Flag.STAND_IN]
    verdicts = [metric.said(effect.verdict) for metric, effect in rows]
    return explained_topics([*verdicts, *flags, *(item.kind.value for item in summary.cautions)])


def glossary_sentence(summary: Summary) -> str:
    """Return the sentence that points to the explanations; '' if there are no words to explain."""
    words = glossary_words(summary)
    return f"what a word means: envmatrix docs WORD ({', '.join(words)})" if words else ""
