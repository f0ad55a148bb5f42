"""Was an effect found again? Two independent runs, compared on the scale on which effects add: the log ratio."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from scipy import stats

from envmatrix.stats.effects import Analysis, Effect
from envmatrix.stats.pairing import ratio_of

Answer = Literal["reproduced", "not reproduced", "undecided"]
LEVEL = 0.95
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

    With m effects, each interval of the difference holds at level 1 - 0.05/m (Bonferroni), so that all answers
    hold together. Criterion: *reproduced* when the whole interval lies within 1/(1+tolerance)..(1+tolerance);
    *not reproduced* when it excludes 1 and does not lie within; otherwise *undecided*.
    """
    effects = [effect for effect in first.primary_effects() if not effect.is_control]
    return tuple(_compared(effect, second.find(effect.arm), len(effects), tolerance) for effect in effects)


def _compared(one: Effect, other: Effect | None, family: int, tolerance: float) -> Replication:
    bounds = difference(one, other, family) if other else None
    low, high = bounds or (None, None)
    return Replication(
        one.arm, one.environment, one, other, low, high, answer_of(low, high, tolerance), _direction(one, other)
    )


def difference(one: Effect, other: Effect, family: int = 1) -> tuple[float, float] | None:
    """Return the interval of other/one as a ratio, or None below two complete blocks in either run.

    Welch's interval: the runs were made on different machines, so their variances need not agree.
    """
    parts = [_mean_error(effect) for effect in (one, other)]
    if parts[0] is None or parts[1] is None:
        return None
    (mean1, error1, blocks1), (mean2, error2, blocks2) = parts[0], parts[1]
    variance = error1**2 + error2**2
    if variance == 0:
        ratio = ratio_of(mean2 - mean1)
        return ratio, ratio
    freedom = variance**2 / (error1**4 / (blocks1 - 1) + error2**4 / (blocks2 - 1))
    reach = float(stats.t.ppf(1 - (1 - LEVEL) / (2 * max(1, family)), freedom)) * math.sqrt(variance)
    return ratio_of(mean2 - mean1 - reach), ratio_of(mean2 - mean1 + reach)


def _mean_error(effect: Effect) -> tuple[float, float, int] | None:
    if effect.low is None or not effect.ratio or effect.spread is None or effect.blocks < 2:
        return None
    return math.log(effect.ratio), effect.spread / math.sqrt(effect.blocks), effect.blocks


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
