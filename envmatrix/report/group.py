"""The tables of a report: one row an arm, one group a workload and engine, and what a group's answer is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from envmatrix.plan import Arm
from envmatrix.report.formatting import format_bounds, format_count, format_decided_ratio, reference_name
from envmatrix.report.headline import (
    barred,
    busy_machine,
    explained,
    is_faster_by_little,
    of_control,
    percent_of,
    recommendation_reason,
    without_contention,
)
from envmatrix.stats.effects import Effect
from envmatrix.stats.failures import BROKEN_OUTCOMES
from envmatrix.stats.metrics import Metric
from envmatrix.stats.selection import Choice
from envmatrix.stats.slow_trials import SlowTrials
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
                f"{best.arm.environment} is {format_decided_ratio(self.choice.gain)} times "
                f"{self.metric.as_fast_as(reference)}, its choice allowed for (95 % interval "
                f"{format_bounds(effect.low, effect.high)}, {format_count(effect.blocks, 'block')})."
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
            f"{recommendation_reason(choice, self.metric.said('faster'), self.margin)}.{self._ahead(choice)}"
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


def _never_well(row: Row) -> bool:
    """Whether trials of an arm ran, and not one of them ended well."""
    return not row.outcomes.get("ok") and any(row.outcomes.get(name) for name in BROKEN_OUTCOMES)
