"""Effects: ratios with simultaneous intervals, p-values and verdicts (see docs/statistics.md)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from envmatrix.stats.inference.maxt import adjusted_p, critical_value
from envmatrix.stats.pairing import ratio_from_log

Verdict = Literal["faster", "slower", "same", "undecided"]
#: A lower and an upper bound of a ratio.
Bounds = tuple[float, float]
#: The promised confidence: in 95 of 100 runs, all intervals of a family contain the true ratio.
CONFIDENCE = 0.95
#: The confidence of all interim analyses together. A run stops more often when its intervals are narrow by luck, so 95
#: % intervals cover only 93 % (docs/statistics.md). 96.4 % intervals keep the promise.
ALL_ANALYSES_LEVEL = 0.964
#: The share of that error for the first analysis; the rest is for runs that are resumed (``alpha_spending``).
FIRST_ANALYSIS_SHARE = 0.8
#: The confidence of intervals for a run that is read once.
LEVEL = 1.0 - (1.0 - ALL_ANALYSES_LEVEL) * FIRST_ANALYSIS_SHARE
#: The share of an interval's error that each one-sided bound may have. With all of it, bounds of strongly skewed trials
#: err in up to 6.0 % of runs that stop on precision; with three quarters, in no more than 5 %.
ONE_SIDED_SHARE = 0.75


class Flag:
    """Texts of ``Effect.flags``: cautions to know before using the ratio."""

    UNEQUAL_WORK = "unequal-work"
    CHANGES_NUMERICS = "changes-numerics"
    STAND_IN = "stand-in-data"
    TOO_FEW_BLOCKS = "too-few-blocks"
    FAILED = "failed-trials"
    INVALID = "invalid-trials"
    FAILS_MORE = "fails-more"
    REFERENCE_FAILS_MORE = "reference-fails-more"
    INCOMPLETE = "incomplete-blocks"
    UNPROVEN = "unproven"
    NOT_IN_EFFECT = "not-in-effect"
    SLOW_TRIALS = "slow-trials"
    NO_OP = "no-op-here"
    CONTENDED = "cpu-contention"


@dataclass(frozen=True)
class Contended:
    """The possible influence of CPU contention on a ratio: without it, ``low`` to ``high`` times the ratio.

    ``shares``: the time shares in which reference and environment waited for a CPU, or None on a quiet machine.
    """

    low: float = 1.0
    high: float = 1.0
    shares: tuple[float, float] | None = None

    @property
    def inverted(self) -> Contended:
        """The same for the inverted comparison."""
        return Contended(1.0 / self.high, 1.0 / self.low, self.shares and (self.shares[1], self.shares[0]))


@dataclass(frozen=True)
class Effect:
    """The effect of one arm against its reference in one metric.

    ``ratio`` above 1 is always better: faster, or less memory; it is None if no block has both trials. ``low`` and
    ``high`` are simultaneous bounds over all comparisons with the same reference; ``p`` is adjusted for them too.
    ``one_sided`` are nearer bounds for questions about one side, such as whether the arm is slower than allowed: each
    may err in 5 %, not both together. Below the plan's ``min_blocks`` all are None, the verdict is 'undecided', and
    ``missing`` counts the blocks still needed. ``blocks`` counts complete pairs, ``incomplete`` the blocks without one
    of the two. ``error`` is the standard error of the log ratio, worth ``units`` independent blocks. If the arm or its
    reference has slow trials, ``usual`` is the ratio without them; bounds, p and verdict are valid for both ratios.
    ``worst`` is ``low`` with all failed trials as slow as possible (None: none failed, or no interval). ``best`` is
    ``high`` with all failed trials of the reference as slow as possible. ``withheld`` is the flag that turned a verdict
    into 'undecided'. ``contended`` is the possible influence of CPU contention.
    """

    workload: str
    environment: str
    engine: str
    reference: str
    metric: str
    ratio: float | None
    low: float | None
    high: float | None
    p: float | None
    verdict: Verdict
    blocks: int
    flags: tuple[str, ...] = ()
    missing: int = 0
    incomplete: int = 0
    arm: str = ""
    spread: float | None = None
    notes: tuple[str, ...] = ()
    primary: bool = False
    worst: float | None = None
    best: float | None = None
    error: float | None = None
    units: int = 0
    usual: float | None = None
    withheld: str = ""
    contended: Contended = Contended()
    one_sided: Bounds | None = None

    @property
    def half_width(self) -> float | None:
        """The half-width of the interval as a fraction: 0.03 for a ratio known to 3 %."""
        if self.low is None or self.high is None or self.low <= 0:
            return None
        return math.sqrt(self.high / self.low) - 1.0

    @property
    def is_control(self) -> bool:
        """Return whether this compares the baseline with its second copy."""
        return self.environment == "control"


#: Flags with which an arm cannot be called the best.
DISQUALIFYING_FLAGS = frozenset({Flag.UNEQUAL_WORK, Flag.FAILS_MORE, Flag.UNPROVEN})


def can_be_called_best(effect: Effect) -> bool:
    """Return whether an arm may be called the best.

    It must do equal work, fail no more often than its reference, and have all its settings verified.
    """
    return not effect.is_control and DISQUALIFYING_FLAGS.isdisjoint(effect.flags)


def verdict_of(low: float | None, high: float | None, margin: float, one_sided: Bounds | None = None) -> Verdict:
    """Return the verdict for an interval; it is 'same' if ``one_sided`` bounds are inside 1/(1+margin)..(1+margin).

    These are two one-sided tests (Schuirmann 1987): whatever the truth, only one of them can err. None: the interval
    itself must be inside. It is 'same' even if it excludes 1. Without an interval it is 'undecided'.
    """
    if low is None or high is None:
        return "undecided"
    least, most = one_sided or (low, high)
    if 1.0 / (1.0 + margin) <= least and most <= 1.0 + margin:
        return "same"
    if low > 1.0:
        return "faster"
    return "slower" if high < 1.0 else "undecided"


def hull(one: Bounds | None, other: Bounds | None) -> Bounds | None:
    """Return the bounds that are valid in two views."""
    return (min(one[0], other[0]), max(one[1], other[1])) if one and other else None


def unless_contended(effect: Effect, contended: Contended, margin: float) -> Effect:
    """Withhold a verdict that CPU contention could explain: it must be true for all its possible influence."""
    checked = replace(effect, contended=contended)
    if effect.low is None or effect.high is None or effect.verdict == "undecided":
        return checked
    (low, high), one_sided = (
        (least * contended.low, most * contended.high)
        for least, most in ((effect.low, effect.high), effect.one_sided or (effect.low, effect.high))
    )
    verdict = verdict_of(low, high, margin, one_sided)
    return checked if verdict == effect.verdict else withheld(checked, Flag.CONTENDED)


def withheld(effect: Effect, flag: str) -> Effect:
    """Withhold a verdict for the reason that ``flag`` names."""
    return effect if effect.verdict == "undecided" else replace(effect, verdict="undecided", withheld=flag)


@dataclass(frozen=True)
class Conclusion:
    """The conclusion about a mean log ratio, as ratios: interval, adjusted p, verdict and one-sided bounds."""

    low: float
    high: float
    p: float
    verdict: Verdict
    one_sided: Bounds


def draw_conclusion(
    mean: float,
    error: float,
    units: int,
    comparisons: int,
    copies: int,
    level: float,
    margin: float,
    *,
    own: bool = False,
) -> Conclusion:
    """Return the conclusion for a mean of paired log ratios, one of ``comparisons`` with ``copies`` of a reference.

    The standard ``error`` is worth ``units`` independent blocks; it is the comparison's ``own``, or moderated
    (``moderated_errors``). p is below 1 - CONFIDENCE exactly if the interval excludes 1.
    """

    def bounds(confidence: float) -> Bounds:
        reach = critical_value(units, comparisons, copies, level=confidence, own=own) * error
        return ratio_from_log(mean - reach), ratio_from_log(mean + reach)

    (low, high), one_sided = bounds(level), bounds(level_of_one_sided_bounds(level))
    t = mean / error if error > 0 else (math.inf if mean else 0.0)
    p = rescale_p_value(adjusted_p(t, units, comparisons, copies, own=own), level)
    return Conclusion(low, high, p, verdict_of(low, high, margin, one_sided), one_sided)


def level_of_one_sided_bounds(level: float) -> float:
    """Return the confidence of the interval whose ends are the one-sided bounds beside an interval at ``level``."""
    return 1.0 - 2.0 * ONE_SIDED_SHARE * (1.0 - level)


def rescale_p_value(p: float, level: float = LEVEL) -> float:
    """Return a p computed at ``level``, rescaled to the promised confidence so that it agrees with the interval."""
    return min(1.0, p * (1.0 - CONFIDENCE) / (1.0 - level))
