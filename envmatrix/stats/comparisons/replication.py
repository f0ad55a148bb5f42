"""Replication: whether two independent runs show the same effect, compared by their log ratios."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from envmatrix.stats.effect_estimation import Analysis, is_blocked_by_slow_trials
from envmatrix.stats.effects import LEVEL, Effect, Flag
from envmatrix.stats.inference.welch import log_ratio_with_and_without_slow, quotient
from envmatrix.stats.quality.contention import EXPLAINED
from envmatrix.stats.quality.slow_trials import LEAST_BLOCKS

Answer = Literal["reproduced", "not reproduced", "undecided"]
#: Two effects count as the same if their ratios surely differ by less than this.
TOLERANCE = 0.05


@dataclass(frozen=True)
class Replication:
    """One effect in two runs. ``low`` and ``high`` bound the second ratio over the first (None: too few blocks).

    ``same_direction`` is None if a run shows no direction. ``unsure`` is why the answer is undecided despite an
    interval.
    """

    arm: str
    environment: str
    first: Effect
    second: Effect | None
    low: float | None
    high: float | None
    answer: Answer
    same_direction: bool | None
    unsure: str = ""


def compare_effects(first: Analysis, second: Analysis, tolerance: float = TOLERANCE) -> tuple[Replication, ...]:
    """Compare the primary effects of two runs, without the control.

    Intervals of the differences are simultaneous (Bonferroni). *Reproduced*: the whole interval is inside
    1/(1+tolerance)..(1+tolerance). *Not reproduced*: it excludes 1 and is not inside. Otherwise *undecided*.
    """
    effects = [effect for effect in first.primary_effects() if not effect.is_control]
    return tuple(_compare_effect((first, second), effect, len(effects), tolerance) for effect in effects)


def _compare_effect(runs: tuple[Analysis, Analysis], first: Effect, family: int, tolerance: float) -> Replication:
    second, level = runs[1].find(first.arm), max(run.level for run in runs)
    bounds = effect_ratio_interval(first, second, family, level) if second else None
    low, high = bounds or (None, None)
    reasons = [_unsure_reason(run, effect) for run, effect in zip(runs, (first, second), strict=True)]
    unsure = next(filter(None, reasons), "") if bounds else ""
    answer: Answer = "undecided" if unsure else answer_of(low, high, tolerance)
    verdicts = {first.verdict, second.verdict} if second else {first.verdict, "undecided"}
    same_direction = len(verdicts) == 1 if verdicts <= {"faster", "slower"} else None
    return Replication(first.arm, first.environment, first, second, low, high, answer, same_direction, unsure)


def _unsure_reason(run: Analysis, effect: Effect | None) -> str:
    """Return why the effect of a run cannot be compared with that of another run, or '' if it can."""
    if effect is None:
        return ""
    if is_blocked_by_slow_trials(run, (effect.arm, effect.reference), effect.blocks):
        return f"one side has outliers: then a verdict needs {LEAST_BLOCKS} blocks"
    if effect.withheld == Flag.CONTENDED:
        return EXPLAINED
    if Flag.REFERENCE_FAILS_MORE in effect.flags:
        return "fewer of its trials failed than of its reference"
    return "more of its trials failed than of its reference" if Flag.FAILS_MORE in effect.flags else ""


def effect_ratio_interval(
    one: Effect, other: Effect, family: int = 1, level: float = LEVEL
) -> tuple[float, float] | None:
    """Return the interval of other/one as a ratio, or None if one of the two has no interval.

    If one has slow trials, the interval is valid both with them and without them.
    """
    old_means, new_means = log_ratio_with_and_without_slow(one), log_ratio_with_and_without_slow(other)
    if old_means is None or new_means is None:
        return None
    views = [quotient(*pair, max(1, family), level) for pair in zip(old_means, new_means, strict=True)]
    return min(view.low for view in views), max(view.high for view in views)


def answer_of(low: float | None, high: float | None, tolerance: float) -> Answer:
    """Return the answer for the interval of the ratio between two effects."""
    if low is None or high is None:
        return "undecided"
    if 1 / (1 + tolerance) <= low and high <= 1 + tolerance:
        return "reproduced"
    return "not reproduced" if low > 1 or high < 1 else "undecided"
