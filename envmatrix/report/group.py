"""The tables of a report: one group per workload and engine, one row per environment, and the group's headline."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from envmatrix.durations_and_sizes import QUIET_FIRST
from envmatrix.plan import Arm
from envmatrix.report import headline
from envmatrix.report.formatting import (
    format_bounds,
    format_count,
    format_decided_ratio,
    format_speed_up,
    list_names,
    reference_name,
)
from envmatrix.report.headline import Answer
from envmatrix.results import Run
from envmatrix.stats.attribution.explanation import Explanation
from envmatrix.stats.best_environment import Choice
from envmatrix.stats.cost import Cost
from envmatrix.stats.effects import Effect
from envmatrix.stats.metrics import Metric
from envmatrix.stats.quality.failures import BROKEN_OUTCOMES
from envmatrix.stats.quality.slow_trials import LEAST_BLOCKS, SlowTrials
from envmatrix.stats.steady_state.effect import SteadyEffect

#: The factor of whose levels an efficiency is told.
FACTOR = "processes"


@dataclass(frozen=True)
class Row:
    """One arm in a table, of its ok trials; None without any.

    ``value`` is the geometric mean, of which the speed-up is made; ``median``, ``memory`` and ``accuracy`` are medians.
    ``cv`` is the standard deviation of its values over their mean; ``slow`` is None where no trial is slow.
    ``disturbed`` is the share of the time that its threads could have run in which they had no CPU. ``why`` is there if
    its effect is shown. ``steady`` is its effect in the steady state, and ``later_failed`` why a process ended before.
    ``cost`` needs a price.
    """

    arm: Arm
    effect: Effect | None
    memory_effect: Effect | None
    value: float | None
    memory: float | None
    outcomes: Mapping[str, int]
    levels: Mapping[str, str]
    description: str
    settings: tuple[str, ...]
    skipped: str
    accuracy: float | None = None
    reference_value: str = ""
    median: float | None = None
    cv: float | None = None
    slow: SlowTrials | None = None
    disturbed: float | None = None
    why: Explanation | None = None
    steady: SteadyEffect | None = None
    later_failed: str = ""
    cost: Cost | None = None

    @property
    def is_slower_in_steady_state(self) -> bool:
        """Whether it is slower than its reference in the steady state."""
        return self.steady is not None and self.steady.verdict == "slower"


@dataclass(frozen=True)
class Group:
    """All environments of one workload on one engine; ``rows`` are best first, without the copies of the baseline.

    ``alone`` are copies of the references that run separately, for environments that do so too. ``choice`` is the best
    set and the recommendation, None if no environment is significantly faster. ``steps`` are those that a trial has.
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
    steps: str = "first steps"

    @property
    def title(self) -> str:
        """Workload, engine, and the data sets if they are generated."""
        data = f", data: {', '.join(self.stand_in)} (not the real data set)" if self.stand_in else ""
        return f"{self.workload}, engine {self.engine}{data}"

    @property
    def best(self) -> Row | None:
        """The recommended environment: in the best set, significantly faster, and simple."""
        return next((row for row in self.rows if self.choice and row.arm.name == self.choice.arm), None)

    @property
    def best_set(self) -> tuple[str, ...]:
        """The environments that are tied for best, the fastest first."""
        names = {row.arm.name: row.arm.environment for row in self.rows}
        return tuple(names[arm] for arm in self.choice.best_set) if self.choice else ()

    @property
    def all_rows(self) -> tuple[Row, ...]:
        """Baseline, the environments best first, then the copies of the baseline."""
        return tuple(row for row in (self.baseline, *self.rows, self.control, *self.alone) if row)

    @property
    def headline(self) -> str:
        """The answer in one line: which environment is recommended, its gain, and what weakens it."""
        answer = self.answer
        later = f" {answer.later}: {answer.later_figures}." if answer.later else ""
        return f"{answer.claim}{f' ({answer.figures})' if answer.figures else ''}.{answer.doubts}{later}"

    @property
    def answer(self) -> Answer:
        """The claim, the figures that belong to it, and sentences on what weakens it."""
        best = self.best.effect if self.best else None
        effects = [row.effect for row in self.rows if row.effect]
        control, gain = self.control.effect if self.control else None, self.choice.gain if self.choice else 1.0
        busy = headline.busy_machine(effects, best, self.baseline_name)
        answer = self._gain or Answer(self._no_gain)
        claim = answer.claim
        if busy and not best:
            claim = f"{claim[0].lower()}{claim[1:]}. {QUIET_FIRST[0].upper()}{QUIET_FIRST[1:]}"
        doubts = answer.doubts + headline.control_doubt(control, best, gain, self.baseline_name)
        doubts += " Equal work not checked." if self.unchecked else ""
        return answer._replace(claim=f"{self.quota}{busy}{claim}", doubts=doubts)

    @property
    def _gain(self) -> Answer | None:
        best = self.best
        if not (best and best.effect and self.baseline and self.choice):
            return None
        effect = best.effect
        own = {row.arm.name for row in (self.baseline, *self.alone)}
        reference = self.baseline_name if effect.reference in own else reference_name(effect)
        tested = sum(row.effect is not None for row in self.rows)
        gain, as_fast = self.choice.gain, self.metric.as_fast_as(reference)
        figures = f"95 % CI {format_bounds(effect.low, effect.high)}, {format_count(effect.blocks, 'block')}"
        answer = Answer(f"{format_speed_up(effect)} times {as_fast}", figures)
        luck = headline.correction(format_speed_up(effect), gain, tested)
        slow = f" {best.slow} than the others." if best.slow else ""
        if best.steady:
            answer = headline.answer_with_steady_state(best.steady, effect, as_fast, self.steps)
            if best.steady.verdict == "faster":
                luck = headline.correction(format_decided_ratio(best.steady.ratio), gain, tested)
                effect = replace(effect, low=best.steady.low, high=best.steady.high)
        doubts = luck + slow + headline.quiet_machine_range(effect)
        return answer._replace(claim=f"{best.arm.environment} is {answer.claim}", doubts=doubts)

    @property
    def _no_gain(self) -> str:
        if not any(row.effect for row in self.rows):
            return f"Nothing was compared with {self.baseline_name}"
        if not any(row.effect and row.effect.low is not None for row in self.rows):
            return self._no_verdict
        return self._no_recommendation

    @property
    def _no_recommendation(self) -> str:
        effects = [row.effect for row in self.rows if row.effect]
        reasons = headline.reasons_not_recommended(
            [row.effect for row in self.rows if row.effect and not row.is_slower_in_steady_state]
        )
        faster = self.metric.said("faster")
        first = {row.arm.environment: (row.effect, row.steady) for row in self.rows if row.effect and row.steady}
        if at_first := headline.only_at_first(first, self.steps):
            reasons.append(at_first)
        if small := [effect.environment for effect in effects if headline.is_faster_by_little(effect)]:
            by = f"significantly {faster}, but by less than the margin of {headline.percent_of(self.margin)}"
            reasons.append(f"{', '.join(small)} {'is' if len(small) == 1 else 'are'} {by}")
        shown = f"is recommended over {self.baseline_name}" if reasons else ""
        if held := headline.effect_explained_by_contention(effects, self.metric.as_fast_as(self.baseline_name)):
            reasons.append(held)
        why = f": {'; '.join(reasons)}" if reasons else ""
        held_text = self._outliers_text(headline.faster_environments_with_slow_trials(effects))
        other = "other " if held_text else ""
        return (
            f"{held_text}No {other}environment {shown or f'is significantly {faster} than {self.baseline_name}'}{why}"
        )

    def _outliers_text(self, held: Sequence[str]) -> str:
        """Return whose outliers keep these environments from a verdict; '' for no environments."""
        if not held:
            return ""
        rows = [row for row in (self.baseline, *self.rows) if row and row.slow]
        slow = [row.arm.environment for row in rows if row.arm.environment in (self.baseline_name, *held)]
        slow += [f"the control, a copy of {self.baseline_name},"] if self.control and self.control.slow else []
        has = "have" if len(slow) > 1 else "has"
        return (
            f"No verdict on {list_names(held)} yet: {list_names(slow)} {has} outliers, so a verdict takes "
            f"at least {LEAST_BLOCKS} blocks. "
        )

    @property
    def _no_verdict(self) -> str:
        """Why there is no verdict on any environment."""
        if self.baseline and _never_well(self.baseline):
            return f"Nothing can be compared with {self.baseline_name}: none of its trials succeeded"
        if all(map(_never_well, self.rows)):
            return f"No result: no trial of {', '.join(row.arm.environment for row in self.rows)} succeeded"
        return "Too little was measured for a verdict"

    @property
    def best_set_sentence(self) -> str:
        """Which environments are tied for best, and why one of them is recommended; '' if only one is best."""
        best, choice = self.best, self.choice
        if not best or not choice or choice.best_set == (choice.arm,):
            return ""
        faster, name = self.metric.said("faster"), best.arm.environment
        others = ", ".join(other for other in self.best_set if other != name)
        if choice.outdone:
            measured = f"{others} measured better, but not significantly {faster} than the reference."
        else:
            measured = f"Perhaps as good: {others} (no significant difference)."
        if best is self.rows[0]:
            return measured
        reason = headline.recommendation_reason(choice, faster, self.margin)
        return f"{measured} Recommended: {name}{f', {reason}' if reason else ''}.{self._ahead(choice)}"

    def _ahead(self, choice: Choice) -> str:
        """Return what choosing the recommended one may cost; '' if it measured best."""
        if not choice.ahead or choice.ahead[1] <= 1.0:
            return ""
        name, lead = choice.ahead
        faster = next(row.arm.environment for row in self.rows if row.arm.name == name)
        slower = self.metric.said("slower")
        share = math.ceil(1000 * (1.0 - 1.0 / lead)) / 1000
        return f" It is at most {headline.percent_of(share)} {slower} than {faster} (95 % confidence)."

    @property
    def limits(self) -> tuple[str, ...]:
        """What the intervals cover, and what not: longer times, later steps; and what the costs are for."""
        has_interval = any(row.effect and row.effect.low is not None for row in self.rows)
        covered = (self.short, self._steady_note or self.first) if has_interval else ()
        costs = [row.cost for row in self.all_rows if row.cost]
        return tuple(filter(None, (*covered, self._alone_note, headline.cost_note(costs))))

    @property
    def _alone_note(self) -> str:
        """Return what the copies of the references are for that run separately."""
        alone = {row.arm.name: row.arm.environment for row in self.alone}
        names = [row.arm.environment for row in self.rows if row.effect and row.effect.reference in alone]
        copies = list_names(list(dict.fromkeys(alone.values())))
        if not names:
            return ""
        return (
            f'* For {list_names(names)}, the reference is "{copies}" (last row). They do not take turns with '
            "the others, because pauses would change their speed."
        )

    @property
    def has_cost(self) -> bool:
        """Whether a price was given."""
        return any(row.cost for row in self.all_rows)

    @property
    def has_steady(self) -> bool:
        """Whether any environment has an effect in the steady state."""
        return any(row.steady for row in self.rows)

    @property
    def steady_range_text(self) -> str:
        """The seconds of its steps that an environment's steady effect is of: those of the first row with one."""
        return next((row.steady.time_range_text for row in self.all_rows if row.steady), "")

    @property
    def _steady_note(self) -> str:
        steady = {row.arm.environment: row.steady for row in self.rows if row.steady}
        failed = {row.arm.environment: row.later_failed for row in self.rows if row.later_failed}
        missing = [row.arm.environment for row in self.rows if row.effect and row.effect.ratio and not row.steady]
        return headline.steady_note(steady, missing, failed, self.baseline_name)

    @property
    def sentences(self) -> tuple[str, ...]:
        """The sentences below the headline."""
        return tuple(filter(None, (self.best_set_sentence, *self.limits)))

    @property
    def baseline_name(self) -> str:
        """The name of the environment that the others are compared with, with its workload if theirs differ."""
        if not self.baseline:
            return "the baseline"
        name = self.baseline.arm.environment
        return f"{name} ({self.workload})" if self.compares_workloads else name

    @property
    def compares_workloads(self) -> bool:
        """Whether rows differ in workload from the reference, so that programs are compared, not only environments."""
        return any(row.arm.workload != self.workload for row in self.rows)


def _never_well(row: Row) -> bool:
    """Return whether an environment has trials, and all of them failed."""
    return not row.outcomes.get("ok") and any(row.outcomes.get(name) for name in BROKEN_OUTCOMES)


def use_command(group: Group, run: Run) -> str:
    """Return the command that prints how to use the recommended environment of a group that has one."""
    option = f" --run {shlex.quote(run.name)}" if run.has_generated_matrix else ""  # its matrix is stored nowhere else
    return f"envmatrix export {shlex.quote(group.best.arm.environment if group.best else '')}{option}"


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
