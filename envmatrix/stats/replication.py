"""Was an effect found again? Two independent runs, compared on the scale on which effects add: the log ratio."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from envmatrix.stats.analysis import Analysis
from envmatrix.stats.effects import LEVEL, Effect
from envmatrix.stats.welch import mean_of_effect, quotient

Answer = Literal["reproduced", "not reproduced", "undecided"]
#: Two effects whose ratios surely differ by less than this count as the same.
TOLERANCE = 0.05


@dataclass(frozen=True)
class Replication:
    """One effect in both runs. ``low`` and ``high`` bound the second ratio over the first (None: too few blocks).

    ``same_direction`` is None where one of the two runs shows no direction.
    """

    arm: str
    environment: str
    first: Effect
    second: Effect | None
    low: float | None
    high: float | None
    answer: Answer
    same_direction: bool | None


def compare(first: Analysis, second: Analysis, tolerance: float = TOLERANCE) -> tuple[Replication, ...]:
    """Compare the primary effects of two runs, the control left out.

    The intervals of the differences hold together (Bonferroni). *Reproduced*: the whole interval lies within
    1/(1+tolerance)..(1+tolerance). *Not reproduced*: it excludes 1 and does not lie within. Else *undecided*.
    """
    effects = [effect for effect in first.primary_effects() if not effect.is_control]
    level = max(first.level, second.level)
    return tuple(_compared(effect, second.find(effect.arm), len(effects), tolerance, level) for effect in effects)


def _compared(one: Effect, other: Effect | None, family: int, tolerance: float, level: float) -> Replication:
    bounds = difference(one, other, family, level) if other else None
    low, high = bounds or (None, None)
    return Replication(
        one.arm, one.environment, one, other, low, high, answer_of(low, high, tolerance), _direction(one, other)
    )


def difference(one: Effect, other: Effect, family: int = 1, level: float = LEVEL) -> tuple[float, float] | None:
    """Return the interval of other/one as a ratio, or None where one of the two has no interval."""
    means = mean_of_effect(one), mean_of_effect(other)
    if means[0] is None or means[1] is None:
        return None
    found = quotient(means[0], means[1], max(1, family), level)
    return found.low, found.high


def answer_of(low: float | None, high: float | None, tolerance: float) -> Answer:
    """Judge the interval of the ratio between two effects."""
    if low is None or high is None:
        return "undecided"
    if 1 / (1 + tolerance) <= low and high <= 1 + tolerance:
        return "reproduced"
    return "not reproduced" if low > 1 or high < 1 else "undecided"


def _direction(one: Effect, other: Effect | None) -> bool | None:
    verdicts = {one.verdict, other.verdict} if other else set()
    if not verdicts or not verdicts <= {"faster", "slower"}:
        return None
    return len(verdicts) == 1
